"""Writes the shards of a prepared corpus; what was written whole is kept for the next attempt."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from trainers.flush import flush
from trainers.prepared import (
    HASHES,
    MANIFEST,
    SHARD_FILES,
    SOURCE_IDS,
    SOURCE_LENGTHS,
    TARGET_IDS,
    TARGET_LENGTHS,
    file_checksum,
    load_array,
)

_ARRAYS_OF = {
    SOURCE_IDS: 0,
    SOURCE_LENGTHS: 1,
    TARGET_IDS: 2,
    TARGET_LENGTHS: 3,
    HASHES: 4,
}

# Source ids, source lengths, target ids, target lengths, hashes; of some pairs.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class ShardWriter:
    """Writes shards into a folder, one after the other, and the manifest that makes them one.

    A shard is a folder `shard-00000`, written under another name, put on the disk for good and
    renamed: it is there whole or not at all. Without the manifest nobody reads them.

    Args:
        folder: the folder, which is made.
        shard_pairs: pairs of every shard but the last.

    Attributes:
        shards: entries of the manifest; those of an earlier attempt at first.
    """

    def __init__(self, folder: Path, shard_pairs: int) -> None:
        self.folder, self.shard_pairs = folder, shard_pairs
        self.shards: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)
        while self._kept(folder / self._next_name()):
            pass
        for left in folder.iterdir():  # half a shard, or those after a missing one
            if left.name not in {shard["name"] for shard in self.shards}:
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    @property
    def pairs(self) -> int:
        """Number of pairs written, those of an earlier attempt with them."""
        return sum(shard["pairs"] for shard in self.shards)

    def write(self, arrays: Arrays) -> None:
        """Writes the next shard."""
        shard = self.folder / self._next_name()
        partial = shard.with_name(f"{shard.name}.partial")
        partial.mkdir()
        for name, place in _ARRAYS_OF.items():
            data = io.BytesIO()  # NumPy does not say that a disk is full
            np.save(data, arrays[place])
            _write_for_good(partial / name, data.getbuffer())
        flush(partial)
        partial.rename(shard)
        flush(self.folder)
        self._add(shard, len(arrays[1]))

    def finish(self, facts: dict[str, Any]) -> None:
        """Writes the manifest: from now on the corpus is prepared."""
        manifest = {**facts, "pairs": self.pairs, "shards": self.shards}
        partial = self.folder / f"{MANIFEST}.partial"
        _write_for_good(partial, (json.dumps(manifest, indent=2) + "\n").encode())
        partial.rename(self.folder / MANIFEST)
        flush(self.folder)

    def _next_name(self) -> str:
        return f"shard-{len(self.shards):05d}"

    def _kept(self, shard: Path) -> bool:
        """Takes over a whole shard of an earlier attempt; there is no shorter one but the last."""
        if not shard.is_dir():
            return False
        try:
            pairs = len(load_array(shard / HASHES))
        except InputError:
            return False
        if pairs != self.shard_pairs:
            return False
        self._add(shard, pairs)
        return True

    def _add(self, shard: Path, pairs: int) -> None:
        sizes = {name: (shard / name).stat().st_size for name in SHARD_FILES}
        checksums = {name: file_checksum(shard / name) for name in SHARD_FILES}
        facts = {"name": shard.name, "pairs": pairs, "bytes": sizes, "crc32": checksums}
        self.shards.append(facts)


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turns a failure to write, as on a full disk, into an `InputError` that names the folder."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder}: must be a folder that can be written to, on a disk with room for the "
            f"prepared corpus. Received: {error.strerror or error}"
        ) from error


def _write_for_good(path: Path, data: bytes | memoryview) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
