"""The functions of an export, by the names that TensorFlow Serving calls them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.translator import Translator

# The inputs of each signature, all string [N].
INPUTS: Mapping[str, tuple[str, ...]] = {
    "serving_default": ("text",),
    "n_best": ("text",),
    "score": ("source", "target"),
    "align": ("text", "translation"),
}

Outputs = dict[str, tf.Tensor]


def check_signatures(names: Sequence[str] | None) -> tuple[str, ...]:
    """The signatures to export, in the order of `INPUTS`; `None` means all.

    Raises:
        InputError: for an unknown one, or where `serving_default` is missing.
    """
    if names is None:
        return tuple(INPUTS)
    for name in names:
        if name not in INPUTS:
            raise InputError(f"A signature must be one of {', '.join(INPUTS)}. Received: {name!r}")
    if "serving_default" not in names:
        # A request without a signature's name means it.
        raise InputError(
            f"signatures must hold serving_default. Received: {', '.join(names) or 'none'}"
        )
    return tuple(name for name in INPUTS if name in names)


def signature_functions(
    translator: Translator, names: Sequence[str]
) -> dict[str, tf.types.experimental.PolymorphicFunction]:
    """The `tf.function` of each signature.

    Args:
        translator: `Translator`.
        names: names of signatures.
    """

    def serving_default(text: tf.Tensor) -> Outputs:
        found = translator.translate_tensor(text)
        return {
            "translation": found.texts[:, 0],
            "score": found.scores[:, 0],
            "truncated": found.truncated,
        }

    def n_best(text: tf.Tensor) -> Outputs:
        found = translator.translate_tensor(text)
        return {
            "translations": found.texts,
            "scores": found.scores,
            "truncated": found.truncated,
        }

    def score(source: tf.Tensor, target: tf.Tensor) -> Outputs:
        found = translator.score_tensor(source, target)
        return {
            "log_probability": found.log_probabilities,
            "tokens": found.tokens,
            "truncated": found.truncated,
        }

    def align(text: tf.Tensor, translation: tf.Tensor) -> Outputs:
        return translator.align_tensor(text, translation)._asdict()

    functions: tuple[Callable[..., Outputs], ...] = (serving_default, n_best, score, align)
    return {
        function.__name__: tf.function(
            function,
            autograph=False,
            input_signature=[
                tf.TensorSpec([None], tf.string, name=name) for name in INPUTS[function.__name__]
            ],
        )
        for function in functions
        if function.__name__ in names
    }
