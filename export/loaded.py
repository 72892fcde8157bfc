"""Translates with an export: the same calls as `Translator`, for a SavedModel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.translator import (
    Hypothesis,
    batches_by_length,
    check_texts,
    hypotheses,
    string_tensor,
)


def version_of(name: str) -> int | None:
    """The version that a folder's name is, as TF Serving reads it, or None."""
    return int(name) if name.isascii() and name.isdecimal() else None


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
        if version_of(child.name) is not None and (child / "saved_model.pb").exists()
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

    Attributes:
        beam_size: int. Hypotheses that it gives for a text at most.

    Raises:
        InputError: where there is no export, or it cannot be loaded.
    """

    def __init__(self, path: str | Path) -> None:
        import tensorflow_text  # noqa: F401  registers the tokenizer's ops

        self.path = version_directory(path)
        try:
            self._loaded = tf.saved_model.load(str(self.path))
            self._n_best = self._loaded.signatures["n_best"]
            self.beam_size = int(self._n_best.structured_outputs["scores"].shape[1])
        except Exception as error:  # TensorFlow raises errors of many kinds for a broken file
            message = str(error).strip().split("\n")[0]
            raise InputError(
                f"{self.path} must be an export with the signature n_best. "
                f"Received: {type(error).__name__}: {message}"
            ) from error

    def translate(self, texts: Sequence[str], batch_sentences: int = 64) -> list[list[Hypothesis]]:
        """The hypotheses of each text, best first, as `Translator.translate`."""
        check_texts(texts)
        results: list[list[Hypothesis]] = [[] for _ in texts]
        for rows in batches_by_length(texts, batch_sentences):
            outputs = self._n_best(text=string_tensor(texts, rows))
            for row, row_texts, row_scores in zip(
                rows, outputs["translations"].numpy(), outputs["scores"].numpy(), strict=True
            ):
                results[row] = hypotheses(row_texts, row_scores)
        return results
