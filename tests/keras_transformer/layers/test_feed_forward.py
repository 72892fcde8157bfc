import keras
import numpy as np
import pytest
from numpy_reference import feed_forward
from small_models import POLICIES, randomize, weights_by_path

from keras_transformer.layers import FeedForward


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
def test_it_is_equation_2(activation):
    layer = FeedForward(12, activation=activation)
    x = normal(2, 5, 8)
    layer(x)
    randomize(layer)
    expected = feed_forward(x, weights_by_path(layer), activation)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=2e-6)
    assert layer.count_params() == 8 * 12 + 12 + 12 * 8 + 8


def test_positions_do_not_see_each_other():
    layer = FeedForward(12)
    x = normal(2, 5, 8)
    whole = layer(x).numpy()
    for t in range(5):
        np.testing.assert_allclose(layer(x[:, t : t + 1])[:, 0], whole[:, t], atol=1e-6)


def test_dropout_is_inside_and_in_training_only():
    layer, plain = FeedForward(200, dropout=0.5), FeedForward(200)
    x = np.repeat(normal(1, 2, 8), 500, axis=0)
    layer(x), plain(x)
    plain.set_weights([v.numpy() for v in layer.trainable_variables])
    np.testing.assert_array_equal(layer(x, training=False), plain(x))
    dropped = layer(x, training=True).numpy()
    assert np.abs(dropped - plain(x).numpy()).max() > 0.1
    np.testing.assert_allclose(dropped.mean(0), plain(x)[0], atol=0.15)  # the expectation is kept


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("policy", POLICIES)
def test_dtypes(policy, dropout):
    layer = FeedForward(12, dropout=dropout, dtype=policy)
    result = layer(normal(2, 5, 8), training=True)
    assert result.dtype == layer.compute_dtype
    assert {v.dtype for v in layer.trainable_variables} == {"float32"}
    # A part of another dtype would cast the large inner tensor twice.
    parts = layer._flatten_layers(include_self=False)
    assert {part.compute_dtype for part in parts} == {layer.compute_dtype}
    assert keras.ops.isfinite(keras.ops.cast(result, "float32")).numpy().all()
