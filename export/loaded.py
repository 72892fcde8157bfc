"""Translates with an export: the same calls as `Translator`, for a SavedModel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.translator import Hypothesis, batches_by_length, hypotheses


def version_directory(path: str | Path) -> Path:
    """The version that a path means: itself, or the highest in a folder of versions.

    Raises:
        InputError: where neither holds a `saved_model.pb`.
    """
    path = Path(path)
    if (path / "saved_model.pb").exists():
        return path
    versions = [
        child
        for child in (path.iterdir() if path.is_dir() else ())
        if child.name.isdecimal() and (child / "saved_model.pb").exists()
    ]
    if not versions:
        raise InputError(
            f"An export must hold saved_model.pb, itself or in a numbered folder. Received: {path}"
        )
    return max(versions, key=lambda child: int(child.name))


class ExportedTranslator:
    """An export loaded into this process.

    Args:
        path: path of a version, or of a folder of versions, of which the highest is taken.
        signature: `"n_best"`, or `"serving_default"` for the best translation only.

    Raises:
        InputError: where there is no export.
    """

    def __init__(self, path: str | Path) -> None:
        import tensorflow_text  # noqa: F401  registers the tokenizer's ops

        self.path = version_directory(path)
        self._loaded = tf.saved_model.load(str(self.path))

    def translate(self, texts: Sequence[str], batch_sentences: int = 64) -> list[list[Hypothesis]]:
        """The hypotheses of each text, best first, as `Translator.translate`."""
        results: list[list[Hypothesis]] = [[] for _ in texts]
        n_best = self._loaded.signatures["n_best"]
        for rows in batches_by_length(texts, batch_sentences):
            outputs = n_best(text=tf.constant([texts[row] for row in rows]))
            for row, row_texts, row_scores in zip(
                rows, outputs["translations"].numpy(), outputs["scores"].numpy(), strict=True
            ):
                results[row] = hypotheses(row_texts, row_scores)
        return results
