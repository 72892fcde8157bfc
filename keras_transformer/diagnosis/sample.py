"""Sentence pairs as padded ids, which probes look at a model with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.tokenizer import BOS_ID, EOS_ID, PAD_ID


class Sample(NamedTuple):
    """N pairs, shifted as training must shift them.

    Attributes:
        source: int32 array [N, S], words and the end id, 0 = padding.
        target: int32 array [N, T], the start id and words.
        labels: int32 array [N, T], words and the end id.
    """

    source: np.ndarray
    target: np.ndarray
    labels: np.ndarray

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """What a model is called with."""
        return {"source": self.source, "target": self.target}

    def first(self, count: int) -> Sample:
        """The first pairs, with no more padding than they need."""
        source, labels = self.source[:count], self.labels[:count]
        width, length = (int((ids != PAD_ID).sum(axis=1).max()) for ids in (source, labels))
        return Sample(source[:, :width], self.target[:count, :length], labels[:, :length])


def make_sample(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Sample:
    """Pads pairs of ids without start and end.

    Args:
        sources: rows of source ids.
        targets: as many rows of target ids.

    Returns:
        A `Sample`.

    Raises:
        InputError: where there is no pair, or one side has more than the other.

    Example:

    >>> sample = make_sample([[5, 6], [7]], [[8], [9, 10]])
    >>> sample.source.tolist(), sample.target.tolist(), sample.labels.tolist()
    ([[5, 6, 2], [7, 2, 0]], [[1, 8, 0], [1, 9, 10]], [[8, 2, 0], [9, 10, 2]])
    """
    if len(sources) != len(targets) or not len(sources):
        raise InputError(
            "A sample must have pairs, as many sources as targets. "
            f"Received: {len(sources)} and {len(targets)}"
        )
    return Sample(
        _padded([[*row, EOS_ID] for row in sources]),
        _padded([[BOS_ID, *row] for row in targets]),
        _padded([[*row, EOS_ID] for row in targets]),
    )


def other_words(ids: Any, vocabulary_size: int) -> np.ndarray:
    """Another word in the place of each; ids of padding, start and end stay.

    Args:
        ids: int array.
        vocabulary_size: int.

    Example:

    >>> other_words([0, 2, 4, 9], 10).tolist()
    [0, 2, 7, 6]
    """
    ids = np.asarray(ids)
    words = max(vocabulary_size - 4, 2)
    return np.where(ids >= 4, (ids - 4 + 3) % words + 4, ids).astype(np.int32)


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    ids = np.full((len(rows), max(map(len, rows))), PAD_ID, np.int32)
    for row, words in enumerate(rows):
        ids[row, : len(words)] = words
    return ids
