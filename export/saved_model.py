"""Writes a translator as a SavedModel that TF Serving and any other TensorFlow host loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_transformer
from export.loaded import version_of
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator

# Beside the model, for whoever checks the export: sentences and what Python translates them to.
EXPECTED_TRANSLATIONS = "expected_translations.json"

_SAMPLE = (
    "This is a test.",
    "",
    "   ",
    "Tom & Mary said: \"Let's go, it's 7 o'clock!\"",
    "🙂 </s> ß",
)


def export_translator(
    translator: Translator,
    base: str | Path,
    version: int | None = None,
    sample: tuple[str, ...] = (),
) -> Path:
    """Writes `base/version/saved_model.pb` with the signatures `serving_default` and `n_best`.

    Both take `text`, string [N]. `serving_default` returns `translation`, string [N], and
    `score`, float32 [N]; `n_best` returns `translations`, string [N, beam], best first, and
    `scores`, float32 [N, beam]. Tokenizer and beam search are in the graph. The version is
    written under another name and renamed, so that a server that watches `base` never sees half
    of it.

    Args:
        translator: `Translator`; its beam size, alpha and limits become the export's.
        base: path of the folder of versions.
        version: int or None. `None` means one more than the highest in `base`, or 1.
        sample: texts whose translations are recorded for `check_export`, with odd ones added.

    Returns:
        The path of the version.

    Raises:
        InputError: where the version is not above 0, or exists.

    References:
        - TensorFlow Serving, [RESTful API](https://www.tensorflow.org/tfx/serving/api_rest)
    """
    base = Path(base)
    version = next_version(base) if version is None else version
    if version < 1:
        raise InputError(f"version must be at least 1. Received: {version}")
    path = base / str(version)
    if path.exists():
        raise InputError(
            f"version must be new in {base}; exports are not overwritten. Received: {version}"
        )
    # Not a number: servers take only folders whose whole name is one for a version.
    partial = base / f"writing-{version}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        base.mkdir(parents=True, exist_ok=True)
        _write(translator, partial)
        _write_expected(translator, (*sample, *_SAMPLE), partial)
        partial.rename(path)
    except OSError as error:
        raise InputError(f"An export must be writable to {base}. Received: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return path


def next_version(base: str | Path) -> int:
    """One more than the highest version in a folder of versions, or 1."""
    versions = [version_of(path.name) for path in Path(base).glob("*")]
    return max((version for version in versions if version is not None), default=0) + 1


def _write(translator: Translator, path: Path) -> None:
    def serving_default(text: tf.Tensor) -> dict[str, tf.Tensor]:
        translations, scores = translator.translate_tensor(text)
        return {"translation": translations[:, 0], "score": scores[:, 0]}

    def n_best(text: tf.Tensor) -> dict[str, tf.Tensor]:
        translations, scores = translator.translate_tensor(text)
        return {"translations": translations, "scores": scores}

    # ExportArchive tracks each variable under the one handle that the functions use; a plain
    # tf.saved_model.save of a Keras 3 model cannot be loaded by TF Serving.
    archive = keras.export.ExportArchive()
    archive.track(translator.model)
    archive.track(translator.tokenizer.source.resource)
    archive.track(translator.tokenizer.target.resource)
    text = tf.TensorSpec([None], tf.string, name="text")
    for function in (serving_default, n_best):
        archive.add_endpoint(
            function.__name__,
            tf.function(function, input_signature=[text], autograph=False),
        )
    archive.write_out(str(path), verbose=False)


def _write_expected(translator: Translator, texts: tuple[str, ...], path: Path) -> None:
    expected: dict[str, Any] = {
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
        "translations": [
            {"text": text, "translation": best[0].text, "score": best[0].score}
            for text, best in zip(texts, translator.translate(texts), strict=True)
        ],
    }
    folder = path / "assets.extra"
    folder.mkdir(exist_ok=True)
    (folder / EXPECTED_TRANSLATIONS).write_text(
        json.dumps(expected, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
