"""The shards of a corpus: read line by line, and written again in the order they were read.

Runs on Beam's workers and needs apache-beam alone. A runner repeats what failed and may do so on
another machine, so nothing is written under its final name but by renaming a whole file.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import TaggedOutput

# Below the output: one file for each shard in which lines failed.
FAILED = "failed"
# Lines that are put in order in memory at once. Shards may be of any size.
_BLOCK = 10_000
# By Python's own readers, which raise for a file that ends too early. Beam's do not.
_COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open}


def shard_name(path: str) -> str:
    """The file's name, by which a shard is known."""
    return path.rpartition("/")[2]


def failed_name(shard: str) -> str:
    """The name, below the output, of the file that tells which lines of a shard failed."""
    return f"{FAILED}/{shard}.jsonl"


class ReadShard(beam.DoFn):
    """Path of a shard to its lines, `((shard, line number), line)`, and `(shard, lines)`.

    LF alone ends a line, and what follows the last LF is a line unless it is nothing.
    """

    LENGTHS = "lengths"

    def process(self, element: Any) -> Iterator[Any]:
        """Yields the lines, and at last their number as the output `LENGTHS`."""
        shard = shard_name(element)
        number = 0
        with _opened(element, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield (shard, number), line.removesuffix(b"\n")
        yield TaggedOutput(self.LENGTHS, (shard, number))


class WriteBlock(beam.DoFn):
    """A block of a shard's lines, in any order, to a temporary file of them in order.

    Args:
        temporary: str, path of a folder.
    """

    def __init__(self, temporary: str) -> None:
        self._temporary = temporary

    @staticmethod
    def key(element: Any) -> Any:
        """From a translated line to a line with the key of its block."""
        (shard, number), (line, failure) = element
        return (shard, number // _BLOCK), (number, line, failure)

    def process(self, element: Any) -> Iterator[Any]:
        """Yields `(shard, (block, number of lines, path, path of failures or ""))`."""
        (shard, block), rows = element
        rows = sorted(rows, key=lambda row: row[0])
        path = f"{self._temporary}/{uuid.uuid4().hex}"
        failures = [(number, *failure) for number, _, failure in rows if failure is not None]
        with _opened(path, "wb") as file:
            file.writelines(line + b"\n" for _, line, _ in rows)
        if failures:
            with _opened(f"{path}-failed", "wb") as file:
                file.writelines(_record(shard, *failure) for failure in failures)
        yield shard, (block, len(rows), path, f"{path}-failed" if failures else "")


class WriteShard(beam.DoFn):
    """The blocks of a shard to its file below the output, and one of the lines that failed.

    Args:
        output: str, path of a folder.
        temporary: str, path of a folder of the same file system.
    """

    def __init__(self, output: str, temporary: str) -> None:
        self._output = output
        self._temporary = temporary

    def process(self, element: Any) -> Iterator[Any]:
        """Yields the shard's name, once its file is whole."""
        shard, groups = element
        blocks = sorted(groups["blocks"])
        expected, written = sum(groups["lengths"]), sum(lines for _, lines, _, _ in blocks)
        if written != expected:
            raise RuntimeError(f"{shard}: {written} of {expected} lines came back")
        failures = [failed for _, _, _, failed in blocks if failed]
        if failures:
            self._write(failures, failed_name(shard))
        else:
            self._remove(failed_name(shard))  # of an earlier run
        self._write([path for _, _, path, _ in blocks], shard)
        yield shard

    def _write(self, paths: Iterable[str], name: str) -> None:
        """Joins files aside, the same however often it is done, and renames the result."""
        # The end of the name decides whether it is compressed.
        aside = f"{self._temporary}/{uuid.uuid4().hex}-{shard_name(name)}"
        with _opened(aside, "wb") as target:
            for path in paths:
                with _opened(path, "rb") as source:
                    shutil.copyfileobj(source, target)
        path = f"{self._output}/{name}"
        make_folder(path.rpartition("/")[0])
        FileSystems.rename([aside], [path])

    def _remove(self, name: str) -> None:
        path = f"{self._output}/{name}"
        if FileSystems.exists(path):
            with contextlib.suppress(BeamIOError):  # a repetition of this bundle was faster
                FileSystems.delete([path])


def make_folder(path: str) -> None:
    """Makes a folder where there is none, while others may be doing so."""
    if not FileSystems.exists(path):
        with contextlib.suppress(OSError):
            FileSystems.mkdirs(path)


def remove_folder(path: str) -> None:
    """Removes a folder with all that is in it."""
    # Object stores know no folders, only names that begin alike, which the slash tells them.
    with contextlib.suppress(BeamIOError):
        FileSystems.delete([f"{path}/" if "://" in path else path])


def count_lines(path: str) -> int:
    """The number of lines of a file in any of Beam's file systems; 0 where there is none."""
    if not FileSystems.exists(path):
        return 0
    with _opened(path, "rb") as file:
        return sum(1 for _ in file)


def _record(shard: str, number: int, line: bytes, error: str) -> bytes:
    """A line of JSON about a line that failed."""
    record = {
        "shard": shard,
        "line": number,
        "text": line.decode("utf-8", "replace"),
        "error": error,
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


@contextlib.contextmanager
def _opened(path: str, mode: str) -> Iterator[BinaryIO]:
    """A file of any of Beam's file systems, as bytes, decompressed where its name says so."""
    access = FileSystems.create if mode == "wb" else FileSystems.open
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(access(path, compression_type=CompressionTypes.UNCOMPRESSED))
        for suffix, compressed in _COMPRESSED.items():
            if path.endswith(suffix):
                file = stack.enter_context(compressed(file, mode))
        yield file
