"""Text files line by line, where LF alone ends a line; whole, or block by block."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import hashlib
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from keras_transformer.errors import InputError

SHIPPED_PREFIX = "shipped:"
SHIPPED_FOLDER = Path(__file__).resolve().parent / "demo_corpus"

# What other programs take for the end of a line. Here LF alone ends one, or the two sides of a
# corpus would drift apart by a line; inside a sentence all of these are white space.
SEPARATORS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

BLOCK_BYTES = 1 << 20

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)


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
    return [line for lines in stream_lines(path) for line in lines]


def stream_lines(path: str | os.PathLike[str]) -> Iterator[list[str]]:
    """Reads a text file as `read_lines` does, about a megabyte of it at a time.

    Args:
        path: as for `read_lines`.

    Yields:
        Lists of the next lines.

    Raises:
        InputError: as `read_lines`, when the wrong place is reached.

    Example:

    >>> sum(len(lines) for lines in stream_lines("shipped:tatoeba-deu-eng-demo.test.en.xz"))
    1000
    """
    name, line = str(locate(path)), 1
    for data in whole_lines(path):
        lines = split_lines(data, name, line)
        line += len(lines)
        yield lines


def split_lines(data: bytes, name: str, first_line: int = 1) -> list[str]:
    """Splits text as `read_lines` does, for bytes that come from elsewhere than a file.

    Args:
        data: UTF-8 text.
        name: where it comes from, for errors.
        first_line: number of the first line, for errors. A byte order mark is one in line 1 only.

    Returns:
        List of lines without their ends.

    Raises:
        InputError: if it is not UTF-8; names the line.

    Example:

    >>> split_lines(b"a\\r\\nb\\rc", "stdin")
    ['a', 'b c']
    """
    if first_line == 1:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise InputError(
            f"{name}, line {line}: expected UTF-8 text. Received: byte 0x{data[error.start]:02x} "
            f"({error.reason})"
        ) from None
    if not text:
        return []
    text = text.removesuffix("\n")
    if "\r" in text:
        text = re.sub(r"\r+(?=\n|\Z)", "", text)
    for separator in SEPARATORS:  # ten fast scans; str.translate takes a hundred times as long
        text = text.replace(separator, " ")
    return text.split("\n")


def whole_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yields a file's bytes in blocks that end where a line ends, with it; the last may not."""
    rest: list[bytes] = []  # of a line that is longer than a block
    with _opened(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join([*rest, block[:end]])
                rest = []
            rest.append(block[end:])
    if last := b"".join(rest):
        yield last


def count_lines(path: str | os.PathLike[str]) -> int:
    """The number of lines that `read_lines` gives, without decoding them."""
    lines, last, is_first = 0, b"\n", True
    with _opened(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            if is_first:
                block, is_first = block.removeprefix(codecs.BOM_UTF8), False
            lines += block.count(b"\n")
            last = block[-1:] or last
    return lines + (last != b"\n")


def check_readable(path: str | os.PathLike[str]) -> None:
    """Raises an `InputError` where a file is missing, unreadable or not of its ending's kind."""
    with _opened(path) as stream:
        stream.read(1)


def file_fingerprint(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes as they lie on the disk, as 64 hexadecimal digits."""
    file = locate(path)
    with _reading(file, path), open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def locate(path: str | os.PathLike[str]) -> Path:
    """The file's path, that of the shipped file where it has the prefix `shipped:`."""
    text = os.fspath(path)
    if not text.startswith(SHIPPED_PREFIX):
        return Path(text)
    shipped = sorted(file.name for file in SHIPPED_FOLDER.glob("*.xz"))
    name = text.removeprefix(SHIPPED_PREFIX)
    if name not in shipped:
        raise InputError(f"The shipped files are {', '.join(shipped)}. Received: {text!r}")
    return SHIPPED_FOLDER / name


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file's bytes, decompressed. Whatever fails in reading them is one line."""
    file = locate(path)
    with _reading(file, path), _OPENERS.get(file.suffix, open)(file, "rb") as stream:
        yield stream


@contextlib.contextmanager
def _reading(file: Path, path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{file}: no such file. Received: {os.fspath(path)!r}") from None
    except _READ_ERRORS as error:
        raise InputError(f"{file}: cannot be read. Received: {error}") from error
