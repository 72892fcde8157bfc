import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import multi_head_attention
from small_models import POLICIES, functional, randomize, weights_by_path

from keras_transformer.errors import InputError
from keras_transformer.layers import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def random_mask(*shape, seed=3):
    return np.random.default_rng(seed).random(shape) < 0.6


def built_attention(num_heads=3, d_k=4, d_v=5, d_model=8, **arguments):
    layer = MultiHeadAttention(num_heads, d_k, d_v, **arguments)
    layer(normal(1, 2, d_model), normal(1, 2, d_model))
    randomize(layer)
    return layer


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize(("d_k", "d_v"), [(4, 4), (3, 5), (6, 2)])
def test_multi_head_attention_is_section_3_2_2(d_k, d_v, use_bias):
    layer = built_attention(d_k=d_k, d_v=d_v, use_bias=use_bias)
    query, memory, mask = normal(2, 5, 8), normal(2, 7, 8, seed=1), random_mask(2, 1, 5, 7)
    result, weights = layer(query, memory, attention_mask=mask, return_attention_weights=True)
    assert len(layer.trainable_variables) == (8 if use_bias else 4)
    for b in range(2):
        expected = multi_head_attention(
            query[b], memory[b], weights_by_path(layer), 3, allowed=mask[b, 0]
        )
        np.testing.assert_allclose(result[b], expected[0], rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(weights[b], expected[1], rtol=1e-5, atol=1e-6)


def test_result_has_the_width_of_the_query_whatever_the_memory_has():
    layer = MultiHeadAttention(num_heads=2, d_k=3)
    result, weights = layer(normal(2, 5, 8), normal(2, 7, 6), return_attention_weights=True)
    assert result.shape == (2, 5, 8)
    assert weights.shape == (2, 2, 5, 7)
    assert layer.d_v == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_a_query_without_keys_gives_zeros_forward_and_backward(policy):
    layer = MultiHeadAttention(2, 4, dtype=policy)
    query, memory = tf.constant(normal(2, 3, 8)), tf.constant(normal(2, 5, 8, seed=1))
    mask = np.ones((2, 1, 3, 5), bool)
    mask[0] = False  # a sentence without a real token
    mask[1, :, 1] = False  # one query without a key
    with tf.GradientTape() as tape:
        tape.watch([query, memory])
        result, weights = layer(query, memory, attention_mask=mask, return_attention_weights=True)
        loss = tf.reduce_sum(tf.cast(result, tf.float32) ** 2)
    gradients = tape.gradient(loss, [query, memory, *(v.value for v in layer.trainable_variables)])
    result, weights = keras.ops.cast(result, "float32").numpy(), weights.numpy()
    assert np.all(result[0] == 0) and np.all(result[1, 1] == 0)
    assert np.all(weights[0] == 0) and np.all(weights[1, :, 1] == 0)
    assert np.all(np.abs(result[1, [0, 2]]).sum(-1) > 0)
    for gradient in gradients:
        assert np.all(np.isfinite(keras.ops.cast(gradient, "float32").numpy()))
    assert np.all(gradients[0].numpy()[0] == 0) and np.all(gradients[1].numpy()[0] == 0)
    assert np.any(gradients[1].numpy()[1] != 0)


def test_altering_hidden_memory_moves_nothing():
    layer = built_attention()
    query, memory = normal(2, 5, 8), normal(2, 7, 8, seed=1)
    mask = padding_mask(np.array([[5, 6, 7, 8, 0, 0, 0], [4, 4, 4, 4, 4, 4, 2]]))
    expected = layer(query, memory, attention_mask=mask).numpy()
    memory[0, 4:] = 1000.0 * normal(3, 8, seed=2)
    np.testing.assert_array_equal(layer(query, memory, attention_mask=mask), expected)


@pytest.mark.parametrize("weights_requested", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_dropout_never_drops_the_mask(training, weights_requested):
    layer = MultiHeadAttention(2, 4, dropout=0.1)

    def attend(x):
        layer._weights_dropout.seed_generator.state.assign([1, 0])
        result = layer(
            x,
            x,
            attention_mask=causal_mask(6),
            training=training,
            return_attention_weights=weights_requested,
        )
        return result[0].numpy() if weights_requested else result.numpy()

    x = normal(2, 6, 8)
    layer(x, x)
    before = attend(x)
    for t in range(5):
        changed = x.copy()
        changed[:, t + 1 :] += 3.0
        after = attend(changed)
        np.testing.assert_allclose(after[:, : t + 1], before[:, : t + 1], atol=1e-6)
        assert np.abs(after[:, t + 1 :] - before[:, t + 1 :]).max() > 1e-2


def test_dropout_acts_on_the_weights_in_training_only():
    layer = MultiHeadAttention(2, 4, dropout=0.5)
    plain = MultiHeadAttention(2, 4)
    x = normal(2, 6, 8)
    layer(x, x), plain(x, x)
    plain.set_weights([v.numpy() for v in layer.trainable_variables])
    np.testing.assert_array_equal(layer(x, x, training=False), plain(x, x))
    assert np.abs(layer(x, x, training=True).numpy() - plain(x, x).numpy()).max() > 1e-2
    _, weights = layer(x, x, training=True, return_attention_weights=True)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1.0, rtol=1e-5)  # those before dropout


def test_a_rate_that_rounds_to_0_drops_nothing():
    layer, x = MultiHeadAttention(2, 4, dropout=1e-6), normal(2, 6, 8)
    np.testing.assert_array_equal(layer(x, x, training=True), layer(x, x))


def test_attend_and_project_memory_are_the_call_in_two_parts():
    layer = built_attention()
    query, memory, mask = normal(2, 5, 8), normal(2, 7, 8, seed=1), random_mask(2, 1, 5, 7)
    whole = layer(query, memory, attention_mask=mask, return_attention_weights=True)
    keys, values = layer.project_memory(memory)
    assert keys.shape == (2, 3, 7, 4) and values.shape == (2, 3, 7, 5)
    parts = layer.attend(query, keys, values, mask)
    np.testing.assert_allclose(parts[0], whole[0], atol=1e-6)
    np.testing.assert_allclose(parts[1], whole[1], atol=1e-6)
    step = layer.attend_step(query, keys, values, mask)
    np.testing.assert_allclose(step, whole[0], atol=1e-6)


def test_glorot_takes_the_true_fans_of_the_whole_projection():
    layer = MultiHeadAttention(num_heads=8, d_k=16, d_v=32)
    x = np.zeros((1, 1, 64), "float32")
    layer(x, x)
    fans = {"query": (64, 128), "key": (64, 128), "value": (64, 256), "output": (256, 64)}
    for path, kernel in weights_by_path(layer).items():
        fan_in, fan_out = fans[path.split("/")[0]]
        assert kernel.shape == (fan_in, fan_out)
        limit = np.sqrt(6 / (fan_in + fan_out))
        assert 0.98 * limit < np.abs(kernel).max() <= limit
        assert kernel.std() == pytest.approx(np.sqrt(2 / (fan_in + fan_out)), rel=0.05)


def test_keras_implicit_mask_equals_the_explicit_one(recwarn):
    ids = np.array([[3, 4, 0, 0], [5, 6, 7, 2]], "int32")
    embedding = keras.layers.Embedding(10, 8, mask_zero=True)
    layer = MultiHeadAttention(2, 4)
    implicit = functional(lambda i: layer(embedding(i), embedding(i)), (None,), dtype="int32")
    x = keras.ops.convert_to_tensor(embedding(ids).numpy())
    expected, weights = layer(x, x, attention_mask=padding_mask(ids), return_attention_weights=True)
    np.testing.assert_allclose(implicit(ids), expected, atol=1e-6)
    assert np.all(weights.numpy()[0, :, :, 2:] == 0)
    assert np.abs(layer(x, x).numpy() - expected.numpy()).max() > 1e-3
    assert not [w for w in recwarn if "mask" in str(w.message)]


def test_implicit_and_explicit_masks_are_merged():
    ids = np.array([[3, 4, 0, 0]], "int32")
    x = keras.layers.Embedding(10, 8, mask_zero=True)(ids)
    layer = MultiHeadAttention(2, 4)
    _, weights = layer(x, x, attention_mask=causal_mask(4), return_attention_weights=True)
    allowed = np.tril(np.ones((4, 4), bool)) & (np.arange(4) < 2)
    assert np.all((weights.numpy() > 0) == allowed)


@pytest.mark.parametrize("name", ["num_heads", "d_k", "d_v"])
def test_a_size_below_1_is_refused_by_name(name):
    with pytest.raises(InputError, match=rf"^{name} must be an integer .* Received: 0$"):
        MultiHeadAttention(**{"num_heads": 2, "d_k": 4, "d_v": 4, name: 0})


@pytest.mark.parametrize("policy", POLICIES)
def test_variables_are_float32_and_results_of_the_compute_dtype(policy):
    layer = MultiHeadAttention(2, 4, dtype=policy)
    result, weights = layer(normal(1, 3, 8), normal(1, 5, 8), return_attention_weights=True)
    assert result.dtype == keras.DTypePolicy(policy).compute_dtype
    assert weights.dtype == "float32"
    assert {v.dtype for v in layer.trainable_variables} == {"float32"}
    symbolic = layer(
        keras.KerasTensor((None, None, 8)),
        keras.KerasTensor((None, None, 8)),
        return_attention_weights=True,
    )
    assert [x.dtype for x in symbolic] == [result.dtype, weights.dtype]
    assert symbolic[1].shape == (None, 2, None, None)
