import numpy as np
import pytest
import tensorflow as tf
from small_models import POLICIES, randomize

from keras_transformer.layers import Projection


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("shape", [(7, 4), (2, 5, 4), (2, 3, 5, 4)])
def test_it_is_x_w_plus_b_on_the_last_axis(shape):
    layer = Projection(3)
    x = normal(*shape)
    layer(x)
    randomize(layer)
    expected = x.astype("float64") @ layer.kernel.numpy() + layer.bias.numpy()
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)
    assert layer.compute_output_shape(shape) == expected.shape


def test_without_bias_zeros_stay_zeros_and_there_is_one_matrix():
    layer = Projection(3, use_bias=False)
    assert np.all(layer(np.zeros((2, 5, 4), "float32")).numpy() == 0)
    assert [v.name for v in layer.variables] == ["kernel"]


def test_activation():
    x = normal(2, 5, 4)
    layer = Projection(3, activation="relu")
    result = layer(x).numpy()
    expected = np.maximum(x @ layer.kernel.numpy(), 0.0)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert (result == 0).any()


@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_gain_multiplies_glorots_standard_deviation(gain):
    layer = Projection(200, initializer_gain=gain)
    layer.build((None, None, 100))
    assert layer.kernel.numpy().std() == pytest.approx(gain * np.sqrt(2 / 300), rel=0.03)
    assert np.all(layer.bias.numpy() == 0)


def test_lengths_known_only_when_run():
    layer = Projection(3)
    layer.build((None, None, 4))
    in_graph = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 4))])
    for shape in [(2, 5, 4), (1, 1, 4), (0, 3, 4)]:
        assert in_graph(normal(*shape)).shape == (*shape[:2], 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_dtypes(policy):
    layer = Projection(3, dtype=policy)
    result = layer(normal(2, 5, 4))
    assert result.dtype == layer.compute_dtype
    assert {v.dtype for v in layer.variables} == {"float32"}
