import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import mean_loss, smoothed_cross_entropy
from small_models import padded_ids, small_batch, small_config, weights_by_path

from keras_transformer import InputError, SmoothedCrossEntropy, build_transformer
from keras_transformer.layers import (
    Decoder,
    Encoder,
    SinusoidalPositions,
    StackArguments,
    TokenEmbedding,
    padding_mask,
)


def example(classes=7, seed=0, lengths=(3, 5, 1), width=6):
    logits = np.random.default_rng(seed).normal(0, 3, (len(lengths), width, classes))
    labels = padded_ids(lengths, width, seed, classes)
    return labels, logits.astype("float32")


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.2, 0.9])
def test_it_is_the_mean_of_minus_the_sum_of_q_log_p_over_real_tokens(smoothing):
    labels, logits = example()
    loss = SmoothedCrossEntropy(smoothing)(labels, logits)
    assert loss.dtype == tf.float32 and loss.shape == ()
    np.testing.assert_allclose(loss, mean_loss(logits, labels, smoothing), rtol=1e-6)


def test_each_token_has_its_loss_and_padding_none():
    labels, logits = example()
    losses = SmoothedCrossEntropy(0.1).call(labels, logits).numpy()
    assert np.all(losses[labels == 0] == 0)
    for b, t in zip(*np.nonzero(labels), strict=True):
        expected = smoothed_cross_entropy(logits[b, t], labels[b, t], 0.1)
        np.testing.assert_allclose(losses[b, t], expected, rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    smoothing=st.floats(0, 0.99),
    seed=st.integers(0, 2**16),
    classes=st.integers(5, 40),
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any),
    extra=st.integers(0, 10),
)
def test_any_batch_with_any_padding(smoothing, seed, classes, lengths, extra):
    labels, logits = example(classes, seed, lengths, width=8 + extra)
    loss = SmoothedCrossEntropy(smoothing)(labels, logits)
    np.testing.assert_allclose(loss, mean_loss(logits, labels, smoothing), rtol=3e-6, atol=1e-6)


