"""Files that every form of checkpoint must hold, and the tokenizers that are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.marian.tokenizer import MarianTokenizer
from keras_transformer.marian.vocabulary import MarianVocabulary
from keras_transformer.translation_tokenizer import TranslationTokenizer


def needed_file(directory: Path, name: str, form: str) -> Path:
    """The path of a file of a checkpoint, which must be there.

    Args:
        directory: Path.
        name: str.
        form: str, what kind of checkpoint needs it, for the message.
    """
    path = directory / name
    if not path.is_file():
        raise InputError(f"{form} must hold {name}. Received: {directory} without it")
    return path


def read_tokenizer(
    directory: Path,
    form: str,
    source: MarianVocabulary,
    target: MarianVocabulary,
    **options: bool,
) -> TranslationTokenizer:
    """The tokenizers of `source.spm` and `target.spm` over a checkpoint's words.

    Args:
        directory: Path.
        form: str, as for `needed_file`.
        source: `MarianVocabulary`.
        target: `MarianVocabulary`.
        **options: of `MarianTokenizer`.
    """
    tokenizers = []
    for side, vocabulary in (("source", source), ("target", target)):
        path = needed_file(directory, f"{side}.spm", form)
        try:
            tokenizers.append(MarianTokenizer(path.read_bytes(), vocabulary.words, **options))
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from None
    return TranslationTokenizer(*tokenizers)


def vocabulary_of(file: str, words: Mapping[str, int], **options: Any) -> MarianVocabulary:
    """`MarianVocabulary.of`, whose messages name the file that the words are from."""
    try:
        return MarianVocabulary.of(words, **options)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def config_of(
    tying: str, source_words: int | None, target_words: int, fields: dict[str, Any]
) -> TransformerConfig:
    """The config of a checkpoint.

    Args:
        tying: str, what the checkpoint ties.
        source_words: int or None. Size of the source's own vocabulary.
        target_words: int.
        fields: dict of all other fields.
    """
    if tying == "three-way" and source_words is not None:
        # One matrix whose rows are one word in the source and another in the target: our two
        # vocabularies have the rows in two orders, so that the source has a copy of its own.
        tying = "output"
    return TransformerConfig(
        vocabulary_size=target_words,
        source_vocabulary_size=source_words,
        tying=tying,
        **fields,
    )
