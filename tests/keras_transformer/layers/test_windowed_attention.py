"""Attention within a window equals whole attention with all else masked, and costs less."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import POLICIES, padded_ids, result_and_gradients, small_batch, small_model

from keras_transformer import InputError, SmoothedCrossEntropy
from keras_transformer.layers import MultiHeadAttention, Window, causal_mask, padding_mask
from keras_transformer.layers.windowed_attention import windowed_attention


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@settings(deadline=None, max_examples=30)
@given(
    length=st.integers(1, 70),
    window=st.integers(1, 80),
    compatibility=st.sampled_from(["scaled_dot_product", "additive"]),
    causal=st.booleans(),
    masked=st.booleans(),
    in_graph=st.booleans(),
)
def test_equal_to_whole_attention_under_a_mask(
    length, window, compatibility, causal, masked, in_graph
):
    layer = MultiHeadAttention(2, 4, 3, compatibility=compatibility, window=window)
    x = normal(2, length, 8)
    layer(x, x)
    mask = padding_mask(padded_ids([length, (length + 1) // 2], length)) if masked else None
    arguments = {"causal": causal, "attention_mask": mask}
    found = result_and_gradients(layer, x, in_graph, **arguments)
    expected = result_and_gradients(layer, x, **arguments, return_attention_weights=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_positions_outside_the_window_move_nothing(causal):
    layer = MultiHeadAttention(2, 4, window=5)
    x = normal(1, 40, 8)
    before = layer(x, x, causal=causal).numpy()
    changed = x.copy()
    changed[0, 20] += 5.0
    moved = np.abs(layer(changed, changed, causal=causal).numpy() - before).max(-1)[0] > 1e-6
    assert np.flatnonzero(moved).tolist() == list(range(20, 25) if causal else range(18, 23))


def test_scores_are_as_many_as_the_window_is_long():
    """Of each query no more keys are looked at than three blocks hold, however long the text."""
    shapes = []

    def attend(query, key, value, mask):
        shapes.append((query.shape, key.shape))
        return value[..., : query.shape[-2], :]

    for length in (64, 640):
        x = tf.zeros([1, 1, length, 4])
        windowed_attention(attend, Window.of(33, causal=False), x, x, x)
        query, key = shapes[-1]
        assert query[2] * query[3] == length and key[3] == 3 * 16


def test_a_mask_with_other_keys_for_each_query_is_refused():
    layer = MultiHeadAttention(2, 4, window=5)
    x = normal(1, 6, 8)
    with pytest.raises(InputError, match=r"attention_mask .* Received: shape \(1, 1, 6, 6\)"):
        layer(x, x, attention_mask=causal_mask(6))


def test_one_mask_value_may_stand_for_all_keys():
    layer = MultiHeadAttention(2, 4, window=3)
    x = normal(2, 6, 8)
    found = layer(x, x, attention_mask=[[[[True]]], [[[False]]]]).numpy()
    np.testing.assert_allclose(found[0], layer(x, x).numpy()[0], atol=1e-6)
    assert np.all(found[1] == 0)


def test_a_window_over_another_sequence_is_refused():
    layer = MultiHeadAttention(2, 4, window=3)
    with pytest.raises(InputError, match="of one length. Received: 5 and 7"):
        layer(normal(2, 5, 8), normal(2, 7, 8))


@pytest.mark.parametrize("policy", POLICIES)
def test_training_in_every_precision(policy):
    model = small_model(dtype=policy, attention_window=3)
    model.compile("adam", SmoothedCrossEntropy(0.1))
    inputs, labels = small_batch(source_lengths=(40, 20, 33), target_lengths=(30, 25, 28))
    losses = [model.train_on_batch(inputs, labels)[0] for _ in range(10)]
    assert np.all(np.isfinite(losses)) and losses[-1] < losses[0]
