"""Probes of word order: positions beside embeddings, where they come in, and what they do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_transformer.diagnosis.attention_probes import Weights
from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.recording import Recording, recorded, to_numpy
from keras_transformer.diagnosis.sample import Sample
from keras_transformer.layers import Decoder, Encoder

# Root mean square of the embeddings over that of the positions, as both enter a stack. The
# paper's start at 1.4, at 0.06 (d_model 512) where sqrt(d_model) is forgotten.
MAGNITUDES = (0.3, 10.0)
PLACES = (0.9, 1.1)
MOST_LEFT_OVER = 0.02
# Of the spread between words; without positions float32 rounds at some 1e-6 of it.
LEAST_ORDER = 0.005
LEAST_DISTANCE = 0.03
_SENTENCES = 32
_FAR = 8


def input_parts(model: keras.Model, sample: Sample) -> dict[str, dict[str, float]]:
    """What enters each stack, as a sum of embeddings and positional encodings.

    The input of a stack is explained by least squares as a * embedding + b * encoding, where the
    encoding is computed anew.

    Args:
        model: `Transformer`.
        sample: `Sample`.

    Returns:
        A dict for `encoder` and `decoder` each: `embedding` and `positions`, the root mean squares
        of the two parts (of a whole encoding, where none is there), `times`, how often the
        encoding is in the sum, `left_over`, the share that neither explains, and `first_query`,
        how far the query of the first attention is from it.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> from keras_transformer.diagnosis.sample import make_sample
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> parts = input_parts(model, make_sample([[5, 6]], [[7, 8]]))
    >>> round(parts["encoder"]["times"], 3), parts["encoder"]["left_over"] < 1e-3
    (1.0, True)
    """
    sample = sample.first(_SENTENCES)
    with recorded(model) as recording:
        model(sample.inputs, training=False)
    return {
        "encoder": _parts(model, recording, Encoder, sample.source, "source"),
        "decoder": _parts(model, recording, Decoder, sample.target, "target"),
    }


def embedding_magnitude(parts: dict[str, dict[str, float]]) -> Finding:
    """Whether embeddings and positions are of like magnitude (section 3.4).

    Args:
        parts: what `input_parts` returns.

    Returns:
        A `Finding`.
    """
    ratios = {side: each["embedding"] / each["positions"] for side, each in parts.items()}
    low, high = MAGNITUDES
    worst = max(ratios, key=lambda side: abs(np.log(max(ratios[side], 1e-9))))
    ok = all(low <= ratio <= high for ratio in ratios.values())
    return Finding(
        "embedding_magnitude",
        "order",
        ok,
        {f"{side}_ratio": ratio for side, ratio in ratios.items()},
        f"embeddings are {low} to {high:.0f} times as large as positions",
        f"{worst}: embeddings are {ratios[worst]:.2f} times as large as positions"
        + ("" if ok else ", which drown them" if ratios[worst] < low else ", and drown them"),
        ""
        if ok
        else "multiply embeddings by sqrt(d_model) where they are looked up "
        "(model.scale_embedding: true), and train anew"
        if ratios[worst] < low
        else "multiply embeddings by sqrt(d_model) once, and train anew",
    )


def position_place(parts: dict[str, dict[str, float]]) -> Finding:
    """Whether embedding + encoding, and no more and no less, enters the stacks (section 3.5).

    Args:
        parts: what `input_parts` returns.

    Returns:
        A `Finding`.
    """
    faults = []
    low, high = PLACES
    for side, each in parts.items():
        if not low <= each["times"] <= high:
            faults.append(f"the {side}'s input has the positions {each['times']:.2g} times")
        elif each["left_over"] > MOST_LEFT_OVER:
            faults.append(
                f"{each['left_over']:.0%} of the {side}'s input is neither embedding nor position, "
                "as where positions are added after a norm"
            )
        elif each["first_query"] > MOST_LEFT_OVER:
            faults.append(f"the {side}'s first attention gets something else than its input")
        elif each["step"] > MOST_LEFT_OVER:
            faults.append(
                f"a word that is decoded alone gets another {side} position than in training"
            )
    measured = {
        f"{side}_{name}": each[name]
        for side, each in parts.items()
        for name in ("times", "left_over", "first_query", "step")
    }
    return Finding(
        "position_place",
        "order",
        not faults,
        measured,
        f"a stack's input is embedding + encoding, each once, to {MOST_LEFT_OVER:.0%}",
        "; ".join(faults) or "positions are added once, to the embeddings, before the first layer",
        "add the positions to the scaled embeddings, once and before anything else, and train anew"
        if faults
        else "",
    )


def word_order(model: keras.Model, sample: Sample) -> Finding:
    """How much the encoder's output depends on the order of words.

    The words of each source are put in reverse order. Without positions the encoder's output
    would be the same vectors in reverse order.

    Args:
        model: `Transformer`.
        sample: `Sample`.

    Returns:
        A `Finding`.
    """
    sample = sample.first(_SENTENCES)
    lengths = (sample.source != 0).sum(axis=1)
    # The end id stays where it is.
    order = np.tile(np.arange(sample.source.shape[1]), (len(lengths), 1))
    for row, length in enumerate(lengths):
        order[row, : length - 1] = order[row, : length - 1][::-1]
    reverse = np.take_along_axis(sample.source, order, axis=1)
    before, after = (
        _encoded(model, {"source": source, "target": sample.target})
        for source in (sample.source, reverse)
    )
    expected = np.take_along_axis(before, order[..., None], axis=1)
    is_moved = (sample.source != 0) & (order != np.arange(order.shape[1]))
    bound = (
        f"the encoder's output changes by more than {LEAST_ORDER:.1%} of the spread between words"
    )
    if not is_moved.any():
        return Finding("word_order", "order", None, {}, bound, "all sentences are of one word")
    # What all words have in common, much of it before a model is trained, is no spread.
    spread = before[sample.source != 0].std(axis=0)
    change = np.sqrt(((after - expected)[is_moved] ** 2).mean() / (spread**2).mean())
    ok = bool(change > LEAST_ORDER)
    return Finding(
        "word_order",
        "order",
        ok,
        {"change": float(change)},
        bound,
        f"with its words in reverse order a sentence is encoded otherwise by {change:.0%}",
        "" if ok else "have the encoder get positions that it can tell words apart by",
    )


def attention_distance(all_weights: list[Weights], is_trained: bool = True) -> Finding:
    """How much of self-attention depends on the distance between query and key, by head.

    Args:
        all_weights: what `record_weights` returns.
        is_trained: bool. Whether the model is trained enough for its maps to tell something.

    Returns:
        A `Finding`: measured is the share of the variance of the log-weights that the distance
        explains.
    """
    bound = f"distance explains at least {LEAST_DISTANCE:.0%} of a head's log-weights somewhere"
    shares: dict[str, float] = {}
    for each in all_weights:
        if not each.name.startswith("cross"):
            for head in range(each.weights.shape[1]):
                shares[f"{each.name}/head_{head}"] = _explained_by_distance(each, head)
    encoder = {name: share for name, share in shares.items() if name.startswith("encoder")}
    if not encoder:
        return Finding(
            "attention_distance", "order", None, {}, bound, "the attentions give no weights"
        )
    most = max(encoder, key=encoder.__getitem__)
    ok = True if encoder[most] >= LEAST_DISTANCE else False if is_trained else None
    return Finding(
        "attention_distance",
        "order",
        ok,
        {"most": encoder[most], "mean": float(np.mean(list(encoder.values()))), "by_head": shares},
        bound,
        f"the distance explains up to {encoder[most]:.0%} of the encoder's log-weights, in {most}"
        + ("; the model is too little trained to tell" if ok is None else ""),
        ""
        if ok is not False
        else "look at positions and the magnitude of embeddings: no head uses the order",
    )


def _parts(
    model: keras.Model, recording: Recording, kind: type, ids: np.ndarray, side: str
) -> dict[str, float]:
    is_real = ids != 0
    embedded, entered = recording.embedding_of(ids), recording.stack_input(kind)
    if embedded is None:
        embedded = np.zeros_like(entered)
    encoding = _encoding(model, side, ids.shape[1], entered.shape[-1])
    positions = np.broadcast_to(encoding, entered.shape)
    x = np.stack([embedded[is_real].ravel(), positions[is_real].ravel()], axis=1)
    y = entered[is_real].ravel()
    (a, b), *_ = np.linalg.lstsq(x.astype(np.float64), y.astype(np.float64), rcond=None)

    def magnitude(values: Any) -> float:
        return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))

    left_over = magnitude(y - x @ [a, b]) / magnitude(y)
    names = {Encoder: "encoder/layer_0", Decoder: "decoder/layer_0"}
    first = next((each for each in recording.attentions if each.name == names[kind]), None)
    first_query = 0.0
    if first is not None:
        expected = entered
        layer = recording.of(kind)[0].layer.stack[0]
        residual = getattr(layer, "attention_residual", None) or layer.self_attention_residual
        if residual.norm == "pre":
            expected = to_numpy(residual._normalization(entered))
        got = to_numpy(first.query)
        first_query = magnitude((got - expected)[is_real]) / magnitude(expected[is_real])
    layer, last = getattr(model, f"{side}_positions"), ids.shape[1] - 1
    alone = to_numpy(layer(np.zeros((1, 1, entered.shape[-1]), "float32"), start_index=last))
    among = to_numpy(layer(np.zeros((1, last + 1, entered.shape[-1]), "float32")))[:, last:]
    return {
        "embedding": magnitude(a * x[:, 0]),
        # Of a whole encoding where it is missing, so that the magnitudes can be compared.
        "positions": magnitude(x[:, 1]),
        "times": float(b),
        "left_over": float(left_over),
        "first_query": float(first_query),
        "step": magnitude(alone - among),
    }


def _encoding(model: keras.Model, side: str, length: int, d_model: int) -> np.ndarray:
    """The encoding [length, d_model] that the config asks for, by another way than the layer's."""
    if model.config.positions == "learned":
        vectors = to_numpy(getattr(model, f"{side}_positions").vectors)
        return vectors[np.minimum(np.arange(length), len(vectors) - 1)]
    places = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    if model.config.positions == "sinusoidal-halves":
        return np.concatenate([np.sin(places), np.cos(places)], axis=1)
    encoding = np.empty((length, d_model))
    encoding[:, 0::2], encoding[:, 1::2] = np.sin(places), np.cos(places)
    return encoding


def _encoded(model: keras.Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with recorded(model) as recording:
        model(inputs, training=False)
    return to_numpy(recording.of(Encoder)[0].output)


def _explained_by_distance(each: Weights, head: int) -> float:
    weights = each.weights[:, head]
    used = each.visible[:, 0] & each.real[:, :, None] & (weights > 1e-12)
    distance = np.arange(weights.shape[2])[None, :] - np.arange(weights.shape[1])[:, None]
    distance = np.broadcast_to(np.clip(distance, -_FAR, _FAR), weights.shape)
    logs = np.where(used, np.log(np.maximum(weights, 1e-30)), 0).astype(np.float64)
    logs -= logs.sum(axis=-1, keepdims=True) / np.maximum(used.sum(axis=-1, keepdims=True), 1)
    values, groups = logs[used], distance[used] + _FAR
    total = ((values - values.mean()) ** 2).sum() if len(values) else 0.0
    if not total:
        return 0.0
    counts = np.bincount(groups, minlength=2 * _FAR + 1)
    sums = np.bincount(groups, values, minlength=2 * _FAR + 1)
    means = sums / np.maximum(counts, 1)
    return float((counts * (means - values.mean()) ** 2).sum() / total)
