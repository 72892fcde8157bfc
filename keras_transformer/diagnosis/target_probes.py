"""Probes of what is learned from: the shift of the target, the loss, the end of a sentence."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.recording import to_numpy
from keras_transformer.diagnosis.sample import Sample
from keras_transformer.forced_decoding import label_log_probabilities
from keras_transformer.tokenizer import BOS_ID, EOS_ID

MOST_COPIED = 0.3
# Before it is trained a model of one matrix leans to the word that it is given, but is not sure.
MOST_COPY_PERPLEXITY = 4.0
_SENTENCES = 64


def perplexity(model: keras.Model, sample: Sample) -> float:
    """Perplexity of a sample, unsmoothed: how well trained the model is.

    Args:
        model: `Transformer`.
        sample: `Sample`.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> from keras_transformer.diagnosis.sample import make_sample
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> 20 < perplexity(model, make_sample([[5, 6]], [[7]])) < 2000
    True
    """
    losses = -_log_probabilities(model, sample)
    return float(np.exp(min(losses[sample.labels != 0].mean(), 50.0)))


def target_shift(
    model: keras.Model, sample: Sample, batch: tuple[dict[str, np.ndarray], np.ndarray] | None
) -> Finding:
    """Whether the model predicts the next word or copies the one that it is given.

    Args:
        model: `Transformer`.
        sample: `Sample`, shifted as it should be.
        batch: inputs and labels as training gets them, or None where they are not known.

    Returns:
        A `Finding`.
    """
    sample = sample.first(_SENTENCES)
    is_word = (sample.target >= 4) & (sample.labels != 0)
    logits = to_numpy(model(sample.inputs, training=False))[is_word]  # [M, V]
    given = sample.target[is_word]
    copied = float((logits.argmax(axis=-1) == given).mean()) if len(given) else 0.0
    copy_perplexity = _perplexity_of(logits, given)
    measured: dict[str, Any] = {
        "copied": copied,
        "copy_perplexity": copy_perplexity,
        "batch_is_shifted": None,
    }
    faults = []
    if copied > MOST_COPIED and copy_perplexity < MOST_COPY_PERPLEXITY:
        faults.append(f"at {copied:.0%} of the positions the likeliest word is the one just given")
    if batch is not None:
        inputs, labels = batch
        measured["batch_is_shifted"] = _is_shifted(np.asarray(inputs["target"]), np.asarray(labels))
        if not measured["batch_is_shifted"]:
            faults.append("the target of a training batch is not its labels one place later")
    return Finding(
        "target_shift",
        "repetition",
        not faults,
        measured,
        f"the model is not sure (perplexity under {MOST_COPY_PERPLEXITY:g}) of the word just given "
        f"at over {MOST_COPIED:.0%} of the positions, and targets are labels shifted by one",
        "; ".join(faults) or f"the model predicts the next word; {copied:.0%} are copies",
        "give the decoder the start id and the words before, labels[:, :-1], and train anew"
        if faults
        else "",
    )


def padding_loss(loss: Any, vocabulary_size: int = 50) -> Finding:
    """Whether padding is without loss and gradient, and the loss what section 5.4 says.

    Args:
        loss: `keras.Loss` that a model was compiled with.
        vocabulary_size: int. Of the logits that it is tried on.

    Returns:
        A `Finding`.

    Example:

    >>> from keras_transformer import SmoothedCrossEntropy
    >>> padding_loss(SmoothedCrossEntropy(0.1)).ok
    True
    """
    random = np.random.default_rng(0)
    lengths = np.array([7, 3, 5])
    labels = random.integers(1, vocabulary_size, (3, 7)) * (np.arange(7) < lengths[:, None])
    logits = random.normal(0, 2, (3, 7, vocabulary_size)).astype("float32")
    wider_labels = np.pad(labels, ((0, 0), (0, 10)))
    wider_logits = random.normal(0, 2, (3, 17, vocabulary_size)).astype("float32")
    wider_logits[:, :7] = logits
    expected = _smoothed_loss(labels, logits, float(getattr(loss, "label_smoothing", 0.0)))
    found, gradient = _loss_and_gradient(loss, wider_labels, wider_logits)
    narrow, _ = _loss_and_gradient(loss, labels, logits)
    on_padding = float(np.abs(gradient[wider_labels == 0]).max() / np.abs(gradient).max())
    by_padding, by_paper = abs(found / narrow - 1), abs(narrow / expected - 1)
    faults = []
    if by_padding > 1e-4:
        faults.append(f"10 more positions of padding change the loss by {by_padding:.1%}")
    if on_padding > 1e-6:
        faults.append("padding has a gradient")
    if by_paper > 1e-4:
        faults.append(f"the loss is {narrow:.4f} where the paper's is {expected:.4f}")
    return Finding(
        "padding_loss",
        "repetition",
        not faults,
        {
            "loss": narrow,
            "expected": expected,
            "changed_by_padding": by_padding,
            "gradient_on_padding": on_padding,
        },
        "the loss is that of NumPy to 0.01 %, whatever the padding; no gradient on padding",
        "; ".join(faults) or "padding has neither loss nor gradient",
        "leave positions whose label is padding out of the sum and of the count, label smoothing "
        "included, and train anew"
        if faults
        else "",
    )


def end_probability(model: keras.Model, sample: Sample) -> float:
    """Mean probability of the end id after a whole reference.

    Args:
        model: `Transformer`.
        sample: `Sample`.
    """
    sample = sample.first(_SENTENCES)
    probabilities = np.exp(_log_probabilities(model, sample))
    return float(probabilities[sample.labels == EOS_ID].mean())


def _log_probabilities(model: keras.Model, sample: Sample) -> np.ndarray:
    rows = []
    for start in range(0, len(sample.source), _SENTENCES):
        part = Sample(*(ids[start : start + _SENTENCES] for ids in sample))
        rows.append(label_log_probabilities(model, *map(tf.constant, part)).numpy())
    return np.concatenate(rows)


def _perplexity_of(logits: np.ndarray, words: np.ndarray) -> float:
    """Of logits [M, V], that they give to words [M]."""
    if not len(words):
        return float(np.exp(50.0))
    normalizer = np.logaddexp.reduce(logits.astype(np.float64), axis=-1)
    losses = normalizer - logits[np.arange(len(words)), words]
    return float(np.exp(min(losses.mean(), 50.0)))


def _is_shifted(target: np.ndarray, labels: np.ndarray) -> bool:
    before = np.where(labels[:, :-1] == EOS_ID, 0, labels[:, :-1])
    is_real = labels[:, 1:] != 0
    starts = bool((target[:, 0] == BOS_ID).all())
    return starts and bool((target[:, 1:] == before)[is_real].all())


def _smoothed_loss(labels: np.ndarray, logits: np.ndarray, smoothing: float) -> float:
    """The mean over real tokens, written as the paper's words have it."""
    z = logits.astype(np.float64)
    log_p = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    smoothed = np.full(z.shape, smoothing / z.shape[-1])
    smoothed += (1 - smoothing) * np.eye(z.shape[-1])[labels]
    losses = -(smoothed * log_p).sum(axis=-1)
    return float(losses[labels != 0].mean())


def _loss_and_gradient(loss: Any, labels: np.ndarray, logits: np.ndarray):
    """The mean loss as the training step takes it, and its gradient by the logits."""
    logits = tf.constant(logits)
    labels = tf.constant(labels, tf.int32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        if hasattr(loss, "token_weights"):
            weights = loss.token_weights(labels)
            value = tf.reduce_sum(loss.call(labels, logits) * weights) / tf.reduce_sum(weights)
        else:
            value = tf.reduce_mean(loss(labels, logits))
    return float(value), tape.gradient(value, logits).numpy()
