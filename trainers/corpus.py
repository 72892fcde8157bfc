"""Parallel corpora: files or tensorflow-datasets to two lists of sentences, and their filter."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError

SHIPPED_PREFIX = "shipped:"
SHIPPED_FOLDER = Path(__file__).resolve().parent / "demo_corpus"

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)

# What other programs take for the end of a line. Here LF alone ends one, or the two sides of a
# corpus would drift apart by a line; inside a sentence all of these are white space.
_SEPARATORS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SEPARATORS_TO_SPACES = str.maketrans(dict.fromkeys("\n" + _SEPARATORS, " "))


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
    >>> len(corpus), corpus.fingerprint[:8]
    (1, 'f7a34549')
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

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the sentences (not of the name), as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for side in (self.sources, self.targets):
            digest.update(len(side).to_bytes(8, "big"))
            for sentence in side:
                encoded = sentence.encode("utf-8", "surrogatepass")
                digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return digest.hexdigest()


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Reads a text file, where LF alone ends a line.

    A carriage return at a line's end is dropped. A carriage return or any other separator inside
    a line (VT, FF, FS, GS, RS, NEL, U+2028, U+2029) becomes a space, so a file has exactly as
    many lines as it has LFs, plus one if text follows the last LF.

    Args:
        path: UTF-8 text file, plain or compressed (`.gz`, `.xz`, `.bz2`). After `shipped:`, the
            name of a file of the shipped demonstration corpus.

    Returns:
        List of lines without their ends.

    Raises:
        InputError: if the file is missing, unreadable or not UTF-8; names the file and line.

    Example:

    >>> lines = read_lines("shipped:tatoeba-deu-eng-demo.test.en.xz")
    >>> len(lines)
    1000
    """
    file = _locate(path)
    try:
        with _OPENERS.get(file.suffix, open)(file, "rb") as stream:
            data = stream.read()
    except FileNotFoundError:
        raise InputError(f"{file}: no such file. Received: {os.fspath(path)!r}") from None
    except _READ_ERRORS as error:
        raise InputError(f"{file}: cannot be read. Received: {error}") from error
    return split_lines(data, str(file))


def split_lines(data: bytes, name: str) -> list[str]:
    """Splits text as `read_lines` does, for bytes that come from elsewhere than a file.

    Args:
        data: UTF-8 text.
        name: where it comes from, for errors.

    Returns:
        List of lines without their ends.

    Raises:
        InputError: if it is not UTF-8; names the line.

    Example:

    >>> split_lines(b"a\\r\\nb\\rc", "stdin")
    ['a', 'b c']
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{name}, line {line}: expected UTF-8 text. Received: byte 0x{data[error.start]:02x} "
            f"({error.reason})"
        ) from None
    if not text:
        return []
    text = text.removesuffix("\n")
    if "\r" in text:
        text = re.sub(r"\r+(?=\n|\Z)", "", text)
    for separator in _SEPARATORS:  # ten fast scans; str.translate takes a hundred times as long
        text = text.replace(separator, " ")
    return text.split("\n")


def read_parallel_files(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> ParallelCorpus:
    """Reads two text files whose line i are translations of one another.

    Args:
        source_path: file of source sentences, one a line, as for `read_lines`.
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
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        raise InputError(
            "Parallel files must have the same number of lines. Received: "
            f"{os.fspath(source_path)} with {len(sources)} lines and "
            f"{os.fspath(target_path)} with {len(targets)} lines"
        )
    name = f"{os.fspath(source_path)} and {os.fspath(target_path)}"
    return ParallelCorpus(sources, targets, name)


