import numpy as np
import pytest
from numpy_reference import multi_head_attention
from small_models import POLICIES, randomize, weights_by_path

from keras_transformer.layers import MultiHeadAttention


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("compatibility", ["scaled_dot_product", "dot_product", "additive"])
def test_the_three_functions_are_those_of_section_3_2_1(compatibility):
    layer = MultiHeadAttention(3, 4, 5, compatibility=compatibility)
    query, memory = normal(2, 5, 8), normal(2, 7, 8, seed=1)
    layer(query, memory)
    randomize(layer)
    result, weights = layer(query, memory, return_attention_weights=True)
    for b in range(2):
        expected = multi_head_attention(
            query[b], memory[b], weights_by_path(layer), 3, compatibility=compatibility
        )
        np.testing.assert_allclose(result[b], expected[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(weights[b], expected[1], rtol=1e-5, atol=1e-6)


def test_additive_attention_has_one_vector_a_head_more():
    layer = MultiHeadAttention(3, 4, 5, compatibility="additive")
    layer(normal(1, 2, 8), normal(1, 2, 8))
    assert weights_by_path(layer)["compatibility"].shape == (3, 4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("compatibility", ["dot_product", "additive"])
def test_every_precision(compatibility, policy):
    query, memory = normal(2, 5, 8), normal(2, 7, 8, seed=1)
    exact = MultiHeadAttention(2, 4, compatibility=compatibility)
    exact(query, memory)
    layer = MultiHeadAttention(2, 4, compatibility=compatibility, dtype=policy)
    layer(query, memory)
    layer.set_weights(exact.get_weights())
    result = layer(query, memory)
    assert result.dtype == layer.compute_dtype
    expected = exact(query, memory)
    np.testing.assert_allclose(np.asarray(result, "float32"), expected, atol=3e-2)
