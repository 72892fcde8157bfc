"""Translates with an export: the same calls as `Translator`, for a SavedModel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from export.model_card import read_model_card
from export.publish import versions_in
from keras_transformer.errors import InputError
from keras_transformer.translator import (
    Hypothesis,
    OnCut,
    batches_by_length,
    check_pairs,
    check_texts,
    hypotheses,
    report_cut,
    string_tensor,
)


def version_directory(path: str | Path) -> Path:
    """The version that a path means: itself, or the highest in a folder of versions.

    Raises:
        InputError: where neither holds a `saved_model.pb`.
    """
    path = Path(path)
    if (path / "saved_model.pb").exists():
        return path
    versions = versions_in(path)
    if not versions:
        raise InputError(
            f"An export must hold saved_model.pb, itself or in a numbered folder. Received: {path}"
        )
    return versions[0]


class ExportedTranslator:
    """An export loaded into this process.

    Args:
        path: path of a version, or of a folder of versions, of which the highest is taken.

    Attributes:
        path: path of the version.
        beam_size: int. Hypotheses that it gives for a text at most.
        maximum_source_length: int or None. Tokens of a source that are read; `None` where the
            export has no model card that says it.

    Raises:
        InputError: where there is no export, or it cannot be loaded.
    """

    def __init__(self, path: str | Path) -> None:
        import tensorflow_text  # noqa: F401  registers the tokenizer's ops

        self.path = version_directory(path)
        try:
            self._loaded = tf.saved_model.load(str(self.path))
            signatures = self._loaded.signatures
            self._translate = signatures.get("n_best") or signatures["serving_default"]
            self._names = ("translations", "scores")
            if "n_best" not in signatures:
                self._names = ("translation", "score")
            scores = self._translate.structured_outputs[self._names[1]]
            self.beam_size = int(scores.shape[1]) if "n_best" in signatures else 1
            limits = read_model_card(self.path).get("limits", {})
            self.maximum_source_length: int | None = limits.get("maximum_source_length")
        except Exception as error:  # TensorFlow raises errors of many kinds for a broken file
            message = str(error).strip().split("\n")[0]
            raise InputError(
                f"{self.path} must be an export with the signature n_best or serving_default. "
                f"Received: {type(error).__name__}: {message}"
            ) from error

    def translate(
        self, texts: Sequence[str], batch_sentences: int = 64, on_cut: OnCut | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each text, best first, as `Translator.translate`."""
        check_texts(texts)
        results: list[list[Hypothesis]] = [[] for _ in texts]
        for rows in batches_by_length(texts, batch_sentences):
            outputs = self._translate(text=string_tensor(texts, rows))
            # [n] or [n, K] -> [n, K]
            found = (outputs[name].numpy().reshape(len(rows), -1) for name in self._names)
            for row, row_texts, row_scores in zip(rows, *found, strict=True):
                results[row] = hypotheses(row_texts, row_scores)
            report_cut(rows, outputs["truncated"].numpy(), on_cut)
        return results

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_sentences: int = 64,
        on_cut: OnCut | None = None,
    ) -> list[tuple[float, int]]:
        """Log-probability and number of tokens of each pair, as `Translator.score`.

        Raises:
            InputError: where the export has no signature `score`, or the numbers of sources and
                targets differ.
        """
        check_pairs(sources, targets)
        if "score" not in self._loaded.signatures:
            raise InputError(
                f"score needs an export with the signature score. Received: {self.path}"
            )
        results = [(0.0, 0)] * len(sources)
        for rows in batches_by_length(targets, batch_sentences):
            outputs = self._loaded.signatures["score"](
                source=string_tensor(sources, rows), target=string_tensor(targets, rows)
            )
            for row, log_probability, count in zip(
                rows, outputs["log_probability"].numpy(), outputs["tokens"].numpy(), strict=True
            ):
                results[row] = (float(log_probability), int(count))
            report_cut(rows, outputs["truncated"].numpy(), on_cut)
        return results
