"""Makes a run directory of a Marian checkpoint, which was trained elsewhere."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint import MarianCheckpoint, read_marian
from keras_transformer.marian.tokenizer import MarianTokenizer
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.checkpoints import save_model
from trainers.flush import flush
from trainers.recipe import Recipe
from trainers.run import RunDirectory


def import_marian(
    directory: str | Path,
    run_directory: str | Path,
    source_language: str | None = None,
    target_language: str | None = None,
    normalize_punctuation: bool = False,
) -> dict[str, Any]:
    """Reads an OPUS-MT or Marian checkpoint and writes it as a run directory.

    The run has the checkpoint's model, tokenizer and settings of the search, and no data. It is
    translated with, evaluated and exported like any other, and trained further by a recipe whose
    `training.initial_run` names it.

    All is read and checked before anything is written, and the directory is written under another
    name and renamed: it is there whole or not at all.

    Args:
        directory: path of a folder in Hugging Face's layout, or of a Marian release.
        run_directory: path of the run. It must not exist, or be an empty folder.
        source_language: str or None. Code of the language translated from, where the checkpoint
            does not tell it, or another than it tells.
        target_language: str or None. Code of the language translated to.
        normalize_punctuation: bool. Whether the run's tokenizer first writes punctuation as the
            corpora of OPUS-MT have it, by the rules of the two languages.

    Returns:
        A dict: `run_dir`, `parameters`, `vocabulary_size`, `source_vocabulary_size` (None where
        both languages have one vocabulary), `source_language`, `target_language` (None where
        nothing tells them) and `decoding`, the checkpoint's settings of the search.

    Raises:
        InputError: where the checkpoint cannot be read or has a setting that is not supported,
            where the run directory is there already, or where it cannot be written.
    """
    run = _new_run(run_directory)
    checkpoint = read_marian(directory)
    languages = (
        source_language or checkpoint.source_language,
        target_language or checkpoint.target_language,
    )
    recipe = _recipe_of(checkpoint, *languages, normalize_punctuation)
    tokenizer = checkpoint.tokenizer
    if normalize_punctuation:
        tokenizer = _normalizing(tokenizer, *languages)
    model = checkpoint.build_model("float32")
    with _written_aside(run) as folder:
        parts = RunDirectory(folder)
        tokenizer.save(parts.tokenizer_path)
        save_model(model, parts.model_path)
        recipe.save(parts.recipe_path)
    return {
        "run_dir": str(run_directory),
        "parameters": model.count_params(),
        "vocabulary_size": recipe.tokenizer.vocabulary_size,
        "source_vocabulary_size": recipe.tokenizer.source_vocabulary_size,
        "source_language": recipe.data.source_language,
        "target_language": recipe.data.target_language,
        "decoding": checkpoint.decoding,
    }


def _recipe_of(
    checkpoint: MarianCheckpoint,
    source_language: str | None,
    target_language: str | None,
    normalize_punctuation: bool,
) -> Recipe:
    """The recipe of the run: what the checkpoint says, and no data to train on."""
    model = checkpoint.config.to_dict()
    vocabulary_size = model.pop("vocabulary_size")
    source_vocabulary_size = model.pop("source_vocabulary_size")
    tokenizer = {
        "kind": "marian",
        "vocabulary_size": vocabulary_size,
        "shared": checkpoint.tokenizer.shared,
        "source_vocabulary_size": source_vocabulary_size,
        "normalize_punctuation": normalize_punctuation,
    }
    return Recipe.from_dict(
        {
            "data": {
                "source_language": source_language,
                "target_language": target_language,
                "train": None,
                "validation": None,
            },
            "tokenizer": tokenizer,
            "model": model,
            "decoding": checkpoint.decoding,
        }
    )


def _normalizing(tokenizer: TranslationTokenizer, *languages: str | None) -> TranslationTokenizer:
    """The same tokenizers with the rules of punctuation of their languages."""
    sides = (tokenizer.source, tokenizer.target)
    return TranslationTokenizer(
        *(
            MarianTokenizer(
                side.model_proto,
                side.words,
                punctuation=language or "other",
                cleans_up_spaces=side.cleans_up_spaces,
            )
            for side, language in zip(sides, languages, strict=True)
        )
    )


def _new_run(run_directory: str | Path) -> Path:
    """The path of the run, absolute; nothing is there that would be written over."""
    try:
        run = Path(run_directory).resolve()
        names = sorted(path.name for path in run.iterdir()) if run.is_dir() else []
        is_other = run.exists() and not run.is_dir()
    except (OSError, ValueError) as error:  # no name of a file
        raise InputError(f"--run-dir must be a new or an empty folder. Received: {error}") from None
    if names or is_other:
        what = f"which has {names[0]}" if names else "a file"
        raise InputError(f"--run-dir must be a new or an empty folder. Received: {run}, {what}")
    return run


@contextlib.contextmanager
def _written_aside(run: Path) -> Iterator[Path]:
    """A folder beside the run, which takes its name at the end, or is removed."""
    aside = run.with_name(f".importing-{run.name}")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # what a process that was killed left
        aside.mkdir(parents=True)
        yield aside
        flush(aside)
        aside.rename(run)
        flush(run.parent)
    except OSError as error:
        raise InputError(f"A run must be writable to {run}. Received: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
