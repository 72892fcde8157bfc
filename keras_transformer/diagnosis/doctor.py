"""From measurements to a diagnosis: one root cause gets one name."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_transformer.diagnosis import (
    attention_probes,
    finite_probe,
    mask_probes,
    order_probes,
    target_probes,
)
from keras_transformer.diagnosis.finding import TROUBLES, Finding
from keras_transformer.diagnosis.recording import to_numpy
from keras_transformer.diagnosis.sample import Sample

# Over all heads, of a trained model: the demo has 3 %.
MOST_SATURATED = 0.5

# What a fault can bring about beside itself. A finding of the right is no fault of its own where
# one of the left is found.
_SYMPTOMS = (
    *("repeated_words", "translation_length", "end_token", "length_limit", "word_order"),
    *("attention_distance", "softmax_saturation", "gradient_norms", "loss", "length_penalty"),
)
# What can only be measured of a model whose output is finite, and its trouble.
_OF_NUMBERS = {
    **dict.fromkeys(("softmax_saturation", "attention_scale"), "divergence"),
    **dict.fromkeys(("causality", "source_padding", "cross_attention_mask"), "repetition"),
    **dict.fromkeys(("mask_fill", "target_shift"), "repetition"),
    **dict.fromkeys(("embedding_magnitude", "position_place"), "order"),
    **dict.fromkeys(("word_order", "attention_distance"), "order"),
}
EXPLAINS = {
    "mask_fill": ("causality", "source_padding", "cross_attention_mask", "target_shift"),
    "finite_numbers": (),
    "target_shift": (),
    "causality": (),
    "cross_attention_mask": (),
    "source_padding": (),
    "attention_scale": (),
    "position_place": (),
    "embedding_magnitude": (),
    "learning_rate": ("finite_numbers",),
    "padding_loss": (),
    "pairing": (),
}


def diagnose_model(
    model: keras.Model,
    sample: Sample,
    loss: Any = None,
    trained_model: keras.Model | None = None,
    batch: Any = None,
    is_trained: bool = True,
) -> list[Finding]:
    """All probes of a model that need no run: of attention, masks, positions, the loss.

    Args:
        model: `Transformer`.
        sample: `Sample` of real pairs.
        loss: `keras.Loss` that it is trained with, or None where that is not known.
        trained_model: the model in the precision that it is trained in; `model` by default.
        batch: inputs and labels as training gets them, or None.
        is_trained: bool. Whether the model is trained enough to tell by what it has learned.

    Returns:
        List of `Finding`, not yet settled.

    Example:

    >>> from keras_transformer import SmoothedCrossEntropy, TransformerConfig, build_transformer
    >>> from keras_transformer.diagnosis.sample import make_sample
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> sample = make_sample([[5, 6, 7], [8]], [[7, 9, 11], [5, 6]])
    >>> findings = settle(diagnose_model(model, sample, SmoothedCrossEntropy(0.1)))
    >>> [finding.name for finding in findings if finding.ok is False]
    []
    """
    first = sample.first(16)
    findings = [finite_probe.finite_numbers(trained_model or model, first, loss)]
    if loss is not None:
        findings.append(target_probes.padding_loss(loss))
    else:
        detail = "the loss that the model is trained with is not known"
        findings.append(Finding("padding_loss", "repetition", None, {}, "", detail))
    if not np.isfinite(to_numpy(model(first.inputs, training=False))).all():
        detail = "the model's output is not finite"
        rest = _OF_NUMBERS.items()
        return findings + [Finding(name, kind, None, {}, "", detail) for name, kind in rest]
    config = model.config
    weights = attention_probes.record_weights(model, sample)
    parts = order_probes.input_parts(model, sample)
    sizes = {"d_model": config.d_model, "d_ff": config.d_ff}
    return [
        *findings,
        attention_probes.softmax_saturation(weights, MOST_SATURATED),
        attention_probes.attention_scale(weights, sizes),
        mask_probes.causality(model, sample),
        mask_probes.source_padding(model, sample),
        mask_probes.cross_attention_mask(model, sample),
        attention_probes.mask_fill(weights),
        target_probes.target_shift(model, sample, batch),
        order_probes.embedding_magnitude(parts),
        order_probes.position_place(parts),
        order_probes.word_order(model, sample),
        order_probes.attention_distance(weights, is_trained),
    ]


def settle(findings: list[Finding]) -> list[Finding]:
    """One name for one cause: what a found fault explains is no fault of its own.

    Args:
        findings: list of `Finding` of one run.

    Returns:
        The same, in the order of the troubles, with `ok` None for what others explain.

    Example:

    >>> found = [Finding("causality", "repetition", False, {}, "", "leaks", "mask"),
    ...          Finding("mask_fill", "repetition", False, {}, "", "0.01", "fill")]
    >>> [(each.name, each.ok, each.detail) for each in settle(found)]
    [('causality', None, 'explained by mask_fill: leaks'), ('mask_fill', False, '0.01')]
    """
    found = {finding.name for finding in findings if finding.ok is False}
    explained: dict[str, str] = {}
    for cause, effects in EXPLAINS.items():
        if cause in found and cause not in explained:
            for effect in (*effects, *_SYMPTOMS):
                if effect in found:
                    explained.setdefault(effect, cause)
    settled = [
        finding._replace(
            ok=None,
            detail=f"explained by {explained[finding.name]}: {finding.detail}",
            remedy="",
        )
        if finding.name in explained
        else finding
        for finding in findings
    ]
    return sorted(
        (each._replace(measured=_for_json(each.measured)) for each in settled),
        key=lambda finding: TROUBLES.index(finding.trouble),
    )


def _for_json(value: Any) -> Any:
    """JSON has null for what is no number."""
    if isinstance(value, dict):
        return {name: _for_json(each) for name, each in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
