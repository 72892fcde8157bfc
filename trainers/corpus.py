"""Parallel corpora: sentences and their translations, in memory or stretch by stretch."""

from __future__ import annotations

import abc
import codecs
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from keras_transformer.errors import InputError
from trainers.text_files import (
    SEPARATORS,
    check_readable,
    count_lines,
    file_fingerprint,
    split_lines,
    stream_lines,
    whole_lines,
)

STRETCH_PAIRS = 10_000

Stretch = tuple[list[str], list[str]]

# What `tfds.TranslateFolder` would cut at or keep: any separator but LF and CR LF, and a mark.
_CUT_BY_TFDS = re.compile(f"\r(?![\n])|[{SEPARATORS[1:]}]")


@dataclasses.dataclass(frozen=True)
class ParallelCorpus:
    """Sentences and their translations, in the same order.

    Args:
        sources: list of sentences without line ends.
        targets: list of as many sentences; `targets[i]` translates `sources[i]`.
        name: where they come from, for messages and logs.

    Raises:
        InputError: if the two sides differ in length.

    Example:

    >>> corpus = ParallelCorpus(["Hello."], ["Hallo."], name="greeting")
    >>> len(corpus)
    1
    """

    sources: list[str]
    targets: list[str]
    name: str

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise InputError(
                f"{self.name}: expected as many targets as sources. Received: "
                f"{len(self.sources)} sources and {len(self.targets)} targets"
            )

    def __len__(self) -> int:
        return len(self.sources)


class CorpusSource(abc.ABC):
    """Where a split of a parallel corpus is read from, of any size.

    Attributes:
        name: str, for messages and logs.
    """

    name: str

    @abc.abstractmethod
    def check(self) -> None:
        """Raises an `InputError` for what can be found wrong without reading the corpus."""

    @abc.abstractmethod
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of what the pairs are read from, in 64 hexadecimal digits, by name."""

    @abc.abstractmethod
    def count(self) -> int:
        """Number of pairs. Raises an `InputError` where the sides have not equally many."""

    @abc.abstractmethod
    def stretches(self, pairs: int = STRETCH_PAIRS) -> Iterator[Stretch]:
        """The corpus in its order: `pairs` sources and their targets at a time, the last fewer."""

    def read(self) -> ParallelCorpus:
        """The whole corpus in memory."""
        corpus = ParallelCorpus([], [], self.name)
        for sources, targets in self.stretches():
            corpus.sources.extend(sources)
            corpus.targets.extend(targets)
        return corpus


class ParallelFiles(CorpusSource):
    """Two text files whose line i are translations of one another.

    Args:
        source_path: file of source sentences, one a line, as for `text_files.read_lines`.
        target_path: file of target sentences.

    Example:

    >>> source = ParallelFiles(
    ...     "shipped:tatoeba-deu-eng-demo.valid.en.xz", "shipped:tatoeba-deu-eng-demo.valid.de.xz"
    ... )
    >>> [len(sources) for sources, targets in source.stretches(pairs=300)]
    [300, 300, 300, 100]
    """

    def __init__(
        self, source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
    ) -> None:
        self.paths = (os.fspath(source_path), os.fspath(target_path))
        self.name = " and ".join(self.paths)

    def check(self) -> None:
        """Raises an `InputError` where a file is missing or unreadable."""
        for path in self.paths:
            check_readable(path)

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of each file's bytes, by its path as given."""
        return {path: file_fingerprint(path) for path in self.paths}

    def count(self) -> int:
        """Number of lines. Raises an `InputError` with both counts where they differ."""
        counts = [count_lines(path) for path in self.paths]
        self._check_counts(*counts)
        return counts[0]

    def stretches(self, pairs: int = STRETCH_PAIRS) -> Iterator[Stretch]:
        """The next `pairs` lines of both files at a time; raises as `count` and `read_lines`."""
        sides = [_regrouped(self._lines(path), pairs) for path in self.paths]
        before = 0
        for sources, targets in zip_longest(*sides, fillvalue=[]):
            if len(sources) != len(targets):
                # One side may have more stretches yet, the other is at its end.
                counts = [before + len(side) for side in (sources, targets)]
                rest = [sum(map(len, side)) for side in sides]
                self._check_counts(*(sum(both) for both in zip(counts, rest, strict=True)))
            before += len(sources)
            yield sources, targets

    def _lines(self, path: str) -> Iterator[list[str]]:
        return stream_lines(path)

    def _check_counts(self, sources: int, targets: int) -> None:
        if sources != targets:
            raise InputError(
                "Parallel files must have the same number of lines. Received: "
                f"{self.paths[0]} with {sources} lines and {self.paths[1]} with {targets} lines"
            )


