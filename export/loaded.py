"""Translates with an export: the same calls as `Translator`, for a SavedModel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from export.model_card import read_model_card
from export.publish import versions_in
from keras_transformer.errors import InputError
from keras_transformer.text_batches import (
    Hypothesis,
    OnCut,
    score_in_batches,
    translate_in_batches,
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
            self._signatures = self._loaded.signatures
            self._is_n_best = "n_best" in self._signatures
            outputs = self._signature().structured_outputs
            for name in ("scores" if self._is_n_best else "score", "truncated"):
                outputs[name]  # a KeyError where it is another model
            self.beam_size = int(outputs["scores"].shape[1]) if self._is_n_best else 1
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

        def translate_batch(batch: tf.Tensor) -> list[tf.Tensor]:
            outputs = self._signature()(text=batch)
            if self._is_n_best:
                return [outputs[name] for name in ("translations", "scores", "truncated")]
            # [N] -> [N, 1]
            one_best = [outputs[name][:, tf.newaxis] for name in ("translation", "score")]
            return [*one_best, outputs["truncated"]]

        return translate_in_batches(translate_batch, texts, batch_sentences, on_cut)

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
        if "score" not in self._signatures:
            raise InputError(
                f"score needs an export with the signature score. Received: {self.path}"
            )

        def score_batch(source: tf.Tensor, target: tf.Tensor) -> list[tf.Tensor]:
            outputs = self._signatures["score"](source=source, target=target)
            return [outputs[name] for name in ("log_probability", "tokens", "truncated")]

        return score_in_batches(score_batch, sources, targets, batch_sentences, on_cut)

    def _signature(self):
        return self._signatures["n_best" if self._is_n_best else "serving_default"]
