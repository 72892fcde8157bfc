"""Probes of who can see whom, by changing what must not be seen."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.recording import recorded, to_numpy
from keras_transformer.diagnosis.sample import Sample, other_words
from keras_transformer.layers import Decoder

# Share of the logits' spread; float32 rounds at some 1e-6 of it.
LEAST_LEAK = 1e-3
# A change of ten times the memory's magnitude moves what attends to it by more than rounding.
LEAST_REACH = 1e-5
_PADDING = 10
_SENTENCES = 8
_POSITIONS = 13


def causality(model: keras.Model, sample: Sample) -> Finding:
    """Whether earlier logits move when later target words are others (section 3.2.3).

    Measured without dropout, and in training mode with the same dropout both times.

    Args:
        model: `Transformer`.
        sample: `Sample`.

    Returns:
        A `Finding`.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> from keras_transformer.diagnosis.sample import make_sample
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> causality(model, make_sample([[5, 6]], [[7, 8, 9, 10]])).ok
    True
    """
    sample = sample.first(_SENTENCES)
    half = max(1, (sample.target != 0).sum(axis=1).min() // 2)
    changed = sample.target.copy()
    changed[:, half:] = other_words(changed[:, half:], _vocabulary_size(model, "target"))
    leaks = {}
    for training in (False, True):
        before, after = (
            _logits(model, {"source": sample.source, "target": target}, training)
            for target in (sample.target, changed)
        )
        leaks["training" if training else "inference"] = _moved(before, after)[:, :half].max()
    leak = float(max(leaks.values()))
    ok = leak <= LEAST_LEAK
    return Finding(
        "causality",
        "repetition",
        bool(ok),
        {name: float(value) for name, value in leaks.items()},
        f"earlier logits move by at most {LEAST_LEAK:g} of their spread",
        "later target words do not reach earlier positions"
        if ok
        else f"other words later in the target move earlier logits by {leak:.2g} of their spread: "
        "the decoder sees the words that it is to predict",
        ""
        if ok
        else "mask the decoder's self-attention so that position t attends to positions up to t, "
        "in training too, and train anew",
    )


def source_padding(model: keras.Model, sample: Sample) -> Finding:
    """Whether the encoder's output for real words depends on the padding after them.

    Args:
        model: `Transformer`.
        sample: `Sample`.

    Returns:
        A `Finding`.
    """
    sample = sample.first(_SENTENCES)
    is_real = sample.source != 0
    wider = np.pad(sample.source, ((0, 0), (0, _PADDING)))
    before = _memory(model, {"source": sample.source, "target": sample.target})
    after = _memory(model, {"source": wider, "target": sample.target})[:, : before.shape[1]]
    moved = float(_moved(before, after)[is_real].max())
    ok = moved <= LEAST_LEAK
    return Finding(
        "source_padding",
        "repetition",
        ok,
        {"moved": moved, "padding_added": _PADDING},
        f"the encoder's output moves by at most {LEAST_LEAK:g} of its spread",
        "padding does not reach the words of the source"
        if ok
        else f"{_PADDING} more positions of padding move the encoder's output by {moved:.2g} of "
        "its spread: a translation depends on what else is in its batch",
        "" if ok else "hide padded keys from the encoder's self-attention, and train anew",
    )


def cross_attention_mask(model: keras.Model, sample: Sample) -> Finding:
    """Whether the decoder sees all real positions of the source, and no padded one.

    The encoder's output is changed at one position after the other, in a batch where the source
    is longer than the target and the other way round.

    Args:
        model: `Transformer`.
        sample: `Sample`.

    Returns:
        A `Finding`.
    """
    inputs = _unlike_lengths(sample)
    bound = (
        f"a changed real position moves the logits by more than {LEAST_REACH:g} of their spread, "
        f"a padded one by at most {LEAST_LEAK:g}"
    )
    remedy = (
        "mask the encoder-decoder attention by the padding of the source, whatever the target "
        "has, and train anew"
    )
    try:
        before = _logits(model, inputs)
    except Exception as error:  # TensorFlow says in many ways that shapes do not fit
        reason = str(error).strip().partition("\n")[0][:200]
        return Finding(
            "cross_attention_mask",
            "repetition",
            False,
            {"error": reason},
            bound,
            f"the model fails where source and target differ in length: {reason}",
            remedy,
        )
    is_real, is_target = inputs["source"] != 0, inputs["target"] != 0
    rows, places = is_real.shape

    # Each row once for each position of its source, which is changed there: [rows * places, ...].
    def change(memory):
        memory = np.array(to_numpy(memory))
        noise = np.random.default_rng(0).standard_normal(memory.shape[::2])
        number = np.arange(len(memory))
        memory[number, number % places] += 10 * memory.std() * noise
        return keras.ops.convert_to_tensor(memory)

    repeated = {name: np.repeat(ids, places, axis=0) for name, ids in inputs.items()}
    with recorded(model, {"memory": change}):
        after = _logits(model, repeated)
    moved = _moved(np.repeat(before, places, axis=0), after)
    seen = np.where(np.repeat(is_target, places, axis=0), moved, 0).max(axis=1)
    seen = seen.reshape(rows, places)
    unreached = float((seen[is_real] <= LEAST_REACH).mean())
    leak = float(seen[~is_real].max())
    ok = unreached == 0 and leak <= LEAST_LEAK
    faults = []
    if unreached:
        faults.append(f"{unreached:.0%} of the real source positions cannot be attended to")
    if leak > LEAST_LEAK:
        faults.append(f"padded ones can, and move the logits by {leak:.2g} of their spread")
    return Finding(
        "cross_attention_mask",
        "repetition",
        ok,
        {"real_positions_unreached": unreached, "padding_moves": leak},
        bound,
        "the decoder sees all words of the source and no padding" if ok else "; ".join(faults),
        "" if ok else remedy,
    )


def _unlike_lengths(sample: Sample) -> dict[str, np.ndarray]:
    """A batch whose sources are longer than its targets, and the other way round."""
    order = np.argsort(-(sample.source != 0).sum(axis=1), kind="stable")[:4]
    source, target = (ids[order, :_POSITIONS].copy() for ids in (sample.source, sample.target))
    half = len(source) // 2
    if not half:  # a single pair
        source, target, half = np.repeat(source, 2, axis=0), np.repeat(target, 2, axis=0), 1
    target[:half, 2:] = 0
    source[half:, 2:] = 0
    # Neither side ends where the other does, and the padding goes on for all.
    source, target = np.pad(source, ((0, 0), (0, 3))), np.pad(target, ((0, 0), (0, 1)))
    return {"source": source, "target": target}


def _logits(model: keras.Model, inputs: dict[str, Any], training: bool = False) -> np.ndarray:
    """Float32 logits [B, T, V]; the random seeds of a model are left as they were."""
    seeds = [(seed, seed.numpy()) for seed in model.non_trainable_variables]
    try:
        return to_numpy(model(inputs, training=training))
    finally:
        for seed, value in seeds:
            seed.assign(value)


def _memory(model: keras.Model, inputs: dict[str, Any]) -> np.ndarray:
    """What the decoder gets from the encoder, [B, S, d_model]."""
    with recorded(model) as recording:
        model(inputs, training=False)
    call = recording.of(Decoder)[0]
    memory = call.arguments[1] if len(call.arguments) > 1 else call.options["memory"]
    return to_numpy(memory)


def _moved(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Largest change at each position, in units of the spread: [B, T, d] twice -> [B, T]."""
    return np.abs(after - before).max(axis=-1) / max(float(before.std()), 1e-12)


def _vocabulary_size(model: keras.Model, side: str) -> int:
    return getattr(model, f"{side}_embedding").vocabulary_size
