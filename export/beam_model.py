"""An export as a model of Beam's RunInference, which loads it once a process and shares it.

Runs on Beam's workers, so it needs apache-beam, TensorFlow and TensorFlow Text, and nothing of
this project.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.ml.inference.base import ModelHandler

METRICS = "translation"

# The translation, and for a line that has none its text and the error.
Prediction = tuple[bytes, tuple[bytes, str] | None]

# RunInference hands over so many batches at once, so that a batch can be made of lines of about
# one length: a batch takes as long as its longest line.
_BATCHES_AT_ONCE = 8


class Model(Protocol):
    """What `TranslationHandler` needs of a model."""

    def translate(self, texts: Sequence[bytes]) -> tuple[list[bytes], int]:
        """The translation of each text, and how many texts were cut to the export's limit."""


class LoadedExport:
    """An export in the memory of this process; several threads may use it at once.

    Args:
        path: str, path of a version. One with a scheme, such as `gs://`, is copied to a local
            folder first and therefore read with Beam's own credentials.
    """

    def __init__(self, path: str) -> None:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers the tokenizer's ops

        with tempfile.TemporaryDirectory(prefix="export-") as folder:
            self._loaded = tf.saved_model.load(copy_export(path, folder) if "://" in path else path)
        self._translate = self._loaded.signatures["serving_default"]
        if missing := {"translation", "truncated"} - set(self._translate.structured_outputs):
            raise ValueError(
                f"{path}: serving_default must have the output {min(missing)}. "
                f"Received: {', '.join(sorted(self._translate.structured_outputs))}"
            )

    def translate(self, texts: Sequence[bytes]) -> tuple[list[bytes], int]:
        """The translation of each text, and how many texts were cut to the export's limit."""
        import tensorflow as tf

        outputs = self._translate(text=tf.constant(list(texts), tf.string, [len(texts)]))
        return outputs["translation"].numpy().tolist(), int(outputs["truncated"].numpy().sum())


class TranslationHandler(ModelHandler[bytes, Prediction, Model]):
    """Translates lines with an export, and survives lines and batches that it cannot translate.

    A batch that fails, for want of memory or by a line that the model cannot bear, is translated
    again in halves, down to single lines. A line that fails by itself is tried once more and then
    has no translation but its error.

    Args:
        export: str, path of a version.
        batch_size: int. Lines that are translated at once.
    """

    def __init__(self, export: str, batch_size: int) -> None:
        lines = batch_size * _BATCHES_AT_ONCE
        super().__init__(min_batch_size=lines, max_batch_size=lines)
        self._export = export
        self._batch_size = batch_size

    def load_model(self) -> Model:
        """Loads the export; RunInference calls it once a process."""
        return LoadedExport(self._export)

    def run_inference(
        self,
        batch: Sequence[bytes],
        model: Model,
        inference_args: dict[str, Any] | None = None,
    ) -> list[Prediction]:
        """Translates lines of any length.

        Args:
            batch: sequence of bytes.
            model: what `load_model` returned.
            inference_args: not used.

        Returns:
            For each line a tuple: its translation, empty where it failed, and None or a tuple of
            the line and the error.
        """
        predictions: list[Prediction] = [(b"", None)] * len(batch)
        order = sorted(range(len(batch)), key=lambda row: len(batch[row]))
        for start in range(0, len(order), self._batch_size):
            rows = order[start : start + self._batch_size]
            translated = _translate([batch[row] for row in rows], model)
            for row, prediction in zip(rows, translated, strict=True):
                predictions[row] = prediction
        Metrics.counter(METRICS, "lines").inc(len(batch))
        failed = sum(failure is not None for _, failure in predictions)
        Metrics.counter(METRICS, "failed_lines").inc(failed)
        return predictions

    def get_num_bytes(self, batch: Sequence[bytes]) -> int:
        """Bytes of the lines, for RunInference's own metrics."""
        return sum(map(len, batch))

    def get_metrics_namespace(self) -> str:
        """The namespace of RunInference's own metrics."""
        return METRICS


def copy_export(path: str, folder: str) -> str:
    """Copies an export from any of Beam's file systems into a local folder; returns the folder."""
    for file in FileSystems.match([f"{path}/**"])[0].metadata_list:
        copy = Path(folder, file.path.removeprefix(path).lstrip("/"))
        copy.parent.mkdir(parents=True, exist_ok=True)
        with (
            FileSystems.open(file.path, compression_type=CompressionTypes.UNCOMPRESSED) as source,
            copy.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
    return folder


def _translate(texts: Sequence[bytes], model: Model, tries: int = 2) -> Iterator[Prediction]:
    """Translates texts, and those of a batch that fails in halves."""
    try:
        translations, truncated = model.translate(texts)
    except Exception as caught:  # TensorFlow raises errors of many kinds; memory is only one
        message = str(caught).strip().split("\n")[0]
        error = f"{type(caught).__name__}: {message}"
    else:
        Metrics.counter(METRICS, "truncated_lines").inc(truncated)
        yield from ((translation, None) for translation in translations)
        return
    # Only here, where the exception no longer holds what the failed call had in memory.
    if len(texts) > 1:
        half = len(texts) // 2
        yield from _translate(texts[:half], model)
        yield from _translate(texts[half:], model)
    elif tries > 1:
        yield from _translate(texts, model, tries - 1)
    else:
        yield b"", (texts[0], error)
