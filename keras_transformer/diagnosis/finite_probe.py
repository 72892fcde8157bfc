"""A probe of numbers: the first layer whose output or gradient is no longer finite."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.recording import to_numpy
from keras_transformer.diagnosis.sample import Sample


def finite_numbers(model: keras.Model, sample: Sample, loss: Any = None) -> Finding:
    """Whether weights, outputs and gradients of a batch are finite, and where not first.

    Args:
        model: `Transformer`, in the precision that it is trained in.
        sample: `Sample`, one batch.
        loss: `keras.Loss`, or None where it is not known: no gradients are looked at then.

    Returns:
        A `Finding`: measured are the first weight, layer's output and gradient that are not
        finite.

    Example:

    >>> from keras_transformer import SmoothedCrossEntropy, TransformerConfig, build_transformer
    >>> from keras_transformer.diagnosis.sample import make_sample
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> finite_numbers(model, make_sample([[5, 6]], [[7]]), SmoothedCrossEntropy()).ok
    True
    """
    weight = next(
        (v.path for v in model.trainable_variables if not np.isfinite(to_numpy(v)).all()), None
    )
    outputs: list[tuple[str, Any]] = []
    wrapped = list(model._flatten_layers(include_self=False))
    for layer in wrapped:
        vars(layer)["call"] = _watched(layer, outputs)
    try:
        with tf.GradientTape() as tape:
            logits = model(sample.inputs, training=False)
            value = None if loss is None else loss(tf.constant(sample.labels), logits)
    finally:
        for layer in wrapped:
            vars(layer).pop("call", None)
    variables = model.trainable_variables
    gradients = [None] * len(variables)
    if value is not None:
        gradients = tape.gradient(value, [variable.value for variable in variables])
    output = next((name for name, each in outputs if not np.isfinite(to_numpy(each)).all()), None)
    # The last layers get their gradients first.
    broken = [
        v.path
        for v, gradient in zip(variables, gradients, strict=True)
        if gradient is not None and not np.isfinite(to_numpy(tf.convert_to_tensor(gradient))).all()
    ]
    gradient = broken[-1] if broken else None
    names = {"weight": weight, "output of": output, "gradient of": gradient}
    found = next(((kind, name) for kind, name in names.items() if name), None)
    return Finding(
        "finite_numbers",
        "divergence",
        found is None,
        {
            "first_weight": weight,
            "first_output": output,
            "first_gradient": gradient,
            "loss": None if value is None else float(value),
            "precision": str(getattr(getattr(model, "policy", None), "name", "")),
        },
        "all weights, outputs and gradients are finite",
        "all numbers are finite"
        if found is None
        else f"the first that is not finite is the {found[0]} {found[1]}",
        ""
        if found is None
        else "go back to a checkpoint before it, with a lower training.learning_rate_factor or "
        "training.gradient_clip_norm; where only half precision breaks, train with "
        "mixed_bfloat16 or float32",
    )


def _watched(layer: keras.layers.Layer, outputs: list[tuple[str, Any]]):
    call = layer.call

    def watched_call(*arguments, **options):
        result = call(*arguments, **options)
        for each in tf.nest.flatten(result):
            if hasattr(each, "dtype") and "float" in keras.backend.standardize_dtype(each.dtype):
                outputs.append((layer.path or layer.name, each))
        return result

    return watched_call
