"""Probes of attention weights: what hidden keys get, the scale of the scores, saturation."""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.recording import Attending, recorded, to_numpy
from keras_transformer.diagnosis.sample import Sample
from keras_transformer.layers import Window

# Hidden keys get exactly 0; a fill of -20 would leave them some 1e-9.
MOST_HIDDEN_WEIGHT = 1e-6
SATURATED = 0.99
_SENTENCES = 16


class Weights(NamedTuple):
    """The weights of one attention, and what they should be made of.

    Attributes:
        name: str, such as `"encoder/layer_0"`.
        weights: float32 array [B, h, T, S].
        scores: float32 array [B, h, T, S], q k^T without a scale.
        visible: bool array [B, 1, T, S], what the query may attend to by the paper.
        real: bool array [B, T], queries that are no padding.
        attention: the `MultiHeadAttention`.
    """

    name: str
    weights: np.ndarray
    scores: np.ndarray
    visible: np.ndarray
    real: np.ndarray
    attention: keras.layers.Layer


def record_weights(model: keras.Model, sample: Sample) -> list[Weights]:
    """The weights of all attentions for a sample, without dropout.

    Args:
        model: `Transformer`.
        sample: `Sample`, of which the first 16 pairs are taken.

    Returns:
        List of `Weights`, in the order in which the model attends. Two positions of padding are
        added to both sides, so that every row has hidden keys.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> from keras_transformer.diagnosis.sample import make_sample
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> weights = record_weights(model, make_sample([[5, 6]], [[7]]))
    >>> len(weights), weights[0].weights.shape
    (9, (1, 4, 5, 5))
    """
    sample = sample.first(_SENTENCES)
    # Some padding for all, so that there are hidden keys in every row.
    inputs = {
        "source": np.pad(sample.source, ((0, 0), (0, 2))),
        "target": np.pad(sample.target, ((0, 0), (0, 2))),
    }
    with recorded(model) as recording:
        model(inputs, training=False)
    return [
        _with_mask(attending, inputs)
        for attending in recording.attentions
        if attending.weights is not None
    ]


def mask_fill(all_weights: list[Weights]) -> Finding:
    """Whether hidden keys share one weight above 0, as where scores are filled with 0.

    A mask that is missing leaves hidden keys a score of their own, and is another fault.

    Args:
        all_weights: what `record_weights` returns.

    Returns:
        A `Finding`.
    """
    largest, is_filled, fills = 0.0, False, []
    for each in all_weights:
        rows = each.real[:, None, :, None] & np.ones_like(each.weights, bool)
        hidden = ~each.visible & rows
        if not hidden.any():
            continue
        found = float(each.weights[hidden].max())
        largest = max(largest, found)
        if found <= MOST_HIDDEN_WEIGHT:
            continue
        several = hidden.sum(axis=-1) > 1  # [B, h, T]
        weights = np.where(hidden, each.weights, np.nan)[several]  # [rows, S]
        spread = np.nanstd(weights, axis=-1) / np.maximum(np.nanmean(weights, axis=-1), 1e-30)
        if len(spread) and np.median(spread) < 1e-3:
            is_filled = True
            fills.append(_fill_value(each, hidden))
    fill = next((value for value in fills if value is not None), None)
    value = "" if fill is None else f", as where scores are filled with {fill:.2g}"
    return Finding(
        "mask_fill",
        "repetition",
        not is_filled,
        {"largest_hidden_weight": largest, "fill": fill},
        f"weights of hidden keys are at most {MOST_HIDDEN_WEIGHT:g}",
        f"hidden keys get one weight of up to {largest:.2g}{value}"
        if is_filled
        else "hidden keys get no weight"
        if largest <= MOST_HIDDEN_WEIGHT
        else "hidden keys get weights of their own scores: no mask is there to fill them",
        "fill the scores of hidden keys with a number far below any score (-1e9 in float32) "
        "before the softmax, and train anew"
        if is_filled
        else "",
    )


def attention_scale(all_weights: list[Weights], sizes: dict[str, int]) -> Finding:
    """Whether scores are q k^T / sqrt(d_k): log-weights against raw products (section 3.2.1).

    Args:
        all_weights: what `record_weights` returns.
        sizes: dict of the model's other sizes, such as `{"d_model": 512}`, of which a wrong scale
            may have been taken.

    Returns:
        A `Finding`.
    """
    bound = "slope of log-weight over q k^T within 2 % of d_k^-0.5"
    measured_of = [each for each in all_weights if each.attention.compatibility != "additive"]
    if not measured_of:
        return Finding(
            "attention_scale",
            "divergence",
            None,
            {},
            bound,
            "additive compatibility has no scale to measure"
            if all_weights
            else "the attentions give no weights",
        )
    slopes, fits = {}, {}
    for each in measured_of:
        slope, fit = _slope(each)
        if np.isfinite(slope):
            slopes[each.name], fits[each.name] = slope, fit
    if not slopes:
        detail = "no scores differ: the model has no weights yet, or the sentences are too short"
        return Finding("attention_scale", "divergence", None, {}, bound, detail)
    attention = measured_of[0].attention
    expected = 1.0 if attention.compatibility == "dot_product" else attention.d_k**-0.5
    name = max(slopes, key=lambda name: abs(np.log(max(slopes[name], 1e-9) / expected)))
    slope, fit = slopes[name], min(fits.values())
    ok = abs(slope / expected - 1) <= 0.02 and fit >= 0.99
    known = {"d_k": attention.d_k, "d_v": attention.d_v, **sizes}
    meaning = _meaning(slope, known)
    return Finding(
        "attention_scale",
        "divergence",
        bool(ok),
        {"slope": slope, "expected": expected, "d_k": attention.d_k, "fit": fit, "at": name},
        bound,
        f"scores are scaled by {expected:.4g}"
        if ok
        else f"{name}: scores are multiplied by {slope:.4g}{meaning}, not by {expected:.4g}"
        if fit >= 0.99
        else f"weights do not follow q k^T (fit {fit:.2g})",
        "" if ok else "divide the scores by sqrt(d_k), the width of a head, and train anew",
    )


