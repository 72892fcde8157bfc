"""What clients rely on: the dtype and rank of each output of each signature."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from export.signatures import INPUTS

# What a request calls that names no signature.
DEFAULT = "serving_default"


class Signature(NamedTuple):
    """What a signature takes and returns.

    Attributes:
        inputs: names of its inputs, each a string tensor [N].
        outputs: dict of each output's name and its dtype and rank; N is the first dimension.
    """

    inputs: tuple[str, ...]
    outputs: dict[str, tuple[tf.DType, int]]


_OUTPUTS = {
    DEFAULT: {"translation": (tf.string, 1), "score": (tf.float32, 1)},
    "n_best": {"translations": (tf.string, 2), "scores": (tf.float32, 2)},
    "score": {"log_probability": (tf.float32, 1), "tokens": (tf.int32, 1)},
    "align": {
        "source_pieces": (tf.string, 2),
        "target_pieces": (tf.string, 2),
        "source_lengths": (tf.int32, 1),
        "target_lengths": (tf.int32, 1),
        "attention": (tf.float32, 3),
    },
}

SIGNATURES = {
    name: Signature(INPUTS[name], {**outputs, "truncated": (tf.bool, 1)})
    for name, outputs in _OUTPUTS.items()
}
