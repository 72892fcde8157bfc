import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import attention
from small_models import POLICIES

from keras_transformer.layers import (
    causal_mask,
    scaled_dot_product_attention,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def random_mask(*shape, seed=3):
    return np.random.default_rng(seed).random(shape) < 0.6


@pytest.mark.parametrize("masked", [False, True])
def test_scaled_dot_product_attention_is_equation_1(masked):
    query, key, value = normal(2, 5, 6), normal(2, 7, 6, seed=1), normal(2, 7, 3, seed=2)
    mask = random_mask(2, 5, 7) if masked else None
    result, weights = scaled_dot_product_attention(query, key, value, mask)
    for b in range(2):
        allowed = None if mask is None else mask[b]
        expected = attention(query[b], key[b], value[b], allowed)
        np.testing.assert_allclose(result[b], expected[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(weights[b], expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("d_k", [16, 64, 256])
def test_dot_products_have_variance_d_k_before_scaling_and_1_after(d_k):
    query, key = normal(200, d_k), normal(300, d_k, seed=1)
    assert np.var(query @ key.T) == pytest.approx(d_k, rel=0.1)
    # Scores differ from the logarithms of the weights by one constant a query.
    _, weights = scaled_dot_product_attention(query, key, key)
    scores = np.log(weights.numpy().astype("float64"))
    assert np.var(scores, axis=-1).mean() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("policy", POLICIES)
def test_hidden_keys_have_weight_exactly_0(policy):
    dtype = keras.DTypePolicy(policy).compute_dtype
    query = keras.ops.cast(normal(2, 3, 4), dtype)
    # Hidden keys match the query better than any real one.
    key = np.concatenate([normal(2, 5, 4, seed=1), 90.0 * query.numpy()[:, :2]], axis=1)
    key = keras.ops.cast(key, dtype)
    mask = np.arange(7) < 5
    _, weights = scaled_dot_product_attention(query, key, key, mask)
    assert weights.dtype == tf.float32
    assert np.all(weights.numpy()[..., 5:] == 0.0)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1.0, rtol=1e-5)


def test_a_mask_for_the_whole_batch_costs_no_more_than_one_for_each_sentence():
    """TensorFlow's fused product and sum of a batch and one mask takes 100 times as long."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4, None, 32])])
    def attend(x):
        return scaled_dot_product_attention(x, x, x, causal_mask(tf.shape(x)[2]))[0]

    def seconds(sentences):
        x = tf.zeros([sentences, 4, 300, 32])
        attend(x)
        starts = []
        for _ in range(5):
            start = time.perf_counter()
            attend(x)
            starts.append(time.perf_counter() - start)
        return min(starts)

    assert seconds(2) < 20 * seconds(1)