def test_ten_more_pads_change_nothing():
    labels, logits = example()
    loss = SmoothedCrossEntropy(0.1)
    padded_labels = np.pad(labels, [(0, 0), (0, 10)])
    padded_logits = np.pad(logits, [(0, 0), (0, 10), (0, 0)], constant_values=50.0)
    np.testing.assert_allclose(loss(padded_labels, padded_logits), loss(labels, logits), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_that_of_the_plain_formula(smoothing, weighted):
    labels, logits = example()
    sample_weight = np.linspace(0.1, 2.0, labels.size).reshape(labels.shape) if weighted else None

    def plain_loss(logits):
        q = (1 - smoothing) * tf.one_hot(labels, 7, dtype=tf.float64) + smoothing / 7
        losses = -tf.reduce_sum(q * tf.nn.log_softmax(logits), axis=-1)
        weights = (labels != 0) * (1.0 if sample_weight is None else sample_weight)
        return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)

    def gradient(function, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = 3.0 * function(logits)
        return tape.gradient(loss, logits).numpy()

    loss = SmoothedCrossEntropy(smoothing)
    result = gradient(lambda x: loss(labels, x, sample_weight), tf.constant(logits))
    expected = gradient(plain_loss, tf.constant(logits, tf.float64))
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert np.all(result[labels == 0] == 0)


@pytest.mark.parametrize("shape", ["sentences", "tokens"])
def test_sample_weights_weigh_the_mean(shape):
    labels, logits = example()
    weights = np.random.default_rng(1).random(labels.shape).astype("float32")
    if shape == "sentences":
        weights = weights[:, 0]
    loss = SmoothedCrossEntropy(0.1)(labels, logits, weights)
    each = weights if shape == "tokens" else np.repeat(weights[:, None], labels.shape[1], 1)
    np.testing.assert_allclose(loss, mean_loss(logits, labels, 0.1, each), rtol=1e-6)


def test_a_batch_of_nothing_but_padding_has_loss_0_and_no_gradient():
    logits = tf.constant(example()[1])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = SmoothedCrossEntropy(0.1)(np.zeros((3, 6), "int32"), logits)
    assert float(loss) == 0.0
    assert np.all(tape.gradient(loss, logits).numpy() == 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(dtype):
    labels, logits = example(classes=3000)
    half = tf.cast(3.0 * logits, dtype)
    with tf.GradientTape() as tape:
        tape.watch(half)
        loss = SmoothedCrossEntropy(0.1)(labels, half)
    assert loss.dtype == tf.float32
    expected = mean_loss(tf.cast(half, tf.float64).numpy(), labels, 0.1)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    gradient = tape.gradient(loss, half)
    assert gradient.dtype == dtype and np.all(np.isfinite(tf.cast(gradient, tf.float32)))


def test_extreme_logits_stay_finite():
    logits = np.array([[[1e4, -1e4, 0.0, 0.0], [-3e38, 0.0, 0.0, 0.0]]], "float32")
    loss = SmoothedCrossEntropy(0.0)([[2, 1]], logits)
    np.testing.assert_allclose(loss, (1e4 + np.log(3)) / 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_labels_of_any_dtype(dtype):
    labels, logits = example()
    loss = SmoothedCrossEntropy(0.1)
    np.testing.assert_array_equal(loss(labels.astype(dtype), logits), loss(labels, logits))


def test_the_other_reductions_of_keras():
    labels, logits = example()
    mean = mean_loss(logits, labels, 0.1)
    total = SmoothedCrossEntropy(0.1, reduction="sum")(labels, logits)
    np.testing.assert_allclose(total, mean * np.count_nonzero(labels), rtol=1e-6)
    each = SmoothedCrossEntropy(0.1, reduction=None)(labels, logits)
    np.testing.assert_allclose(np.sum(each), total, rtol=1e-6)
    assert each.shape == labels.shape


def test_round_trip():
    loss = SmoothedCrossEntropy(0.3, reduction="sum", name="mine")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is SmoothedCrossEntropy
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5])
def test_a_smoothing_outside_0_to_1_is_refused(value):
    message = rf"^label_smoothing must be at least 0 and below 1\. Received: {value}$"
    with pytest.raises(InputError, match=message):
        SmoothedCrossEntropy(value)


def plain_model(config) -> keras.Model:
    """Someone's own functional model, of class `keras.Model`, made with our layers."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    arguments = StackArguments.of(config)
    embedding = TokenEmbedding(config.vocabulary_size, config.d_model, name="target_embedding")
    mask = padding_mask(source)
    memory = Encoder(config.num_encoder_layers, arguments, name="encoder")(
        SinusoidalPositions()(embedding(source)), attention_mask=mask
    )
    y = Decoder(config.num_decoder_layers, arguments, name="decoder")(
        SinusoidalPositions()(embedding(target)), memory, memory_attention_mask=mask
    )
    return keras.Model({"source": source, "target": target}, embedding(y, reverse=True))


def test_a_plain_model_trains_and_shows_the_same_loss_as_the_transformer():
    config = small_config(num_encoder_layers=1, num_decoder_layers=1)
    transformer, plain = build_transformer(config), plain_model(config)
    start = weights_by_path(transformer)
    for variable in plain.trainable_variables:
        variable.assign(start[variable.path])
    inputs, labels = small_batch()
    batch = tf.data.Dataset.from_tensors((inputs, labels))
    shown = []
    for model in (transformer, plain):
        model.compile(keras.optimizers.SGD(0.5), loss=SmoothedCrossEntropy(0.1))
        shown.append(model.fit(batch, epochs=3, verbose=0).history["loss"])
        np.testing.assert_allclose(
            model.evaluate(batch, verbose=0),
            mean_loss(model.predict(batch, verbose=0), labels, 0.1),
            rtol=1e-5,
        )
    np.testing.assert_allclose(shown[0], shown[1], rtol=1e-5)
    assert shown[0][2] < shown[0][0]
    trained = weights_by_path(transformer)
    for path, weight in weights_by_path(plain).items():
        np.testing.assert_allclose(weight, trained[path], atol=1e-5, err_msg=path)


def test_a_model_with_keras_masks_shows_the_token_mean(recwarn):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(20, 8, mask_zero=True)(ids)
    model = keras.Model(ids, TokenEmbedding(20, 8)(x, reverse=True))
    model.compile("sgd", loss=SmoothedCrossEntropy(0.1))
    labels = small_batch()[1]
    expected = mean_loss(model(labels).numpy(), labels, 0.1)
    history = model.fit(labels, labels, batch_size=len(labels), verbose=0).history
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)
    assert not [w for w in recwarn if "mask" in str(w.message)]
