"""Rows of token ids in few flat arrays, and how rows become a padded batch."""

from __future__ import annotations

import abc
from array import array
from collections.abc import Iterable, Sequence

import numpy as np

PAD_ID = 0


class TokenRows(Sequence[np.ndarray], abc.ABC):
    """Rows of token ids, wherever they lie.

    Attributes:
        lengths: int32 `[rows]`, number of ids of each row.
    """

    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> np.ndarray:
        return self.flat_rows(np.array([range(len(self))[row]]))

    @abc.abstractmethod
    def flat_rows(self, rows: np.ndarray) -> np.ndarray:
        """The ids of some rows, one row after the other, in one int32 array."""

    def padded(
        self, rows: np.ndarray, *, first_id: int | None = None, last_id: int | None = None
    ) -> np.ndarray:
        """Rows as one int32 array `[rows, longest]`, with an id put before or after each."""
        lengths = self.lengths[rows]
        before, after = int(first_id is not None), int(last_id is not None)
        ids = np.full((len(rows), int(lengths.max()) + before + after), PAD_ID, np.int32)
        columns = np.arange(ids.shape[1] - before - after)
        inside = columns < lengths[:, None]  # [rows, longest row]
        ids[:, before : before + len(columns)][inside] = self.flat_rows(rows)
        if before:
            ids[:, 0] = first_id
        if after:
            ids[np.arange(len(rows)), lengths + before] = last_id
        return ids


class TokenSequences(TokenRows):
    """Rows of token ids in one flat int32 array: 4 bytes a token instead of some 36 in lists.

    Args:
        rows: iterable of rows of ids; a generator is consumed row by row.

    Example:

    >>> rows = TokenSequences(ids for ids in ([5, 6], [], [7]))
    >>> len(rows), rows[0].tolist(), rows.lengths.tolist()
    (3, [5, 6], [2, 0, 1])
    """

    def __init__(self, rows: Iterable[Sequence[int] | np.ndarray]) -> None:
        flat, lengths = array("i"), array("i")
        for row in rows:
            if isinstance(row, np.ndarray):
                flat.frombytes(row.astype(np.int32, casting="same_kind").tobytes())
            else:
                flat.extend(row)
            lengths.append(len(row))
        self.flat = np.array(flat, np.int32)
        self.lengths = np.array(lengths, np.int32)
        self.starts = starts_of(self.lengths)

    def flat_rows(self, rows: np.ndarray) -> np.ndarray:
        return self.flat[flat_places(self.starts[rows], self.lengths[rows])]


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Where each row starts in the flat array, int64 `[rows]`."""
    return np.cumsum(lengths, dtype=np.int64) - lengths


def flat_places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The places of rows' ids in the flat array, one row after the other.

    Example:

    >>> flat_places(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    return np.repeat(starts - starts_of(lengths), lengths) + np.arange(lengths.sum())
