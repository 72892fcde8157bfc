import numpy as np
import pytest
from numpy_reference import layer_norm
from small_models import POLICIES, randomize, rewind_dropout

from keras_transformer.layers import Residual


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built_residual(**arguments):
    layer = Residual(**arguments)
    layer.build((None, None, 8))
    randomize(layer)
    return layer


def norm_weights(layer):
    gamma, beta = (v.numpy().astype("float64") for v in layer.trainable_variables)
    return {"gamma": gamma, "beta": beta}


def test_post_norm_is_layer_norm_of_the_sum():
    layer = built_residual()
    x = normal(2, 3, 8)
    result = layer(x, sublayer=lambda x: 2.0 * x + 1.0)
    expected = layer_norm(3.0 * x.astype("float64") + 1.0, norm_weights(layer), 1e-6)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


def test_pre_norm_is_the_input_plus_the_sublayer_of_its_norm():
    layer = built_residual(norm="pre")
    x = normal(2, 3, 8)
    result = layer(x, sublayer=lambda x: x**2)
    expected = x + layer_norm(x.astype("float64"), norm_weights(layer), 1e-6) ** 2
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=5e-6)


def test_epsilon_counts():
    layer = built_residual(epsilon=0.5)
    x = normal(1, 2, 8)
    expected = layer_norm(x.astype("float64"), norm_weights(layer), 0.5)
    np.testing.assert_allclose(layer(x, sublayer=lambda x: 0 * x), expected, atol=2e-6)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_dropped_sublayer_leaves_only_the_norm(norm):
    """All of the sub-layer is dropped at a rate that leaves one value in 10^9."""
    layer = built_residual(norm=norm, dropout=1.0 - 1e-9)
    x = normal(2, 3, 8)
    result = layer(x, sublayer=lambda x: 1000.0 + x, training=True)
    expected = x if norm == "pre" else layer_norm(x.astype("float64"), norm_weights(layer), 1e-6)
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_dropout_is_on_the_sublayer_alone_and_in_training_only():
    layer = built_residual(norm="pre", dropout=0.5)
    x = normal(4, 50, 8)
    added = layer(x, sublayer=np.ones_like, training=True).numpy() - x
    # Values are dropped, or doubled to keep the expectation.
    assert np.all(np.isclose(added, 0.0, atol=1e-6) | np.isclose(added, 2.0, atol=1e-6))
    assert np.mean(added) == pytest.approx(1.0, abs=0.1)
    kept = layer(x, sublayer=np.ones_like, training=False).numpy() - x
    np.testing.assert_allclose(kept, 1.0, atol=1e-6)


def test_rewound_dropout_draws_the_same_again():
    layer = built_residual(dropout=0.5)
    x = normal(2, 3, 8)
    draws = []
    for rewind in (True, True, False):
        if rewind:
            rewind_dropout(layer)
        draws.append(layer(x, sublayer=np.ones_like, training=True).numpy())
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.abs(draws[1] - draws[2]).max() > 1e-2


def test_whatever_more_the_sublayer_returns_is_passed_on():
    _, more = built_residual()(normal(1, 2, 8), sublayer=lambda x: (x, "weights"))
    assert more == "weights"


@pytest.mark.parametrize("policy", POLICIES)
def test_dtypes(policy):
    layer = Residual(dropout=0.1, dtype=policy)
    result = layer(normal(2, 3, 8), sublayer=lambda x: x, training=True)
    assert result.dtype == layer.compute_dtype
    assert {v.dtype for v in layer.trainable_variables} == {"float32"}
