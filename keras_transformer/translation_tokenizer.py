"""The tokenizers of both languages, and the folder they are saved in."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.marian.saved_tokenizers import load_marian, save_marian
from keras_transformer.marian.tokenizer import MarianTokenizer
from keras_transformer.tokenizer import SubwordTokenizer
from keras_transformer.tokenizer_files import FORMAT, read_file, read_unchanged, write_json

Tokenizer = SubwordTokenizer | MarianTokenizer


class TranslationTokenizer:
    """The tokenizers of the source and of the target language: one shared vocabulary, or two.

    The paper shares one vocabulary between both languages (section 5.1), which lets source,
    target and output use one embedding matrix (section 3.4).

    Args:
        source: `SubwordTokenizer`, or a `MarianTokenizer` of an imported checkpoint.
        target: as `source`; the very object `source` when a `SubwordTokenizer` is shared.

    Attributes:
        source: as given.
        target: as given.
        shared: bool, both have one vocabulary: `source` is `target`, or they are
            `MarianTokenizer`s over the same words.
        fingerprint: str, identifies both models and their order.

    Example:

    >>> tokenizer = TranslationTokenizer.train(["ein Haus"], ["a house"], vocabulary_size=272)
    >>> tokenizer.shared, tokenizer.target.decode(tokenizer.source.encode("Haus"))
    (True, 'Haus')
    """

    def __init__(self, source: Tokenizer, target: Tokenizer):
        if type(source) is not type(target):
            raise InputError(
                f"Both tokenizers must be of one kind. Received: {type(source).__name__} and "
                f"{type(target).__name__}"
            )
        self.source = source
        self.target = target
        self.shared = source is target or (
            isinstance(source, MarianTokenizer) and source.words == target.words
        )
        self.fingerprint = (
            source.fingerprint
            if source is target
            else hashlib.sha256((source.fingerprint + target.fingerprint).encode()).hexdigest()
        )

    @classmethod
    def train(
        cls,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        vocabulary_size: int,
        shared: bool = True,
        source_vocabulary_size: int | None = None,
        **options,
    ) -> TranslationTokenizer:
        """Learns one vocabulary from both languages, or one from each.

        Args:
            sources: iterable of str, read once.
            targets: iterable of str, read once.
            vocabulary_size: int, ids of the shared model, or of each.
            shared: bool, one model for both languages.
            source_vocabulary_size: int, the size of the source's own model when it differs.
            **options: as `SubwordTokenizer.train`.

        Returns:
            A `TranslationTokenizer`.

        Raises:
            InputError: as `SubwordTokenizer.train`, naming the side; or if a shared vocabulary
                is given two sizes.
        """
        if shared:
            if source_vocabulary_size not in (None, vocabulary_size):
                raise InputError(
                    f"A shared vocabulary has one size, vocabulary_size={vocabulary_size}. "
                    f"Received: source_vocabulary_size={source_vocabulary_size}"
                )
            both = SubwordTokenizer.train(
                itertools.chain(sources, targets), vocabulary_size=vocabulary_size, **options
            )
            return cls(both, both)
        if source_vocabulary_size is None:
            source_vocabulary_size = vocabulary_size
        models = []
        for side, sentences, size in (
            ("source", sources, source_vocabulary_size),
            ("target", targets, vocabulary_size),
        ):
            try:
                models.append(SubwordTokenizer.train(sentences, vocabulary_size=size, **options))
            except InputError as error:
                raise InputError(f"{side}: {error}") from error
        return cls(*models)

    def save(self, directory: str | os.PathLike) -> None:
        """Writes `tokenizer.json` and the files it vouches for.

        These are `shared.model`, or `source.model` and `target.model`; for two `MarianTokenizer`s
        `source.spm`, `target.spm` and `shared.words.json`, or a list of words for each side.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if isinstance(self.source, MarianTokenizer):
            save_marian(directory, self.source, self.target)
            return
        models = {"source.model": self.source, "target.model": self.target}
        if self.shared:
            models = {"shared.model": self.source}
        for name, tokenizer in models.items():
            tokenizer.save(directory / name)
        description = {
            "format": FORMAT,
            "shared": self.shared,
            "models": {
                name: {"fingerprint": tokenizer.fingerprint, **tokenizer.options}
                for name, tokenizer in models.items()
            },
        }
        write_json(directory / "tokenizer.json", description)  # last: it vouches for the others

    @classmethod
    def load(cls, directory: str | os.PathLike) -> TranslationTokenizer:
        """Reads what `save` wrote.

        Raises:
            InputError: naming the file that is missing, changed since it was saved or no
                tokenizer.
        """
        path = Path(directory) / "tokenizer.json"
        content = read_file(path)
        try:
            description = json.loads(content)
            version, shared = description["format"], description["shared"]
            kind = description.get("kind")
            if kind is None:
                names = ["shared.model"] if shared is True else ["source.model", "target.model"]
                fingerprints = {name: description["models"][name]["fingerprint"] for name in names}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: must be JSON with the keys format, shared and models, each model with "
                f"a fingerprint. Received: {content[:60]!r}"
            ) from error
        if version != FORMAT:
            raise InputError(f"{path}: format must be {FORMAT}. Received: {version!r}")
        if kind == "marian":
            return cls(*load_marian(path, description))
        if kind is not None:
            raise InputError(f"{path}: kind must be marian or left out. Received: {kind!r}")
        models = [
            SubwordTokenizer(read_unchanged(path.with_name(name), fingerprint))
            for name, fingerprint in fingerprints.items()
        ]
        return cls(models[0], models[-1])
