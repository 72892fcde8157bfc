"""Which pairs of a corpus are fit for training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from keras_transformer.errors import InputError


def pair_hashes(sources: Iterable[str], targets: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of each pair of sentences, uint64 `[pairs]`.

    Of 4.5 million different pairs two have the same with a probability of one in two million.
    """
    digests = (
        hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
        for source, target in zip(sources, targets, strict=True)
    )
    return np.frombuffer(b"".join(digests), "<u8")


def filter_pairs(
    source_lengths: Sequence[int] | np.ndarray,
    target_lengths: Sequence[int] | np.ndarray,
    *,
    maximum_length: int,
    maximum_length_ratio: float | None = None,
    hashes: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, int]]:
    """Chooses the pairs fit for training and counts the others by reason.

    A pair is counted once, under the first reason that holds, in the order of the counts below.

    Args:
        source_lengths: number of tokens of each source sentence, without begin and end.
        target_lengths: number of tokens of each target sentence.
        maximum_length: most tokens either side may have.
        maximum_length_ratio: most times the longer side may be as long as the shorter one.
        hashes: `[pairs]`, as of `pair_hashes`, where only the first of identical pairs is kept.

    Returns:
        `(kept, counts)`: int64 `[kept]` row numbers, ascending, and a dictionary with
        `empty_source`, `empty_target`, `too_long`, `length_ratio`, `duplicate`, `kept`, `total`.

    Raises:
        InputError: if the sides differ in number or a limit is below 1.

    Example:

    >>> kept, counts = filter_pairs([2, 0, 1], [1, 1, 3], maximum_length=2)
    >>> kept.tolist(), counts["empty_source"], counts["too_long"]
    ([0], 1, 1)
    """
    source, target = np.asarray(source_lengths), np.asarray(target_lengths)
    if source.shape != target.shape:
        raise InputError(
            "Pairs need one source and one target length each. "
            f"Received: shapes {source.shape} and {target.shape}"
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
        "empty_source": source == 0,
        "empty_target": target == 0,
        "too_long": longer > maximum_length,
        "length_ratio": longer > ratio * shorter,
    }
    good = np.ones(len(source), bool)
    counts = {}
    for reason, holds in reasons.items():
        counts[reason] = int(np.count_nonzero(good & holds))
        good &= ~holds
    kept = np.flatnonzero(good)
    survivors = len(kept)
    if hashes is not None:
        _, first = np.unique(hashes[kept], return_index=True)
        kept = kept[np.sort(first)]
    counts |= {"duplicate": survivors - len(kept), "kept": len(kept), "total": len(source)}
    return kept, counts