class TranslateFolder(ParallelFiles):
    """A split of a folder laid out for `tfds.TranslateFolder`: files `LANGUAGE.SPLIT.txt` only.

    The files are read here and not by tensorflow-datasets, which would hold all of them in
    memory. What it would read differently, lines with a separator that is no LF, is refused.

    Args:
        folder: the folder.
        split: such as `"train"`.
        source_language: first part of the source file's name, such as `"en"`.
        target_language: first part of the target file's name.

    Raises:
        InputError: if the layout, split or language is wrong.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        split: str,
        source_language: str,
        target_language: str,
    ) -> None:
        folder = Path(folder).expanduser()
        files: dict[str, dict[str, Path]] = {}
        try:
            found = sorted(folder.iterdir())
        except OSError as error:
            raise InputError(
                f"{folder}: expected a folder of files LANGUAGE.SPLIT.txt. Received: {error}"
            ) from error
        for file in found:
            if file.name.count(".") != 2:
                raise InputError(
                    f"{folder}: expected files LANGUAGE.SPLIT.txt only. Received: {file.name}"
                )
            language, name, _ = file.name.split(".")
            files.setdefault(name, {})[language] = file
        languages = sorted({language for split_files in files.values() for language in split_files})
        check_languages(str(folder), languages, source_language, target_language)
        complete = sorted(
            name for name, of in files.items() if source_language in of and target_language in of
        )
        if split not in complete:
            raise InputError(
                f"{folder}: expected a split among {', '.join(complete) or 'none'}. "
                f"Received: {split!r}"
            )
        super().__init__(files[split][source_language], files[split][target_language])
        self.name = f"{folder}, split {split}"

    def _lines(self, path: str) -> Iterator[list[str]]:
        line = 1
        for data in whole_lines(path):
            lines = split_lines(data, path, line)
            text = data.decode("utf-8")
            odd = _CUT_BY_TFDS.search(text)
            place = odd.start() if odd else None
            if line == 1 and data.startswith(codecs.BOM_UTF8):
                place = 0
            if place is not None:
                at = text.count("\n", 0, place)
                raise InputError(
                    f"{path}, line {line + at}: tensorflow-datasets would cut this line without an "
                    "LF or keep a byte order mark; give the two files as parallel text files "
                    f"instead. Received: {lines[at]!r}"
                )
            line += len(lines)
            yield lines


def read_parallel_files(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> ParallelCorpus:
    """Reads two text files whose line i are translations of one another.

    Args:
        source_path: file of source sentences, one a line, as for `text_files.read_lines`.
        target_path: file of target sentences.

    Returns:
        A `ParallelCorpus`.

    Raises:
        InputError: if the files differ in their number of lines, or as `read_lines`.

    Example:

    >>> corpus = read_parallel_files(
    ...     "shipped:tatoeba-deu-eng-demo.valid.en.xz", "shipped:tatoeba-deu-eng-demo.valid.de.xz"
    ... )
    >>> len(corpus)
    1000
    """
    return ParallelFiles(source_path, target_path).read()


def check_languages(name: str, known: Iterable[str], *languages: str) -> None:
    """Raises an `InputError` where a language is unknown, or both are the same."""
    for language in languages:
        if language not in known:
            raise InputError(
                f"{name}: expected a language among {', '.join(known) or 'none'}. "
                f"Received: {language!r}"
            )
    if len(set(languages)) < len(languages):
        raise InputError(f"{name}: expected two languages. Received: {languages[0]!r} twice")


def _regrouped(lists: Iterable[list[str]], size: int) -> Iterator[list[str]]:
    """The same lines in lists of `size`."""
    lines: list[str] = []
    for more in lists:
        lines.extend(more)
        start = 0
        for start in range(size, len(lines) + 1, size):
            yield lines[start - size : start]
        del lines[:start]
    if lines:
        yield lines
