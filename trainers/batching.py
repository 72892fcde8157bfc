"""Batches by tokens, bucketed by length: deterministic, resumable, with little padding."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from trainers.length_order import order_and_cuts
from trainers.token_sequences import PAD_ID, TokenRows, TokenSequences

Batch = tuple[dict[str, np.ndarray], np.ndarray]

# The plan of the epoch that is trained and, for what is fetched ahead, of the next.
_PLANS_KEPT = 2


class TokenBatches:
    """Sentence pairs in batches of about the same number of tokens (section 5.1 of the paper).

    Pairs of like lengths go together, so little is padding. The longer side of a padded batch
    has at most `batch_tokens` cells, padding included, and seldom under four fifths of that.

    The pairs are laid in a row from short to long and cut. Where to cut depends on lengths alone,
    so every epoch has the same number of batches with the same padding, and any step is found
    without replaying the ones before it. Each epoch draws anew which of the pairs of equal
    lengths go to which batch, and the order of the batches. On how many replicas a batch is
    trained has no influence on it: it is dealt out to them when it is fetched.

    Args:
        source_ids: rows of source ids without begin and end; `TokenRows` are used as they are,
            other rows are copied into `TokenSequences`.
        target_ids: as many rows of target ids.
        rows: numbers of the rows to take, int64 `[pairs]`; all by default. Nothing is copied.
        batch_tokens: most padded cells, rows times length, a batch has on each side. Lengths
            count the begin or end id.
        seed: non-negative; the same seed gives the same batches.
        shuffle: whether epochs differ; otherwise batches come in the order of lengths.
        bos_id: id put before the target, as the decoder's input.
        eos_id: id put after the source and after the labels.
        maximum_batch_sentences: most rows of a batch; by default the tokens alone decide.

    Raises:
        InputError: if there are no pairs, if sides differ in number, if a pair is longer than
            `batch_tokens`, if a row of `TokenSequences` holds a reserved id, or if an argument
            is out of range.

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
        rows: np.ndarray | None = None,
        shuffle: bool = True,
        bos_id: int = 1,
        eos_id: int = 2,
        maximum_batch_sentences: int | None = None,
    ) -> None:
        at_least = [("seed", seed, 0)]
        if maximum_batch_sentences is not None:
            at_least.append(("maximum_batch_sentences", maximum_batch_sentences, 1))
        for name, value, least in at_least:
            if value < least:
                raise InputError(f"{name} must be at least {least}. Received: {value}")
        self.seed, self.shuffle, self.bos_id, self.eos_id = seed, shuffle, bos_id, eos_id
        self.batch_tokens = batch_tokens
        self._source, self._target = (
            ids if isinstance(ids, TokenRows) else TokenSequences(ids)
            for ids in (source_ids, target_ids)
        )
        if len(self._source) != len(self._target) or len(self._source) == 0:
            raise InputError(
                "Batches need source and target rows, as many of the one as of the other. "
                f"Received: {len(self._source)} source rows and {len(self._target)} target rows"
            )
        for side, sequences in (("source", self._source), ("target", self._target)):
            # Rows of other kinds are prepared files, whose ids were checked when written.
            if isinstance(sequences, TokenSequences):
                _refuse_reserved_ids(side, sequences, {PAD_ID, bos_id, eos_id})
        self._rows = np.arange(len(self._source)) if rows is None else np.asarray(rows, np.int64)
        if not len(self._rows):
            raise InputError("Batches need at least one row. Received: rows without a number")
        # Padded lengths: with the end id, or with the begin id.
        source, target = (each.lengths[self._rows] + 1 for each in (self._source, self._target))
        longest = int(np.argmax(np.maximum(source, target)))
        self._longest = int(max(source[longest], target[longest]))
        if self._longest > batch_tokens:
            raise InputError(
                f"Pair {self._rows[longest]}: expected at most {batch_tokens} tokens on each side "
                f"with the begin or end id, as batch_tokens allows. Received: {source[longest]} "
                f"source and {target[longest]} target tokens"
            )
        self._most_rows = maximum_batch_sentences or batch_tokens
        self._place, self._cuts = order_and_cuts(source, target, batch_tokens, self._most_rows)
        self._plans: dict[int, list[np.ndarray]] = {}
        self._plans_lock = threading.Lock()  # tf.data fetches in a thread of its own

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self._rows)

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, each an int64 array of row numbers; every row occurs once."""
        if not self.shuffle:
            return self._plan_in_length_order()
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = generator.permutation(len(self))
        order = order[np.argsort(self._place[order], kind="stable")]  # ties stay at random
        batches = np.split(self._rows[order], self._cuts[1:-1])
        return [batches[number] for number in generator.permutation(len(batches))]

    def batch(self, rows: np.ndarray) -> Batch:
        """The padded batch of some rows.

        Args:
            rows: `[batch]` row numbers.

        Returns:
            `({"source", "target"}, labels)`, int32: source ids and the end id
            `[batch, source length]`; the begin id and target ids, and target ids and the end id,
            both `[batch, target length]`. Padding is 0. Without rows, a row of one padding.
        """
        if not len(rows):
            source, target, labels = (np.full((1, 1), PAD_ID, np.int32) for _ in range(3))
            return {"source": source, "target": target}, labels
        source = self._source.padded(rows, last_id=self.eos_id)
        labels = self._target.padded(rows, last_id=self.eos_id)
        # The same ids one place to the right, without the end.
        before = labels[:, :-1]
        target = np.full_like(labels, self.bos_id)
        target[:, 1:] = np.where(before == self.eos_id, PAD_ID, before)
        return {"source": source, "target": target}, labels

    def batches_per_epoch(self, epoch: int = 0) -> int:
        """Number of batches of an epoch, the same for every one."""
        del epoch
        return len(self._cuts) - 1

    def smallest_batch(self) -> int:
        """Rows of a full batch of the longest pairs: for so many replicas there is work."""
        return min(self.batch_tokens // self._longest, self._most_rows)

    def padding_fraction(self, epoch: int = 0) -> float:
        """Padded cells of source and target as a fraction of all their cells in an epoch."""
        counts = np.array([self._count(rows) for rows in self.plan(epoch)]).sum(axis=0)
        return float(1 - (counts[0] + counts[1]) / counts[2])

    def position(self, step: int) -> tuple[int, int]:
        """Epoch of a batch counted from the start of training, and its number in the epoch."""
        return divmod(step, self.batches_per_epoch())

    def replica_counts(self, step: int, replicas: int) -> dict[str, np.ndarray]:
        """What each replica gets of a batch counted from the start of training.

        Args:
            step: number of the batch.
            replicas: number of replicas that share it.

        Returns:
            int64 arrays `[replicas]`: `source_tokens` and `target_tokens`, with the end ids, and
            `cells`, of both sides with padding.
        """
        rows = self._rows_of(step)
        counts = np.array([self._count(rows[replica::replicas]) for replica in range(replicas)])
        return dict(zip(("source_tokens", "target_tokens", "cells"), counts.T, strict=True))

    def dataset(
        self, start_step: int = 0, replicas: int = 1, local_replicas: Sequence[int] | None = None
    ) -> tf.data.Dataset:
        """Batches without end, one epoch after the other, each dealt out to replicas.

        Replica r of R gets every R-th row of a batch from row r on, padded to its own longest. A
        replica that nothing is left for gets one row of padding.

        Args:
            start_step: number of batches already seen: a run resumed there gets what it would
                have got without the break.
            replicas: number of replicas that share a batch, on all hosts together.
            local_replicas: the replicas whose parts are wanted, by default all.

        Returns:
            Endless prefetched `tf.data.Dataset` of what `batch` returns, each `[None, None]`
            int32: of each batch the parts of `local_replicas`, one after the other.
        """
        wanted = range(replicas) if local_replicas is None else tuple(local_replicas)

        def parts() -> Iterator[Batch]:
            for step in itertools.count(start_step):
                rows = self._rows_of(step)
                for replica in wanted:
                    yield self.batch(rows[replica::replicas])

        return _as_dataset(parts, tf.data.INFINITE_CARDINALITY)

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Every pair once, in the order of lengths: the same batches at every call."""
        plan = self._plan_in_length_order()
        return _as_dataset(lambda: (self.batch(rows) for rows in plan), len(plan))

    def _rows_of(self, step: int) -> np.ndarray:
        """The rows of a batch counted from the start of training."""
        epoch, number = self.position(step)
        with self._plans_lock:
            if epoch not in self._plans:
                while len(self._plans) >= _PLANS_KEPT:
                    del self._plans[next(iter(self._plans))]
                self._plans[epoch] = self.plan(epoch)
            return self._plans[epoch][number]

    def _count(self, rows: np.ndarray) -> tuple[int, int, int]:
        """Source tokens, target tokens and cells of a batch of these rows."""
        if not len(rows):
            return 0, 0, 2
        source, target = (each.lengths[rows] + 1 for each in (self._source, self._target))
        cells = len(rows) * (int(source.max()) + int(target.max()))
        return int(source.sum()), int(target.sum()), cells

    def _plan_in_length_order(self) -> list[np.ndarray]:
        return np.split(self._rows[np.argsort(self._place, kind="stable")], self._cuts[1:-1])


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
