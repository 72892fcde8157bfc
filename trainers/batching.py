"""Batches by tokens, bucketed by length: deterministic, resumable, with little padding."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError

Batch = tuple[dict[str, np.ndarray], np.ndarray]

PAD_ID = 0

# A batch may end this much before it is full where the next pair would widen it.
_LEAST_FILL = 0.8
# So many rows at the end of the length order are cut with foresight, the others greedily: in a
# corpus larger than this neighbours have the same lengths, except for the longest pairs.
_ROWS_WITH_FORESIGHT = 1 << 15


class TokenSequences(Sequence[np.ndarray]):
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
        self.starts = np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> np.ndarray:
        start = self.starts[row]
        return self.flat[start : start + self.lengths[row]]

    def padded(
        self, rows: np.ndarray, *, first_id: int | None = None, last_id: int | None = None
    ) -> np.ndarray:
        """Rows as one int32 array `[rows, longest]`, with an id put before or after each."""
        lengths = self.lengths[rows]
        before, after = int(first_id is not None), int(last_id is not None)
        ids = np.full((len(rows), int(lengths.max()) + before + after), PAD_ID, np.int32)
        columns = np.arange(ids.shape[1] - before - after)
        inside = columns < lengths[:, None]  # [rows, longest row]
        body = ids[:, before : before + len(columns)]
        body[inside] = self.flat[(self.starts[rows][:, None] + columns)[inside]]
        if before:
            ids[:, 0] = first_id
        if after:
            ids[np.arange(len(rows)), lengths + before] = last_id
        return ids


class TokenBatches:
    """Sentence pairs in batches of about the same number of tokens (section 5.1 of the paper).

    Pairs of like lengths go together, so little is padding. The longer side of a padded batch
    has at most `batch_tokens` cells, padding included, and seldom under four fifths of that.

    The pairs are laid in a row from short to long and cut. Where to cut depends on lengths alone,
    so every epoch has the same number of batches with the same padding, and any step is found
    without replaying the ones before it. Each epoch draws anew which of the pairs of equal
    lengths go to which batch, and the order of the batches.

    Args:
        source_ids: rows of source ids without begin and end; `TokenSequences` are used as they
            are, other rows are copied into them.
        target_ids: as many rows of target ids.
        batch_tokens: most padded cells, rows times length, a batch has on each side. Lengths
            count the begin or end id.
        seed: non-negative; the same seed gives the same batches.
        shuffle: whether epochs differ; otherwise batches come in the order of lengths.
        bos_id: id put before the target, as the decoder's input.
        eos_id: id put after the source and after the labels.
        batch_multiple: batches have a multiple of so many rows where possible: the number of
            replicas that share each batch. No pair is dropped for it.
        maximum_batch_sentences: most rows of a batch; by default the tokens alone decide.

    Raises:
        InputError: if there are no pairs, if sides differ in number, if a pair is longer than
            `batch_tokens`, if a row holds a reserved id, or if an argument is out of range.

    Example:

    >>> batches = TokenBatches([[5, 6], [7]], [[8], [9]], batch_tokens=8, seed=1, shuffle=False)
    >>> inputs, labels = batches.batch(batches.plan(epoch=0)[0])
    >>> inputs["source"].tolist(), inputs["target"].tolist(), labels.tolist()
    ([[7, 2, 0], [5, 6, 2]], [[1, 9], [1, 8]], [[9, 2], [8, 2]])
    """

    def __init__(
        self,
        source_ids: Sequence[Sequence[int]],
        target_ids: Sequence[Sequence[int]],
        *,
        batch_tokens: int,
        seed: int,
        shuffle: bool = True,
        bos_id: int = 1,
        eos_id: int = 2,
        batch_multiple: int = 1,
        maximum_batch_sentences: int | None = None,
    ) -> None:
        at_least = (("seed", seed, 0), ("batch_multiple", batch_multiple, 1))
        if maximum_batch_sentences is not None:
            at_least += (("maximum_batch_sentences", maximum_batch_sentences, 1),)
        for name, value, least in at_least:
            if value < least:
                raise InputError(f"{name} must be at least {least}. Received: {value}")
        self.seed, self.shuffle, self.bos_id, self.eos_id = seed, shuffle, bos_id, eos_id
        self._source, self._target = (
            ids if isinstance(ids, TokenSequences) else TokenSequences(ids)
            for ids in (source_ids, target_ids)
        )
        if len(self._source) != len(self._target) or len(self._source) == 0:
            raise InputError(
                "Batches need source and target rows, as many of the one as of the other. "
                f"Received: {len(self._source)} source rows and {len(self._target)} target rows"
            )
        for side, rows in (("source", self._source), ("target", self._target)):
            _refuse_reserved_ids(side, rows, {PAD_ID, bos_id, eos_id})
        # Padded lengths: with the end id, or with the begin id.
        source, target = self._source.lengths + 1, self._target.lengths + 1
        longest = int(np.argmax(np.maximum(source, target)))
        if max(source[longest], target[longest]) > batch_tokens:
            raise InputError(
                f"Pair {longest}: expected at most {batch_tokens} tokens on each side with the "
                f"begin or end id, as batch_tokens allows. Received: {source[longest]} source "
                f"and {target[longest]} target tokens"
            )
        most_rows = batch_tokens if maximum_batch_sentences is None else maximum_batch_sentences
        plans = []
        for direction in (0, 1):
            place = _place_in_length_order(source, target, direction)
            order = np.argsort(place, kind="stable")
            cost, cuts = _cut(source[order], target[order], batch_tokens, batch_multiple, most_rows)
            plans.append((cost, direction, place, cuts))
        _, _, self._place, self._cuts = min(plans, key=lambda plan: plan[:2])

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self._place)

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, each an int64 array of row numbers; every row occurs once."""
        if not self.shuffle:
            return self._plan_in_length_order()
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        rows = generator.permutation(len(self))
        rows = rows[np.argsort(self._place[rows], kind="stable")]  # ties stay at random
        batches = np.split(rows, self._cuts[1:-1])
        return [batches[number] for number in generator.permutation(len(batches))]

    def batch(self, rows: np.ndarray) -> Batch:
        """The padded batch of some rows.

        Args:
            rows: `[batch]` row numbers.

        Returns:
            `({"source", "target"}, labels)`, int32: source ids and the end id
            `[batch, source length]`; the begin id and target ids, and target ids and the end id,
            both `[batch, target length]`. Padding is 0.
        """
        source = self._source.padded(rows, last_id=self.eos_id)
        target = self._target.padded(rows, first_id=self.bos_id)
        labels = self._target.padded(rows, last_id=self.eos_id)
        return {"source": source, "target": target}, labels

    def batches_per_epoch(self, epoch: int = 0) -> int:
        """Number of batches of an epoch, the same for every one."""
        del epoch
        return len(self._cuts) - 1

    def padding_fraction(self, epoch: int = 0) -> float:
        """Padded cells of source and target as a fraction of all their cells in an epoch."""
        tokens = cells = 0
        for rows in self.plan(epoch):
            for side in (self._source, self._target):
                lengths = side.lengths[rows] + 1
                tokens += int(lengths.sum())
                cells += len(rows) * int(lengths.max())
        return 1 - tokens / cells

    def position(self, step: int) -> tuple[int, int]:
        """Epoch of a batch counted from the start of training, and its number in the epoch."""
        return divmod(step, self.batches_per_epoch())

    def dataset(self, start_step: int = 0) -> tf.data.Dataset:
        """Batches without end, one epoch after the other.

        Args:
            start_step: number of batches already seen: a run resumed there gets what it would
                have got without the break.

        Returns:
            Endless prefetched `tf.data.Dataset` of what `batch` returns, each
            `[None, None]` int32.
        """

        def batches() -> Iterator[Batch]:
            epoch, first = self.position(start_step)
            while True:
                for rows in self.plan(epoch)[first:]:
                    yield self.batch(rows)
                epoch, first = epoch + 1, 0

        return _as_dataset(batches, tf.data.INFINITE_CARDINALITY)

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Every pair once, in the order of lengths: the same batches at every call."""
        plan = self._plan_in_length_order()
        return _as_dataset(lambda: (self.batch(rows) for rows in plan), len(plan))

    def _plan_in_length_order(self) -> list[np.ndarray]:
        return np.split(np.argsort(self._place, kind="stable"), self._cuts[1:-1])


def _as_dataset(batches: Callable[[], Iterator[Batch]], cardinality: int) -> tf.data.Dataset:
    ids = tf.TensorSpec([None, None], tf.int32)
    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=({"source": ids, "target": ids}, ids)
    )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    return dataset.prefetch(tf.data.AUTOTUNE)


def _refuse_reserved_ids(side: str, rows: TokenSequences, reserved: set[int]) -> None:
    wrong = rows.flat < 0
    for reserved_id in reserved:
        wrong |= rows.flat == reserved_id
    if wrong.any():
        place = int(np.argmax(wrong))
        row = int(np.searchsorted(rows.starts, place, side="right")) - 1
        raise InputError(
            f"Pair {row}: expected {side} ids above 0 without padding, begin and end "
            f"({', '.join(map(str, sorted(reserved)))}). Received: {rows.flat[place]}"
        )


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
    source: np.ndarray, target: np.ndarray, batch_tokens: int, multiple: int, most_rows: int
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
        multiple: rows of a batch come in multiples of this where possible.
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
        if multiple > 1:
            # The first batch, which has the most rows, takes what the division leaves over.
            over = (count - start) % multiple
            whole = (rows - over) // multiple * multiple + over
            if full < multiple + over:
                whole = rows // multiple * multiple
            if full >= multiple:
                rows = np.unique(whole[whole >= multiple])
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
