import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import Forward, layer_norm
from small_models import (
    POLICIES,
    functional,
    padded_ids,
    randomize,
    rewind_dropout,
    small_arguments,
    small_config,
    weights_by_path,
)

from keras_transformer.layers import Decoder, DecoderLayer, padding_mask


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built_layer(**changes):
    layer = DecoderLayer(small_arguments(**changes), name="layer_0")
    layer.build((None, None, 8), (None, None, 8))
    randomize(layer)
    return layer


def expected_layer(layer, y, memory, real):
    """The paper's layer for one sentence; `real` is the source's padding mask [S]."""
    weights = {f"decoder/layer_0/{path}": w for path, w in weights_by_path(layer).items()}
    sizes = {"d_model": 8, "d_ff": 12, "num_heads": 2, "d_k": 3, "d_v": 5}
    reference = Forward(weights, small_config(**sizes, norm=layer.arguments.norm))
    earlier = np.tril(np.ones((len(y), len(y)), bool))
    y = reference.attend(y.astype("float64"), "decoder/layer_0/self_attention", None, earlier)
    seen = np.tile(real, (len(y), 1))
    y = reference.attend(y, "decoder/layer_0/cross_attention", memory.astype("float64"), seen)
    return reference.feed_forward(y, "decoder/layer_0/feed_forward")


@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_layer_is_section_3_1(norm, attention_bias):
    layer = built_layer(norm=norm, attention_bias=attention_bias)
    source = padded_ids([7, 4], 7)
    y, memory = normal(2, 5, 8), normal(2, 7, 8, seed=1)
    result, self_weights, cross_weights = layer(
        y,
        memory,
        memory_attention_mask=padding_mask(source),
        return_attention_weights=True,
    )
    assert self_weights.shape == (2, 2, 5, 5)
    assert cross_weights.shape == (2, 2, 5, 7)
    for b in range(2):
        expected = expected_layer(layer, y[b], memory[b], source[b] != 0)
        np.testing.assert_allclose(result[b], expected, rtol=1e-5, atol=5e-6)


def test_dropping_every_sublayer_leaves_the_three_norms():
    layer = built_layer(dropout=1.0 - 1e-9)
    y = normal(2, 3, 8)
    result = layer(y, normal(2, 4, 8), training=True)
    paths, expected = weights_by_path(layer), y.astype("float64")
    for name in ("self_attention", "cross_attention", "feed_forward"):
        prefix = f"{name}_residual/normalization"
        norm = {key: paths[f"{prefix}/{key}"] for key in ("gamma", "beta")}
        expected = layer_norm(expected, norm, 1e-6)
    np.testing.assert_allclose(result, expected, atol=5e-6)


