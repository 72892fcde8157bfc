import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.layers import Dropout


def ones(*shape):
    return np.ones(shape, "float32")


def test_nothing_is_dropped_outside_training_or_at_rate_0():
    x = ones(3, 5)
    np.testing.assert_array_equal(Dropout(0.5)(x), x)
    np.testing.assert_array_equal(Dropout(0.5)(x, training=False), x)
    np.testing.assert_array_equal(Dropout(0.0)(x, training=True), x)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_share_and_scale(rate):
    result = Dropout(rate, seed=1)(ones(1000, 1001), training=True).numpy()
    # Of a million independent draws; six standard deviations.
    assert abs((result == 0).mean() - rate) < 6 * (rate * (1 - rate) / 1e6) ** 0.5
    kept = np.unique(result[result != 0])
    np.testing.assert_allclose(kept, [1 / (1 - round(rate * 65536) / 65536)], rtol=1e-6)
    np.testing.assert_allclose(kept, [1 / (1 - rate)], rtol=1e-3)


def test_neighbours_are_independent():
    """Two elements share one draw of 32 bits, which must not tie them together."""
    result = Dropout(0.5, seed=2)(ones(2**20), training=True).numpy() == 0
    pairs = result.reshape(-1, 2)
    counts = np.array([[np.mean((pairs == [a, b]).all(1)) for b in (0, 1)] for a in (0, 1)])
    np.testing.assert_allclose(counts, 0.25, atol=6 * (0.25 * 0.75 / 2**19) ** 0.5)


def test_every_call_draws_anew_and_a_seed_repeats():
    first, second, again = Dropout(0.5, seed=3), Dropout(0.5, seed=4), Dropout(0.5, seed=3)
    x = ones(64, 64)
    results = [layer(x, training=True).numpy() for layer in (first, first, second, again)]
    assert not np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[0], results[3])


def test_the_gradient_goes_where_the_values_went():
    x = tf.Variable(np.random.default_rng(0).normal(size=(40, 41)).astype("float32"))
    with tf.GradientTape() as tape:
        result = Dropout(0.4, seed=5)(x, training=True)
    gradient = tape.gradient(result, x).numpy()
    np.testing.assert_allclose(gradient * x.numpy(), result.numpy(), rtol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_dtypes(policy):
    layer = Dropout(0.5, dtype=policy)
    result = layer(ones(8, 9), training=True)
    assert result.dtype == layer.compute_dtype
    assert np.all(np.isfinite(keras.ops.cast(result, "float32")))


def test_unknown_and_empty_shapes_in_a_graph():
    layer = Dropout(0.5, seed=6)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3])])
    def run(x):
        return layer(x, training=True)

    for shape in ((5, 7, 3), (1, 1, 3), (0, 7, 3)):
        assert run(ones(*shape)).shape == shape


def test_config_round_trip():
    config = json.loads(json.dumps(Dropout(0.25, seed=8).get_config()))
    layer = Dropout.from_config(config)
    assert (layer.rate, layer.seed) == (0.25, 8)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_bad_rate_is_refused(rate):
    with pytest.raises(InputError, match=f"rate must be .* Received: {rate}"):
        Dropout(rate)
