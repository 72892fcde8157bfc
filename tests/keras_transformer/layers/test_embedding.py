import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import POLICIES

from keras_transformer.layers import TokenEmbedding

IDS = np.array([[5, 9, 2, 0], [7, 5, 0, 0]], "int32")


def test_rows_are_multiplied_by_sqrt_d_model_and_padding_is_zero():
    layer = TokenEmbedding(20, 16)
    result = layer(IDS).numpy()
    expected = 4.0 * layer.embeddings.numpy()[IDS] * (IDS != 0)[..., None]
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert np.all(result[IDS == 0] == 0)


def test_rows_start_with_standard_deviation_d_model_to_minus_one_half():
    layer = TokenEmbedding(2000, 64)
    layer.build()
    matrix = layer.embeddings.numpy()
    assert matrix.std() == pytest.approx(64**-0.5, rel=0.02)
    assert abs(matrix.mean()) < 1e-3


def test_reversed_it_is_the_product_by_the_same_matrix_unscaled():
    layer = TokenEmbedding(20, 16)
    layer.build()
    x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype("float32")
    expected = x.astype("float64") @ layer.embeddings.numpy().T
    np.testing.assert_allclose(layer(x, reverse=True), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.logits(x, layer.output_kernel()), expected, atol=1e-5)
    assert len(layer.variables) == 1


@pytest.mark.parametrize("policy", [*POLICIES, "bfloat16"])
def test_logits_have_a_bias_that_is_added_in_float32(policy):
    layer = TokenEmbedding(20, 16, output_bias=True, dtype=policy)
    layer.build()
    plain = TokenEmbedding(20, 16, dtype=policy)
    plain.build()
    plain.embeddings.assign(layer.embeddings)
    bias = np.linspace(-100, 3, 20).astype("float32")
    layer.output_bias.assign(bias)
    x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype("float32")
    x = tf.cast(x, layer.compute_dtype)
    added = tf.cast(layer.output_bias, tf.float32)
    logits = layer(x, reverse=True)
    assert logits.dtype == tf.float32
    np.testing.assert_allclose(logits, plain(x, reverse=True) + added, rtol=1e-6)
    np.testing.assert_allclose(added, bias, rtol=0.005)


def test_without_scale_rows_are_looked_up_as_they_are():
    layer = TokenEmbedding(20, 16, scale=False)
    expected = layer(IDS).numpy()
    np.testing.assert_array_equal(expected, layer.embeddings.numpy()[IDS] * (IDS != 0)[..., None])


def test_one_matrix_gets_the_gradient_of_both_uses():
    layer = TokenEmbedding(6, 4)
    layer.build()
    x = tf.ones((1, 1, 4))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([[3, 0]]))) + tf.reduce_sum(layer(x, reverse=True))
    gradient = tf.convert_to_tensor(tape.gradient(loss, layer.embeddings.value)).numpy()
    expected = np.ones((6, 4))  # from the logits
    expected[3] += 2.0  # sqrt(d_model), from the one real word looked up
    np.testing.assert_allclose(gradient, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_logits_are_float32_and_the_matrix_too(policy):
    layer = TokenEmbedding(20, 16, dtype=policy)
    x = layer(IDS)
    assert x.dtype == layer.compute_dtype
    logits = layer(x, reverse=True)
    assert logits.dtype == "float32"
    assert layer.embeddings.dtype == "float32"
    symbolic = layer(keras.KerasTensor((None, None), dtype="int32"))
    assert (symbolic.shape, symbolic.dtype) == ((None, None, 16), layer.compute_dtype)
    symbolic = layer(symbolic, reverse=True)
    assert (symbolic.shape, symbolic.dtype) == ((None, None, 20), "float32")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_any_integer_ids(dtype):
    layer = TokenEmbedding(20, 16)
    np.testing.assert_array_equal(layer(IDS.astype(dtype)), layer(IDS))


def test_ids_above_256_survive_half_precision():
    """Ids are integers; as bfloat16 they would be rounded to even numbers, then to fours."""
    layer = TokenEmbedding(3000, 4, dtype="mixed_bfloat16")
    ids = np.array([[257, 259, 2049, 2999]], "int32")
    result = keras.ops.cast(layer(ids), "float32")
    np.testing.assert_allclose(result, 2.0 * layer.embeddings.numpy()[ids], rtol=1e-2)


def test_used_as_the_projection_of_masked_outputs_it_warns_of_nothing(recwarn):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(20, 16, mask_zero=True)(ids)
    logits = TokenEmbedding(20, 16)(x, reverse=True)
    assert keras.Model(ids, logits)(IDS).shape == (2, 4, 20)
    assert not [w for w in recwarn if "mask" in str(w.message)]
