import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import mean_loss
from small_models import padded_ids, small_batch, small_model

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy


def example(seed=0, lengths=(3, 5, 1), width=6, classes=7):
    logits = np.random.default_rng(seed).normal(0, 3, (len(lengths), width, classes))
    return padded_ids(lengths, width, seed, classes), logits.astype("float32")


def two_batches():
    """Of very different numbers of tokens, so that a mean of means would be wrong."""
    return [example(0, (6, 6, 6)), example(1, (1, 1), width=9)]


def test_accuracy_by_hand():
    labels = np.array([[4, 5, 0, 0], [6, 0, 0, 0]])
    guesses = np.array([[4, 6, 0, 3], [6, 0, 0, 0]])  # 2 of 3 real tokens; padding is "right" too
    accuracy = TokenAccuracy()
    accuracy.update_state(labels, np.eye(7, dtype="float32")[guesses])
    assert float(accuracy.result()) == pytest.approx(2 / 3)


def test_accuracy_over_batches_is_over_all_tokens():
    accuracy, right, number = TokenAccuracy(), 0, 0
    for labels, logits in two_batches():
        accuracy.update_state(labels, logits)
        right += np.sum((logits.argmax(-1) == labels) & (labels != 0))
        number += np.count_nonzero(labels)
    assert float(accuracy.result()) == pytest.approx(right / number)


def test_perplexity_over_batches_is_exp_of_the_mean_over_all_tokens():
    perplexity, total, number = Perplexity(), 0.0, 0
    for labels, logits in two_batches():
        perplexity.update_state(labels, logits)
        tokens = np.count_nonzero(labels)
        total += mean_loss(logits, labels, 0.0) * tokens
        number += tokens
    np.testing.assert_allclose(perplexity.result(), np.exp(total / number), rtol=1e-5)


def test_perplexity_of_even_odds_is_the_number_of_classes():
    perplexity = Perplexity()
    perplexity.update_state([[3, 4, 0]], np.zeros((1, 3, 12), "float32"))
    np.testing.assert_allclose(perplexity.result(), 12.0, rtol=1e-6)


@pytest.mark.parametrize("metric", [TokenAccuracy(), Perplexity()])
def test_ten_more_pads_change_nothing(metric):
    labels, logits = example()
    results = []
    for extra in (0, 10):
        metric.reset_state()
        metric.update_state(
            np.pad(labels, [(0, 0), (0, extra)]),
            np.pad(logits, [(0, 0), (0, extra), (0, 0)], constant_values=9.0),
        )
        results.append(float(metric.result()))
    assert results[0] == pytest.approx(results[1], rel=1e-6)


@pytest.mark.parametrize("shape", ["sentences", "tokens"])
def test_sample_weights(shape):
    labels, logits = example()
    weights = np.random.default_rng(1).random(labels.shape).astype("float32")
    each = weights if shape == "tokens" else np.repeat(weights[:, :1], labels.shape[1], 1)
    given = weights if shape == "tokens" else weights[:, 0]
    real = each * (labels != 0)
    accuracy, perplexity = TokenAccuracy(), Perplexity()
    accuracy.update_state(labels, logits, given)
    perplexity.update_state(labels, logits, given)
    expected = np.sum((logits.argmax(-1) == labels) * real) / real.sum()
    np.testing.assert_allclose(accuracy.result(), expected, rtol=1e-5)
    expected = np.exp(mean_loss(logits, labels, 0.0, each))
    np.testing.assert_allclose(perplexity.result(), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits(dtype):
    labels, logits = example()
    half = tf.cast(logits, dtype)
    perplexity, accuracy = Perplexity(), TokenAccuracy()
    perplexity.update_state(labels, half)
    accuracy.update_state(labels, half)
    expected = np.exp(mean_loss(tf.cast(half, tf.float64).numpy(), labels, 0.0))
    np.testing.assert_allclose(perplexity.result(), expected, rtol=1e-5)
    assert 0 <= float(accuracy.result()) <= 1


@pytest.mark.parametrize("metric", [TokenAccuracy("mine"), Perplexity("mine")])
def test_round_trip(metric):
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(again) is type(metric)
    assert again.name == "mine" and again.get_config() == metric.get_config()


@pytest.mark.parametrize("where", ["metrics", "weighted_metrics"])
def test_in_evaluate_they_are_over_the_tokens_of_all_batches(where):
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    batches = [small_batch((7, 4, 5), (6, 6, 5)), small_batch((3,), (1,), seed=7)]
    model.compile("sgd", loss=SmoothedCrossEntropy(0.0), **{where: [Perplexity(), TokenAccuracy()]})
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            {name: tf.TensorSpec((None, None), tf.int32) for name in ("source", "target")},
            tf.TensorSpec((None, None), tf.int32),
        ),
    )
    shown = model.evaluate(data, return_dict=True, verbose=0)
    total = right = number = 0.0
    for inputs, labels in batches:
        logits = model(inputs).numpy()
        tokens = np.count_nonzero(labels)
        total += mean_loss(logits, labels, 0.0) * tokens
        right += np.sum((logits.argmax(-1) == labels) & (labels != 0))
        number += tokens
    np.testing.assert_allclose(shown["loss"], total / number, rtol=1e-5)
    np.testing.assert_allclose(shown["perplexity"], np.exp(total / number), rtol=1e-5)
    np.testing.assert_allclose(shown["token_accuracy"], right / number, rtol=1e-5)
