import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import positional_encoding
from small_models import POLICIES

from keras_transformer.layers import LearnedPositions, SinusoidalPositions, TokenEmbedding


def expected_rows(start: int, length: int, d_model: int) -> np.ndarray:
    return np.stack([positional_encoding(p, d_model) for p in range(start, start + length)])


@pytest.mark.parametrize("d_model", [2, 8, 32, 512])
def test_sinusoids_are_section_3_5(d_model):
    x = np.random.default_rng(0).normal(size=(2, 50, d_model)).astype("float32")
    result = SinusoidalPositions()(x)
    # The angle, position * rate, is rounded to float32: half a unit in its last place each for the
    # rate and the product.
    allowed = 1e-6 + np.arange(50)[:, None] * 2.0**-23
    assert np.all(np.abs(result - (x + expected_rows(0, 50, d_model))) <= allowed)


def test_sinusoids_are_right_far_out():
    encoding = SinusoidalPositions().encoding(2048, 64).numpy()
    assert encoding.dtype == np.float32
    assert np.abs(encoding - expected_rows(0, 2048, 64)).max() < 2.5e-4


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_sinusoids_are_computed_in_float32_below_float32(policy):
    result = SinusoidalPositions(dtype=policy)(np.zeros((1, 2048, 64), "float32"))
    assert result.dtype == keras.DTypePolicy(policy).compute_dtype
    error = np.abs(keras.ops.cast(result, "float32").numpy()[0] - expected_rows(0, 2048, 64)).max()
    # Only the result is rounded: values up to 1 have 8 and 11 significant bits.
    assert error < {"mixed_bfloat16": 2.0**-8, "mixed_float16": 2.0**-10}[policy]


@pytest.mark.parametrize("layer", [SinusoidalPositions(), LearnedPositions(12)])
def test_a_later_start_continues_the_same_rows(layer):
    x = np.zeros((1, 10, 8), "float32")
    whole = layer(x).numpy()[0]
    np.testing.assert_allclose(layer(x[:, :3], start_index=6)[0], whole[6:9], atol=1e-6)

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
    def one(index):
        return layer(tf.zeros((1, 1, 8)), start_index=index)

    for index in (0, 1, 9):
        np.testing.assert_allclose(one(index)[0, 0], whole[index], atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_learned_positions_add_a_row_each_and_stop_at_the_last(policy):
    layer = LearnedPositions(4, dtype=policy)
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    result = keras.ops.cast(layer(x), "float32").numpy()
    assert layer.vectors.dtype == "float32" and layer.vectors.shape == (4, 8)
    rows = layer.vectors.numpy()[[0, 1, 2, 3, 3, 3]]
    tolerance = {"float32": 1e-6, "mixed_bfloat16": 0.04, "mixed_float16": 0.005}[policy]
    np.testing.assert_allclose(result, x + rows, atol=tolerance)


def test_learned_positions_learn():
    layer = LearnedPositions(4)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.zeros((2, 3, 8))))
    gradient = tf.convert_to_tensor(tape.gradient(loss, layer.vectors.value)).numpy()
    np.testing.assert_array_equal(gradient, np.repeat([[2.0], [2.0], [2.0], [0.0]], 8, axis=1))


@pytest.mark.parametrize("d_model", [64, 512])
@pytest.mark.parametrize("positions", [SinusoidalPositions(), LearnedPositions(64)])
def test_embedding_and_positions_are_of_like_magnitude(positions, d_model):
    def root_mean_square(x):
        return np.sqrt(np.mean(np.square(x)))

    positions = type(positions).from_config(positions.get_config())
    ids = np.random.default_rng(0).integers(1, 500, (4, 40))
    embedded = TokenEmbedding(500, d_model)(ids).numpy()
    added = positions(np.zeros_like(embedded)).numpy()
    assert 0.5 < root_mean_square(embedded) / root_mean_square(added) < 2.0