def test_altering_hidden_memory_moves_nothing():
    """Source and target lengths differ: the memory is hidden by the source's own mask."""
    decoder = Decoder(2, small_arguments())
    source = padded_ids([7, 4], 7)
    y, memory = normal(2, 5, 8), normal(2, 7, 8, seed=1)
    before = decoder(y, memory, memory_attention_mask=padding_mask(source)).numpy()
    memory[source == 0] = 100.0
    after = decoder(y, memory, memory_attention_mask=padding_mask(source)).numpy()
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_keras_implicit_mask_of_the_memory_equals_the_explicit_one(recwarn):
    source, target = padded_ids([7, 4], 7), padded_ids([5, 3], 5, seed=1)
    embedding = keras.layers.Embedding(20, 8, mask_zero=True)
    decoder = Decoder(2, small_arguments())
    implicit = functional(
        lambda target, source: decoder(embedding(target), embedding(source)),
        (None,),
        (None,),
        dtype="int32",
    )
    # The same without Keras' masks. Padding of the target is hidden by the causal mask already.
    y = keras.ops.convert_to_tensor(embedding(target).numpy())
    memory = keras.ops.convert_to_tensor(embedding(source).numpy())
    expected = decoder(y, memory, memory_attention_mask=padding_mask(source)).numpy()
    real = target != 0
    result = implicit([target, source]).numpy()
    np.testing.assert_allclose(result[real], expected[real], atol=1e-5)
    assert np.abs(decoder(y, memory).numpy()[real] - expected[real]).max() > 1e-3
    assert not [w for w in recwarn if "mask" in str(w.message)]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_stack_is_its_layers_and_a_final_norm_where_pre_norm(norm):
    decoder = Decoder(2, small_arguments(norm=norm))
    y, memory = normal(2, 5, 8), normal(2, 7, 8, seed=1)
    mask = padding_mask(padded_ids([7, 4], 7))
    decoder(y, memory)
    randomize(decoder)
    result = decoder(y, memory, memory_attention_mask=mask)
    x, all_weights = y, []
    for layer in decoder.stack:
        x, *weights = layer(x, memory, memory_attention_mask=mask, return_attention_weights=True)
        all_weights.append(weights)
    if norm == "pre":
        paths = weights_by_path(decoder)
        final = {key: paths[f"final_normalization/{key}"] for key in ("gamma", "beta")}
        x = layer_norm(x.numpy().astype("float64"), final, 1e-6)
    np.testing.assert_allclose(result, x, atol=5e-6)
    again, self_weights, cross_weights = decoder.with_attention_weights(y, memory, mask)
    np.testing.assert_allclose(again, result, atol=1e-6)
    for i, (self_seen, cross_seen) in enumerate(all_weights):
        np.testing.assert_allclose(self_weights[i], self_seen, atol=1e-6)
        np.testing.assert_allclose(cross_weights[i], cross_seen, atol=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("weights_requested", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_causality(rate, weights_requested, in_graph):
    decoder = Decoder(2, small_arguments(dropout=rate, attention_dropout=rate))
    y, memory = normal(2, 6, 8), normal(2, 7, 8, seed=1)
    decoder(y, memory)

    def call(y, training):
        if weights_requested:
            return decoder.with_attention_weights(y, memory, None, training)[0]
        return decoder(y, memory, training=training)

    run = tf.function(call) if in_graph else call
    y = tf.constant(y)
    for training in (False, True):
        for t in (0, 3):
            changed = tf.concat([y[:, : t + 1], y[:, t + 1 :] + 3.0], axis=1)
            results = []
            for inputs in (y, changed):
                rewind_dropout(decoder)
                results.append(run(inputs, training).numpy())
            before, after = results
            np.testing.assert_allclose(after[:, : t + 1], before[:, : t + 1], atol=1e-6)
            assert np.abs(after[:, t + 1 :] - before[:, t + 1 :]).max() > 1e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_step_by_step_is_the_whole_call_however_hypotheses_branch(norm):
    """Before each step hypotheses are dropped and doubled, as a search does with `ancestors`."""
    decoder = Decoder(2, small_arguments(norm=norm))
    memory, mask = normal(2, 7, 8, seed=1), padding_mask(padded_ids([7, 4], 7))
    decoder(normal(2, 5, 8), memory)
    randomize(decoder)
    memories = decoder.project_memory(keras.ops.convert_to_tensor(memory))
    caches, ancestors = decoder.empty_cache(2), np.zeros((2, 3, 0), "int32")
    random = np.random.default_rng(0)
    rows = np.arange(2)[:, None]
    histories = np.zeros((2, 3, 0, 8), "float32")  # [N, K, t, d_model]
    for t in range(5):
        parents = random.integers(0, 3, (2, 3))
        histories, ancestors = histories[rows, parents], np.asarray(ancestors)[rows, parents]
        x = normal(2, 3, 8, seed=t)
        histories = np.concatenate([histories, x[:, :, None]], axis=2)
        result, caches, ancestors = decoder.step(
            keras.ops.convert_to_tensor(x), caches, ancestors, memories, mask
        )
        for k in range(3):
            whole = decoder(histories[:, k], memory, memory_attention_mask=mask)
            np.testing.assert_allclose(result[:, k], whole[:, -1], atol=1e-5)
    assert caches[0].keys.shape == (2, 2, 5 * 3, 3)
    assert caches[1].values.shape == (2, 2, 5 * 3, 5)


@pytest.mark.parametrize("policy", POLICIES)
def test_dtypes(policy):
    decoder = Decoder(1, small_arguments(dropout=0.1), dtype=policy)
    result = decoder(normal(2, 5, 8), normal(2, 7, 8), training=True)
    assert result.dtype == decoder.compute_dtype
    assert {v.dtype for v in decoder.trainable_variables} == {"float32"}
    assert np.all(np.isfinite(keras.ops.cast(result, "float32")))
    symbolic = decoder(keras.KerasTensor((None, None, 8)), keras.KerasTensor((None, None, 8)))
    assert (symbolic.shape, symbolic.dtype) == ((None, None, 8), decoder.compute_dtype)
    assert decoder.empty_cache(1)[0].keys.dtype == decoder.compute_dtype