def read_tfds(
    name: str,
    split: str,
    source_language: str,
    target_language: str,
    data_dir: str | os.PathLike[str] | None = None,
) -> ParallelCorpus:
    """Reads a translation set of tensorflow-datasets, downloading and preparing it when needed.

    Args:
        name: the set's name, such as `"wmt14_translate/de-en"` (section 5.1 of the paper).
        split: a split, or a part of one: `"train"`, `"validation"`, `"train[:10%]"`.
        source_language: the feature to translate from, such as `"en"`.
        target_language: the feature to translate to, such as `"de"`.
        data_dir: where prepared sets lie; by default where tensorflow-datasets puts them.

    Returns:
        A `ParallelCorpus` in the order of the prepared files.

    Raises:
        InputError: if set, split or language is unknown, or preparation fails.
    """
    tfds = _import_tfds()
    with _as_input_error(f"tensorflow-datasets set {name!r}", "a name that tfds.builder knows"):
        builder = tfds.builder(
            name, **({} if data_dir is None else {"data_dir": os.fspath(data_dir)})
        )
    _check_languages(builder, name, source_language, target_language)
    with _as_input_error(f"tensorflow-datasets set {name!r}", "to download and prepare it"):
        builder.download_and_prepare()
    return _collect(builder, name, split, source_language, target_language)


def read_tfds_folder(
    folder: str | os.PathLike[str], split: str, source_language: str, target_language: str
) -> ParallelCorpus:
    """Reads a folder laid out for `tfds.TranslateFolder`: files `LANGUAGE.SPLIT.txt`, no others.

    Args:
        folder: the folder.
        split: such as `"train"`.
        source_language: first part of the source file's name, such as `"en"`.
        target_language: first part of the target file's name.

    Returns:
        A `ParallelCorpus`.

    Raises:
        InputError: if the layout, split or language is wrong, if line counts differ, or if
            tensorflow-datasets would cut a line where there is no LF.
    """
    tfds = _import_tfds()
    name = os.fspath(folder)
    with _as_input_error(name, "a folder of files LANGUAGE.SPLIT.txt only, of equal line counts"):
        builder = tfds.TranslateFolder(name)
    _check_languages(builder, name, source_language, target_language)
    corpus = _collect(builder, name, split, source_language, target_language)
    # TranslateFolder cuts lines at every separator Unicode knows. Cut on one side only, the
    # counts differ; cut on both, all later pairs are wrong and nothing would show it.
    sides = ((source_language, corpus.sources), (target_language, corpus.targets))
    for language, sentences in sides:
        file = next(Path(name).glob(f"{language}.{split}.*"))
        lines = read_lines(file)
        if lines != sentences:
            pairs = enumerate(zip(lines, sentences, strict=False), start=1)
            line = next((i for i, (ours, theirs) in pairs if ours != theirs), len(lines))
            raise InputError(
                f"{file}, line {line}: tensorflow-datasets would cut this line without an LF or "
                "keep a byte order mark; give the two files as parallel text files instead. "
                f"Received: {lines[line - 1]!r}"
            )
    return corpus


def filter_pairs(
    corpus: ParallelCorpus,
    source_lengths: Sequence[int] | np.ndarray,
    target_lengths: Sequence[int] | np.ndarray,
    *,
    maximum_length: int,
    maximum_length_ratio: float | None = None,
    drop_duplicates: bool = False,
) -> tuple[np.ndarray, dict[str, int]]:
    """Chooses the pairs fit for training and counts the others by reason.

    A pair is counted once, under the first reason that holds, in the order of the counts below.

    Args:
        corpus: the pairs.
        source_lengths: number of tokens of each source sentence, without begin and end.
        target_lengths: number of tokens of each target sentence.
        maximum_length: most tokens either side may have.
        maximum_length_ratio: most times the longer side may be as long as the shorter one.
        drop_duplicates: whether to keep only the first of identical pairs.

    Returns:
        `(kept, counts)`: int64 `[kept]` row numbers, ascending, and a dictionary with
        `empty_source`, `empty_target`, `too_long`, `length_ratio`, `duplicate`, `kept`, `total`.
        White space alone is empty.

    Raises:
        InputError: if the lengths are not one a pair or a limit is below 1.

    Example:

    >>> corpus = ParallelCorpus(["a b", "", "c"], ["d", "e", "f g h"], name="three pairs")
    >>> kept, counts = filter_pairs(corpus, [2, 0, 1], [1, 1, 3], maximum_length=2)
    >>> kept.tolist(), counts["empty_source"], counts["too_long"]
    ([0], 1, 1)
    """
    source, target = np.asarray(source_lengths), np.asarray(target_lengths)
    if source.shape != (len(corpus),) or target.shape != (len(corpus),):
        raise InputError(
            f"{corpus.name}: expected one source and one target length for each of "
            f"{len(corpus)} pairs. Received: shapes {source.shape} and {target.shape}"
        )
    if maximum_length < 1:
        raise InputError(f"maximum_length must be at least 1. Received: {maximum_length}")
    if maximum_length_ratio is not None and maximum_length_ratio < 1:
        raise InputError(
            f"maximum_length_ratio must be at least 1. Received: {maximum_length_ratio}"
        )
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    ratio = maximum_length if maximum_length_ratio is None else maximum_length_ratio
    reasons = {
        "empty_source": (source == 0) | _blank(corpus.sources),
        "empty_target": (target == 0) | _blank(corpus.targets),
        "too_long": longer > maximum_length,
        "length_ratio": longer > ratio * shorter,
    }
    good = np.ones(len(corpus), bool)
    counts = {}
    for reason, holds in reasons.items():
        counts[reason] = int(np.count_nonzero(good & holds))
        good &= ~holds
    kept = np.flatnonzero(good)
    survivors = len(kept)
    if drop_duplicates:
        first = {(corpus.sources[i], corpus.targets[i]): i for i in reversed(kept.tolist())}
        kept = np.sort(np.fromiter(first.values(), np.int64, len(first)))
    counts |= {"duplicate": survivors - len(kept), "kept": len(kept), "total": len(corpus)}
    return kept, counts


