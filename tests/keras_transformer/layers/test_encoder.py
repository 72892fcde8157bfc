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

from keras_transformer.layers import Encoder, EncoderLayer, causal_mask, padding_mask


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built_layer(**changes):
    layer = EncoderLayer(small_arguments(**changes), name="layer_0")
    layer.build((None, None, 8))
    randomize(layer)
    return layer


def expected_layer(layer, x, real):
    """The paper's layer for one sentence [S, d_model]; `real` is its padding mask [S]."""
    weights = {f"encoder/layer_0/{path}": w for path, w in weights_by_path(layer).items()}
    sizes = {"d_model": 8, "d_ff": 12, "num_heads": 2, "d_k": 3, "d_v": 5}
    reference = Forward(weights, small_config(**sizes, norm=layer.arguments.norm))
    allowed = np.tile(real, (len(x), 1))
    x = reference.attend(x.astype("float64"), "encoder/layer_0/self_attention", None, allowed)
    return reference.feed_forward(x, "encoder/layer_0/feed_forward")


@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_layer_is_section_3_1(norm, attention_bias):
    layer = built_layer(norm=norm, attention_bias=attention_bias)
    ids = padded_ids([6, 4], 6)
    x = normal(2, 6, 8)
    mask = padding_mask(ids)
    result, weights = layer(x, attention_mask=mask, return_attention_weights=True)
    assert weights.shape == (2, 2, 6, 6)
    for b in range(2):
        expected = expected_layer(layer, x[b], ids[b] != 0)
        np.testing.assert_allclose(result[b], expected, rtol=1e-5, atol=5e-6)


def test_dropping_every_sublayer_leaves_the_two_norms():
    layer = built_layer(dropout=1.0 - 1e-9)
    x = normal(2, 3, 8)
    result = layer(x, training=True)
    expected = x.astype("float64")
    for name in ("self_attention_residual", "feed_forward_residual"):
        paths = weights_by_path(layer)
        norm = {key: paths[f"{name}/normalization/{key}"] for key in ("gamma", "beta")}
        expected = layer_norm(expected, norm, 1e-6)
    np.testing.assert_allclose(result, expected, atol=5e-6)


def test_altering_padded_positions_moves_no_real_one():
    layer = built_layer()
    ids = padded_ids([6, 4], 6)
    x = normal(2, 6, 8)
    before = layer(x, attention_mask=padding_mask(ids)).numpy()
    x[ids == 0] = 100.0
    after = layer(x, attention_mask=padding_mask(ids)).numpy()
    np.testing.assert_allclose(after[ids != 0], before[ids != 0], atol=1e-6)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_keras_implicit_mask_equals_the_explicit_one_through_two_layers(norm, recwarn):
    ids = padded_ids([6, 4], 6)
    embedding = keras.layers.Embedding(20, 8, mask_zero=True)
    first, second = (EncoderLayer(small_arguments(norm=norm)) for _ in range(2))
    implicit = functional(lambda ids: second(first(embedding(ids))), (None,), dtype="int32")
    randomize(implicit)
    x = keras.ops.convert_to_tensor(embedding(ids).numpy())  # without Keras' mask
    mask = padding_mask(ids)
    expected = second(first(x, attention_mask=mask), attention_mask=mask).numpy()
    np.testing.assert_allclose(implicit(ids).numpy()[ids != 0], expected[ids != 0], atol=1e-5)
    np.testing.assert_allclose(
        implicit.predict(ids, verbose=0)[ids != 0], expected[ids != 0], atol=1e-5
    )
    unmasked = second(first(x)).numpy()
    assert np.abs(unmasked[ids != 0] - expected[ids != 0]).max() > 1e-3
    assert not [w for w in recwarn if "mask" in str(w.message)]


def test_the_stack_passes_keras_implicit_mask_to_every_layer(recwarn):
    ids = padded_ids([6, 4], 6)
    embedding = keras.layers.Embedding(20, 8, mask_zero=True)
    encoder = Encoder(3, small_arguments())
    implicit = functional(lambda ids: encoder(embedding(ids)), (None,), dtype="int32")
    x = keras.ops.convert_to_tensor(embedding(ids).numpy())
    expected = encoder(x, attention_mask=padding_mask(ids)).numpy()
    np.testing.assert_allclose(implicit(ids).numpy()[ids != 0], expected[ids != 0], atol=1e-5)
    assert not [w for w in recwarn if "mask" in str(w.message)]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_stack_is_its_layers_and_a_final_norm_where_pre_norm(norm):
    encoder = Encoder(3, small_arguments(norm=norm))
    x, mask = normal(2, 6, 8), padding_mask(padded_ids([6, 4], 6))
    encoder(x)
    randomize(encoder)
    result = encoder(x, attention_mask=mask)
    y, all_weights = x, []
    for layer in encoder.stack:
        y, weights = layer(y, attention_mask=mask, return_attention_weights=True)
        all_weights.append(weights)
    if norm == "pre":
        paths = weights_by_path(encoder)
        final = {key: paths[f"final_normalization/{key}"] for key in ("gamma", "beta")}
        y = layer_norm(y.numpy().astype("float64"), final, 1e-6)
    else:
        assert encoder.final_normalization is None
    np.testing.assert_allclose(result, y, atol=5e-6)
    again, on_request = encoder.with_attention_weights(x, mask)
    np.testing.assert_allclose(again, result, atol=1e-6)
    assert len(on_request) == 3
    for asked, seen in zip(on_request, all_weights, strict=True):
        np.testing.assert_allclose(asked, seen, atol=1e-6)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_made_causal_it_is_causal_whatever_the_dropout(training, in_graph):
    """A decoder-only model is this stack under a causal mask."""
    encoder = Encoder(2, small_arguments(dropout=0.1, attention_dropout=0.1))

    def call(x):
        return encoder(x, attention_mask=causal_mask(6), training=training)

    run = tf.function(call) if in_graph else call
    x = normal(2, 6, 8)
    run(x)
    for t in (0, 3):
        changed = x.copy()
        changed[:, t + 1 :] += 3.0
        results = []
        for inputs in (x, changed):
            rewind_dropout(encoder)
            results.append(run(inputs).numpy()[:, : t + 1])
        np.testing.assert_allclose(*results, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_dtypes(policy):
    encoder = Encoder(1, small_arguments(dropout=0.1), dtype=policy)
    result = encoder(normal(2, 6, 8), training=True)
    assert result.dtype == encoder.compute_dtype
    assert {v.dtype for v in encoder.trainable_variables} == {"float32"}
    assert np.all(np.isfinite(keras.ops.cast(result, "float32")))
    symbolic = encoder(keras.KerasTensor((None, None, 8)))
    assert (symbolic.shape, symbolic.dtype) == ((None, None, 8), encoder.compute_dtype)
