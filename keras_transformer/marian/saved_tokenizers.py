"""The tokenizers of a Marian checkpoint in a folder: its SentencePiece models and lists of words.

The SentencePiece models are kept byte for byte. `tokenizer.json` holds the SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.marian.tokenizer import MarianTokenizer
from keras_transformer.tokenizer_files import FORMAT, read_unchanged, write_file, write_json

_SIDES = ("source", "target")


def save_marian(directory: Path, source: MarianTokenizer, target: MarianTokenizer) -> None:
    """Writes both tokenizers to a folder that exists.

    Args:
        directory: path of the folder.
        source: `MarianTokenizer` of the source language.
        target: `MarianTokenizer` of the target language. When both have the same words, one list
            of words is written.
    """
    tokenizers = dict(zip(_SIDES, (source, target), strict=True))
    for side, tokenizer in tokenizers.items():
        write_file(directory / f"{side}.spm", tokenizer.model_proto)
    shared = source.words == target.words
    words = {"shared": source.words} if shared else {s: t.words for s, t in tokenizers.items()}
    for side, listed in words.items():
        write_json(directory / f"{side}.words.json", list(listed))
    description = {
        "format": FORMAT,
        "kind": "marian",
        "shared": shared,
        **{side: tokenizer.options for side, tokenizer in tokenizers.items()},
        "files": {
            name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
            for name in _file_names(shared)
        },
    }
    write_json(directory / "tokenizer.json", description)  # last: it vouches for the others


def load_marian(path: Path, description: dict) -> tuple[MarianTokenizer, MarianTokenizer]:
    """Reads what `save_marian` wrote.

    Args:
        path: path of `tokenizer.json`.
        description: dict, its content.

    Returns:
        Two `MarianTokenizer`s, of the source and of the target language.

    Raises:
        InputError: naming the file that is missing, changed since it was saved or no tokenizer.
    """
    try:
        shared = description["shared"] is True
        fingerprints = {name: description["files"][name] for name in _file_names(shared)}
        options = [
            {name: description[side][name] for name in ("punctuation", "cleans_up_spaces")}
            for side in _SIDES
        ]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: must have the keys source and target, each with punctuation and "
            f"cleans_up_spaces, and files, with the SHA-256 of each. "
            f"Received: {', '.join(description)}"
        ) from error
    content = {
        name: read_unchanged(path.with_name(name), value) for name, value in fingerprints.items()
    }
    tokenizers = []
    for side, chosen in zip(_SIDES, options, strict=True):
        words = json.loads(content[f"{'shared' if shared else side}.words.json"])
        tokenizers.append(MarianTokenizer(content[f"{side}.spm"], words, **chosen))
    return tokenizers[0], tokenizers[1]


def _file_names(shared: bool) -> list[str]:
    words = ("shared",) if shared else _SIDES
    return [*(f"{side}.spm" for side in _SIDES), *(f"{side}.words.json" for side in words)]
