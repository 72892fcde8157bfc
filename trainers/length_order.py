"""Pairs in a row from short to long, and where to cut it into batches."""

from __future__ import annotations

import heapq

import numpy as np

# A batch may end this much before it is full where the next pair would widen it.
_LEAST_FILL = 0.8
# So many rows at the end of the length order are cut with foresight, the others greedily: in a
# corpus larger than this neighbours have the same lengths, except for the longest pairs.
_ROWS_WITH_FORESIGHT = 1 << 15


def order_and_cuts(
    source: np.ndarray, target: np.ndarray, batch_tokens: int, most_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lays pairs in a row from short to long and cuts it into batches that waste the least.

    Args:
        source: `[pairs]` padded source lengths.
        target: `[pairs]` padded target lengths.
        batch_tokens: most cells of a side of a batch.
        most_rows: most rows of a batch.

    Returns:
        `(place, cuts)`: `[pairs]` place of each pair's lengths in the order, the same for pairs
        of the same lengths; and `[batches + 1]` places from 0 to the number of pairs in the row
        that is sorted by it.

    Example:

    >>> place, cuts = order_and_cuts(np.array([3, 2, 3]), np.array([2, 2, 2]), 6, 10)
    >>> place.tolist(), cuts.tolist()
    ([1, 0, 1], [0, 2, 3])
    """
    best = None
    for direction in (0, 1):
        place = _place_in_length_order(source, target, direction)
        order = np.argsort(place, kind="stable")
        waste, cuts = _cut(source[order], target[order], batch_tokens, most_rows)
        if best is None or waste < best[0]:
            best = waste, place, cuts
    return best[1:]


def _place_in_length_order(source: np.ndarray, target: np.ndarray, direction: int) -> np.ndarray:
    """Place of each pair's lengths in a walk through all (source, target) lengths that occur.

    The walk takes the pairs by the length of the longer side, which decides how many fit into a
    batch. Pairs that tie go from "target longer" to "source longer" and, at the next length,
    back: neighbours are always alike on both sides. In plain lexicographic order the shorter
    side would fall from long to short at every step, and batches there would be half padding.
    """
    longer = np.maximum(source, target).astype(np.int64)
    lean = source.astype(np.int64) - target
    lean = np.where(longer % 2 == direction, lean, -lean)
    span = int(longer.max())
    keys = longer * (2 * span + 1) + lean + span
    _, place = np.unique(keys, return_inverse=True)
    return place.astype(np.uint16 if place.max() < 1 << 16 else np.uint32)  # 16 bits: radix sort


def _cut(
    source: np.ndarray, target: np.ndarray, batch_tokens: int, most_rows: int
) -> tuple[float, np.ndarray]:
    """Cuts pairs in length order into batches that waste the least.

    Dynamic programming over the places where a batch may end: where it is full, or, once it is
    nearly full, before a pair that would widen it. Waste is padding plus a penalty for batches
    that are not full, which grows with the square of what is missing, so that nearly all batches
    weigh the same and what is left at the end is shared out.

    Args:
        source: `[pairs]` padded source lengths.
        target: `[pairs]` padded target lengths.
        batch_tokens: most cells of a side of a batch.
        most_rows: most rows of a batch.

    Returns:
        `(waste, cuts)`: waste in cells, and `[batches + 1]` places from 0 to the number of pairs.
    """
    count = len(source)
    longer = np.maximum(source, target)
    tokens_before = np.concatenate([[0], np.cumsum(source + target, dtype=np.int64)])
    waste = np.full(count + 1, np.inf)
    waste[0] = 0.0
    previous = np.zeros(count + 1, np.int64)
    reached = [0]
    while reached[0] < count:
        start = heapq.heappop(reached)
        bound = min(batch_tokens // int(longer[start]), most_rows, count - start)
        sizes = longer[start : start + bound] * np.arange(1, bound + 1)
        full = int(np.searchsorted(sizes, batch_tokens, side="right"))
        widths = [
            np.maximum.accumulate(side[start : start + full], dtype=np.int64)
            for side in (source, target)
        ]
        rows = np.array([full])
        if start >= count - _ROWS_WITH_FORESIGHT:
            widens = (np.diff(widths[0]) > 0) | (np.diff(widths[1]) > 0)
            early = np.flatnonzero(widens) + 1
            rows = np.append(early[early >= _LEAST_FILL * full], full)
        last = rows - 1
        ends = start + rows
        cells = rows * (widths[0][last] + widths[1][last])
        room = np.minimum(batch_tokens // longer[start + last], most_rows)
        missing = 1 - rows / room
        total = waste[start] + cells - (tokens_before[ends] - tokens_before[start])
        total += batch_tokens * missing**2
        for end in ends[waste[ends] == np.inf].tolist():
            heapq.heappush(reached, end)
        better = total < waste[ends]
        waste[ends[better]] = total[better]
        previous[ends[better]] = start
    cuts = [count]
    while cuts[-1] > 0:
        cuts.append(int(previous[cuts[-1]]))
    return float(waste[count]), np.array(cuts[::-1])
