"""Attention in chunks equals attention at once: results, gradients, dropout."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import (
    POLICIES,
    padded_ids,
    result_and_gradients,
    rewind_dropout,
    small_batch,
    small_model,
)

from keras_transformer import SmoothedCrossEntropy
from keras_transformer.layers import MultiHeadAttention, padding_mask


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def assert_all_close(actual, expected, tolerance=1e-5):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@settings(deadline=None, max_examples=25)
@given(
    length=st.integers(1, 23),
    chunk=st.integers(1, 30),
    compatibility=st.sampled_from(["scaled_dot_product", "additive"]),
    causal=st.booleans(),
    mask=st.sampled_from([None, "keys", "queries and keys"]),
    in_graph=st.booleans(),
)
def test_equal_to_attention_at_once(length, chunk, compatibility, causal, mask, in_graph):
    layer = MultiHeadAttention(2, 4, 3, compatibility=compatibility, chunk=chunk)
    x = normal(2, length, 8)
    layer(x, x)
    masks = {
        None: None,
        "keys": padding_mask(padded_ids([length, (length + 1) // 2], length)),
        "queries and keys": np.random.default_rng(1).random((2, 1, length, length)) < 0.6,
    }
    arguments = {"causal": causal, "attention_mask": masks[mask]}
    found = result_and_gradients(layer, x, in_graph, **arguments)
    expected = result_and_gradients(layer, x, **arguments, return_attention_weights=True)
    assert_all_close(found, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_precision(policy):
    layer = MultiHeadAttention(2, 4, chunk=3, dtype=policy)
    whole = MultiHeadAttention(2, 4, dtype=policy)
    x = normal(2, 10, 8)
    layer(x, x), whole(x, x)
    whole.set_weights(layer.get_weights())
    found, expected = layer(x, x, causal=True), whole(x, x, causal=True)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(found, "float32"), np.asarray(expected, "float32"), 1e-2)


def test_what_is_dropped_on_the_way_forward_is_dropped_on_the_way_back():
    """The gradient is that of the function that the forward pass computed."""
    layer = MultiHeadAttention(2, 4, chunk=3, dropout=0.5)
    x, direction = normal(1, 8, 8), normal(1, 8, 8, seed=1)
    layer(x, x)

    def value(x):
        rewind_dropout(layer)
        return tf.reduce_sum(tf.sin(layer(x, x, training=True)))

    with tf.GradientTape() as tape:
        variable = tf.constant(x)
        tape.watch(variable)
        result = value(variable)
    gradient = tape.gradient(result, variable)
    step = 1e-2
    slope = (value(x + step * direction) - value(x - step * direction)) / (2 * step)
    assert float(slope) == pytest.approx(float(tf.reduce_sum(gradient * direction)), rel=2e-2)


def test_every_chunk_draws_its_own_dropout():
    layer = MultiHeadAttention(1, 4, chunk=2, dropout=0.5)
    x = np.tile(normal(1, 1, 8), (1, 12, 1))  # all queries are equal, and so are all chunks
    results = layer(x, x, training=True).numpy()[0].reshape(6, -1)
    assert len(np.unique(results.round(5), axis=0)) > 3


@pytest.mark.parametrize("changes", [{}, {"dropout": 0.1}, {"accumulate": 2}, {"norm": "pre"}])
def test_training_is_that_of_the_model_without_chunks(changes):
    accumulate = changes.pop("accumulate", 1)
    models = [small_model(attention_chunk=chunk, **changes) for chunk in (None, 2)]
    models[1].set_weights(models[0].get_weights())
    inputs, labels = small_batch()
    losses = []
    for model in models:
        model.accumulate_steps = accumulate
        rewind_dropout(model)
        model.compile("sgd", SmoothedCrossEntropy(0.1))
        losses.append([model.train_on_batch(inputs, labels) for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for one, other in zip(*(model.trainable_variables for model in models), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5)
