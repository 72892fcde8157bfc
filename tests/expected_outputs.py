"""What the signatures of an export must return, by the translator in Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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


def loaded_outputs(python: str | Path, path: Path, texts: list[str], expected: dict) -> dict:
    """What load_export.py prints for an export in a process of `python`, in another folder.

    Given the signatures' inputs for texts and their translations, by the outputs expected.
    """
    best = expected["serving_default"]["translation"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, Path(__file__).parent / "load_export.py", path],
        input=json.dumps({name: columns(name, texts, best) for name in INPUTS}),
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


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
