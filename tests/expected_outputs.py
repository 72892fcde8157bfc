"""What the signatures of an export must return, by the translator in Python."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from export.signatures import INPUTS
from keras_transformer.search import EMPTY_SCORE


def expected_outputs(translator, texts) -> dict[str, dict[str, list]]:
    """What the signatures must return for texts, and for them and their best translations."""
    rows = [
        (found + [("", EMPTY_SCORE)] * translator.beam_size)[: translator.beam_size]
        for found in translator.translate(texts)
    ]
    translations = [[text for text, _ in row] for row in rows]
    scores = [[score for _, score in row] for row in rows]
    best = [row[0] for row in translations]
    log_probabilities, tokens = zip(*translator.score(texts, best), strict=True)
    alignments = translator.align_tensor(tf.constant(texts), tf.constant(best))
    truncated = [False] * len(texts)
    return {
        "n_best": {"translations": translations, "scores": scores, "truncated": truncated},
        "serving_default": {
            "translation": best,
            "score": [row[0] for row in scores],
            "truncated": truncated,
        },
        "score": {
            "log_probability": list(log_probabilities),
            "tokens": list(tokens),
            "truncated": truncated,
        },
        "align": {name: plain(value.numpy()) for name, value in alignments._asdict().items()},
    }


def plain(array: np.ndarray) -> list:
    """An array as lists of what JSON has."""
    return np.vectorize(
        lambda x: x.decode() if isinstance(x, bytes) else getattr(x, "item", lambda: x)(), [object]
    )(array).tolist()


def columns(signature: str, texts, best) -> dict[str, list[str]]:
    """The inputs of a signature."""
    return dict(zip(INPUTS[signature], (list(texts), best), strict=False))


def assert_outputs(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if any(word in name for word in ("score", "probability", "attention")):
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-4)
        else:
            assert found[name] == value