def _blank(sentences: list[str]) -> np.ndarray:
    blank = (not sentence or sentence.isspace() for sentence in sentences)
    return np.fromiter(blank, bool, len(sentences))


def _locate(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not text.startswith(SHIPPED_PREFIX):
        return Path(text)
    shipped = sorted(file.name for file in SHIPPED_FOLDER.glob("*.xz"))
    name = text.removeprefix(SHIPPED_PREFIX)
    if name not in shipped:
        raise InputError(f"The shipped files are {', '.join(shipped)}. Received: {text!r}")
    return SHIPPED_FOLDER / name


def _import_tfds() -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise InputError(
            "Reading a tensorflow-datasets set needs `pip install tensorflow-datasets`. "
            f"Received: {error}"
        ) from error
    return tfds


@contextlib.contextmanager
def _as_input_error(what: str, expected: str) -> Iterator[None]:
    """Turns whatever tensorflow-datasets raises into one line, and its prints to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Exception as error:  # its builders raise anything: network, manual downloads, splits
        message = str(error).strip() or type(error).__name__
        raise InputError(
            f"{what}: expected {expected}. Received: {type(error).__name__}: "
            f"{message.splitlines()[0]}"
        ) from error


def _check_languages(builder: Any, name: str, *languages: str) -> None:
    features = builder.info.features
    text = _import_tfds().features.Text
    items = features.items() if hasattr(features, "items") else ()
    known = sorted(language for language, feature in items if isinstance(feature, text))
    for language in languages:
        if language not in known:
            raise InputError(
                f"{name}: expected a language among {', '.join(known) or 'none'}. "
                f"Received: {language!r}"
            )
    if len(set(languages)) < len(languages):
        raise InputError(f"{name}: expected two languages. Received: {languages[0]!r} twice")


def _collect(
    builder: Any, name: str, split: str, source_language: str, target_language: str
) -> ParallelCorpus:
    known = ", ".join(sorted(builder.info.splits))
    sources: list[str] = []
    targets: list[str] = []
    with _as_input_error(f"{name}, split {split!r}", f"a split among {known} or a part of one"):
        dataset = builder.as_dataset(split=split, shuffle_files=False)
    with _as_input_error(f"{name}, split {split!r}", "prepared sentences in UTF-8"):
        dataset = dataset.map(lambda pair: (pair[source_language], pair[target_language]))
        for batch in dataset.batch(1024).prefetch(2).as_numpy_iterator():
            for side, texts in zip((sources, targets), batch, strict=True):
                side.extend(_sentence(text) for text in texts.tolist())
    return ParallelCorpus(sources, targets, f"{name}, split {split}")


def _sentence(text: bytes) -> str:
    return text.decode("utf-8").rstrip("\r\n").translate(_SEPARATORS_TO_SPACES)
