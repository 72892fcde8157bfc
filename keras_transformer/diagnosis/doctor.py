"""From measurements to a diagnosis: one root cause gets one name."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.diagnosis import (
    attention_probes,
    finite_probe,
    mask_probes,
    order_probes,
    target_probes,
)
from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.sample import Sample

# Over all heads, of a trained model: the demo has 3 %.
MOST_SATURATED = 0.5

# What a fault can bring about beside itself. A finding of the right is no fault of its own where
# one of the left is found.
_SYMPTOMS = (
    *("repeated_words", "translation_length", "end_token", "length_limit", "word_order"),
    *("attention_distance", "softmax_saturation", "gradient_norms", "loss", "length_penalty"),
)
EXPLAINS = {
    "mask_fill": ("causality", "source_padding", "cross_attention_mask", "target_shift"),
    "finite_numbers": (
        *("causality", "source_padding", "cross_attention_mask", "mask_fill", "attention_scale"),
        *("target_shift", "embedding_magnitude", "position_place"),
    ),
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
) -> list[Finding]:
    """All probes of a model that need no run: of attention, masks, positions, the loss.

    Args:
        model: `Transformer`.
        sample: `Sample` of real pairs.
        loss: `keras.Loss` that it is trained with, or None where that is not known.
        trained_model: the model in the precision that it is trained in; `model` by default.
        batch: inputs and labels as training gets them, or None.

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
    config = model.config
    weights = attention_probes.record_weights(model, sample)
    parts = order_probes.input_parts(model, sample)
    sizes = {"d_model": config.d_model, "d_ff": config.d_ff}
    findings = [
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
        order_probes.attention_distance(weights),
    ]
    if loss is not None:
        first = sample.first(16)
        findings.append(finite_probe.finite_numbers(trained_model or model, first, loss))
        findings.append(target_probes.padding_loss(loss))
    else:
        for name, trouble in (("finite_numbers", "divergence"), ("padding_loss", "repetition")):
            detail = "the loss that the model is trained with is not known"
            findings.append(Finding(name, trouble, None, {}, "", detail))
    return findings


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
    order = {"divergence": 0, "repetition": 1, "order": 2, "memory": 3, "bleu": 4}
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
    return sorted(settled, key=lambda finding: order[finding.trouble])
