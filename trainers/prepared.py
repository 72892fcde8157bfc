"""A corpus as token ids in files, read through memory maps: of any size in little memory."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.pair_filter import filter_pairs
from trainers.recipe_keys import DataSection
from trainers.token_sequences import TokenRows, flat_places, starts_of

FORMAT = 1
MANIFEST = "manifest.json"

# The files of a shard: ids of all its sentences one after the other, and one number a pair.
SOURCE_IDS, TARGET_IDS = "source_ids.npy", "target_ids.npy"
SOURCE_LENGTHS, TARGET_LENGTHS = "source_lengths.npy", "target_lengths.npy"
HASHES = "hashes.npy"
SHARD_FILES = (SOURCE_IDS, TARGET_IDS, SOURCE_LENGTHS, TARGET_LENGTHS, HASHES)


class ShardedRows(TokenRows):
    """Rows of token ids in the shards of one side; all but the last have equally many rows.

    Args:
        shards: flat ids of each shard, usually memory maps.
        lengths: int32 lengths of the rows of each shard.
    """

    def __init__(self, shards: list[np.ndarray], lengths: list[np.ndarray]) -> None:
        self.lengths = np.concatenate(lengths)
        self._shards, self._shard_rows = shards, len(lengths[0])
        self._starts = np.concatenate([starts_of(each) for each in lengths])

    def flat_rows(self, rows: np.ndarray) -> np.ndarray:
        lengths = self.lengths[rows]
        flat = np.empty(int(lengths.sum()), np.int32)
        ends = starts_of(lengths)  # in `flat`
        shard_of = rows // self._shard_rows
        order = np.argsort(shard_of, kind="stable")
        bounds = np.flatnonzero(np.diff(shard_of[order])) + 1
        for chosen in np.split(order, bounds):  # the rows of one shard
            if len(chosen):
                shard = self._shards[int(shard_of[chosen[0]])]
                places = flat_places(self._starts[rows[chosen]], lengths[chosen])
                flat[flat_places(ends[chosen], lengths[chosen])] = shard[places]
        return flat


class PreparedCorpus:
    """Sentence pairs as token ids, in the files that `prepare_corpus` wrote.

    Lengths are in memory, ids are read from the files as they are needed.

    Args:
        folder: the folder of the files.
        tokenizer: `TranslationTokenizer` that the ids are of.
        name: str, for messages and logs.
        fingerprints: SHA-256 of the files that the pairs were read from, by name.

    Attributes:
        source: `ShardedRows`, ids of the source sentences without begin and end.
        target: `ShardedRows`, those of the target sentences.
        fingerprints: `{"corpus": fingerprints, "tokenizer": the tokenizer's}`.

    Raises:
        InputError: if a file is missing or damaged.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: TranslationTokenizer,
        name: str,
        fingerprints: dict[str, str],
    ) -> None:
        self.folder, self.tokenizer, self.name = folder, tokenizer, name
        self.fingerprints = {"corpus": fingerprints, "tokenizer": tokenizer.fingerprint}
        shards = _checked_shards(folder)
        self._shards = [folder / shard["name"] for shard in shards]
        self.source = self._rows(SOURCE_IDS, SOURCE_LENGTHS)
        self.target = self._rows(TARGET_IDS, TARGET_LENGTHS)

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.source)

    def filter(self, data: DataSection) -> tuple[np.ndarray, dict[str, int]]:
        """Chooses the pairs fit for training, as `filter_pairs` by the recipe's section `data`."""
        hashes = None
        if data.drop_duplicates:
            hashes = np.concatenate([load_array(shard / HASHES) for shard in self._shards])
        return filter_pairs(
            self.source.lengths,
            self.target.lengths,
            maximum_length=data.maximum_length - 1,  # the begin or end id is counted
            maximum_length_ratio=data.maximum_length_ratio,
            hashes=hashes,
        )

    def _rows(self, ids_name: str, lengths_name: str) -> ShardedRows:
        ids, lengths = [], []
        for shard in self._shards:
            ids.append(load_array(shard / ids_name, memory_map=True))
            lengths.append(load_array(shard / lengths_name))
            if int(lengths[-1].sum()) != len(ids[-1]):
                raise _damaged(
                    shard / lengths_name, f"lengths of the {len(ids[-1])} ids of {ids_name}"
                )
        return ShardedRows(ids, lengths)


def file_checksum(path: Path) -> int:
    """CRC-32 of a file, read piece by piece: a gigabyte takes about a second."""
    checksum = 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def load_array(path: Path, memory_map: bool = False) -> np.ndarray:
    """Reads a `.npy` file; raises an `InputError` that names it where it is none."""
    try:
        return np.load(path, mmap_mode="r" if memory_map else None)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, f"an array ({error})") from error


def _checked_shards(folder: Path) -> list[dict[str, Any]]:
    """The manifest's shards, each file as it was written, by its size and checksum."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        shards = manifest["shards"]
        facts = {
            folder / shard["name"] / name: (size, shard["crc32"][name])
            for shard in shards
            for name, size in shard["bytes"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, "JSON as 'prepare' writes it") from error
    for file, (size, checksum) in facts.items():
        received = file.stat().st_size if file.is_file() else None
        if received != size:
            raise _damaged(file, f"{size} bytes", received)
        if file_checksum(file) != checksum:
            raise _damaged(file, f"bytes with the checksum {checksum}")
    return shards


def _damaged(path: Path, expected: str, received: int | None = None) -> InputError:
    prepared = path.parent if path.name == MANIFEST else path.parent.parent
    return InputError(
        f"{path}: expected {expected}; delete {prepared} to prepare the corpus anew. "
        f"Received: {'a missing or damaged file' if received is None else f'{received} bytes'}"
    )