def softmax_saturation(all_weights: list[Weights], most: float) -> Finding:
    """Share of rows in which one weight is over 0.99, by layer and head.

    Args:
        all_weights: what `record_weights` returns.
        most: float. The largest healthy share over all heads.

    Returns:
        A `Finding`.
    """
    bound = f"at most {most:.0%} of all rows have one weight over {SATURATED}"
    if not all_weights:
        return Finding(
            "softmax_saturation", "divergence", None, {}, bound, "the attentions give no weights"
        )
    shares = {}
    for each in all_weights:
        # A query with a single key has weight 1 on it.
        has_choice = each.real & (each.visible.sum(axis=-1)[:, 0] > 1)
        top = each.weights.max(axis=-1)  # [B, h, T]
        for head in range(top.shape[1]):
            rows = top[:, head][has_choice]
            shares[f"{each.name}/head_{head}"] = float((rows > SATURATED).mean())
    mean = float(np.mean(list(shares.values())))
    worst = max(shares, key=shares.__getitem__)
    ok = mean <= most
    return Finding(
        "softmax_saturation",
        "divergence",
        ok,
        {"mean": mean, "worst": worst, "by_head": shares},
        bound,
        f"{mean:.0%} of the rows have one weight over {SATURATED}, most in {worst} "
        f"({shares[worst]:.0%})",
        ""
        if ok
        else "saturated rows pass no gradient: check the scale of the scores, lower "
        "training.learning_rate_factor or model.initializer_gain, and train anew",
    )


def _with_mask(attending: Attending, inputs: dict[str, np.ndarray]) -> Weights:
    """What an attention did beside what it may do by the paper."""
    kind = attending.name.split("/")[0]
    source, target = inputs["source"] != 0, inputs["target"] != 0
    real = source if kind == "encoder" else target  # of the queries
    keys = target.shape[1] if kind == "decoder" else source.shape[1]
    visible = np.ones((1, 1, real.shape[1], keys), bool)
    distance = np.arange(keys)[None, :] - np.arange(real.shape[1])[:, None]
    window = attending.layer.window
    if kind == "decoder":
        back = np.inf if window is None else window - 1
        visible = visible & ((distance <= 0) & (distance >= -back))
    else:
        visible = visible & source[:, None, None, :]
        if kind == "encoder" and window is not None:
            reach = Window.of(window, causal=False)
            visible = visible & (distance >= -reach.back) & (distance <= reach.ahead)
    layer = attending.layer
    query = to_numpy(layer._split(layer._query(attending.query)))  # [B, h, T, d_k]
    scores = query @ np.swapaxes(to_numpy(attending.keys), -1, -2)
    return Weights(attending.name, attending.weights, scores, visible, real, layer)


def _slope(each: Weights) -> tuple[float, float]:
    """Of log-weights over scores within rows: the slope, and the share of variance explained."""
    # Tiny weights have lost digits, and weights that are 0 have no logarithm.
    used = each.visible & each.real[:, None, :, None] & (each.weights > 1e-12)
    used &= used.sum(axis=-1, keepdims=True) > 1
    log_weights = np.log(np.maximum(each.weights.astype(np.float64), 1e-30))

    def within_rows(values):
        counts = np.maximum(used.sum(axis=-1, keepdims=True), 1)
        mean = np.where(used, values, 0).sum(axis=-1, keepdims=True) / counts
        return np.where(used, values - mean, 0)

    x, y = within_rows(each.scores.astype(np.float64)), within_rows(log_weights)
    if not used.any() or not (x**2).sum():
        return float("nan"), 1.0
    slope = (x * y).sum() / (x**2).sum()
    left = ((y - slope * x) ** 2).sum() / max((y**2).sum(), 1e-30)
    return float(slope), float(1 - left)


def _fill_value(each: Weights, hidden: np.ndarray) -> float | None:
    """The score that hidden keys seem to have; None where scores do not explain the weights."""
    slope, fit = _slope(each)
    if not fit >= 0.9:
        return None
    used = each.visible & each.real[:, None, :, None] & (each.weights > 1e-12)
    has_used = used.any(axis=-1)  # [B, h, T]
    logs = np.log(np.maximum(each.weights, 1e-30))
    offset = np.where(used, logs - slope * each.scores, np.nan)[has_used]  # [rows, S]
    fill = logs[has_used] - np.nanmedian(offset, axis=-1, keepdims=True)
    kept = (hidden & (each.weights > 1e-12))[has_used]
    return round(float(np.median(fill[kept])), 3) if kept.any() else None


def _meaning(slope: float, sizes: dict[str, int]) -> str:
    """In words which wrong scale a slope is, if it is a known one."""
    known = {"1, which is no scale": 1.0}
    known |= {f"{name}^-0.5": size**-0.5 for name, size in sizes.items()}
    known |= {f"1 / {name}": 1 / size for name, size in sizes.items()}
    for name, value in known.items():
        if abs(slope / value - 1) <= 0.02:
            return f" ({name})"
    return ""
