"""Beam search and greedy search over any step function (section 6.1 of the paper).

The search knows no Transformer: it calls `step(tokens, index, state)` for the logits of the next
token and carries the state it is given. It runs eagerly and inside an exported `tf.function`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.search_rules import SearchRules
from keras_transformer.top_k import top_k_of_many

# The score and log-probability of an empty slot: fewer than `beam_size` hypotheses exist.
EMPTY_SCORE = -1e9

# Sentences that have finished leave the batch as soon as they are this share of it.
_LEAVE_SHARE = 1 / 8

_NEVER = -math.inf


class SearchState(NamedTuple):
    """What the step function carries from token to token.

    Attributes:
        hypotheses: nest of tensors `(N, K, ...)`, one entry a hypothesis. The search reorders them
            when hypotheses are dropped or branch.
        sentences: nest of tensors `(N, ...)`, one entry a sentence, shared by its K hypotheses
            (keys, values and mask of the encoder's output). The search never reorders them within
            a sentence.
    """

    hypotheses: Any
    sentences: Any


class SearchResult(NamedTuple):
    """The K best hypotheses of every sentence, best first.

    Attributes:
        sequences: int32 `(N, K, T)`, without the start token, with the end token, pad after it.
            T is the longest hypothesis of the batch.
        lengths: int32 `(N, K)`, counting the end token; 0 marks an empty slot.
        scores: float32 `(N, K)`, log-probability over length penalty, always finite.
        log_probabilities: float32 `(N, K)`, of the whole sequence, end token included.
    """

    sequences: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor
    log_probabilities: tf.Tensor


Step = Callable[[tf.Tensor, tf.Tensor, SearchState], tuple[tf.Tensor, SearchState]]


class _Rows(NamedTuple):
    """The sentences still in the batch, n <= N of them."""

    sentence: tf.Tensor  # int32 (n,): row in the caller's batch
    limit: tf.Tensor  # int32 (n,): most tokens, end token included
    limit_penalty: tf.Tensor  # float32 (n,): length penalty at the limit
    tokens: tf.Tensor  # int32 (n, K): last token of each open hypothesis
    open_scores: tf.Tensor  # float32 (n, K): log-probability, best first; -inf: no hypothesis
    open_nodes: tf.Tensor  # int32 (n, K): node of the last token
    finished_scores: tf.Tensor  # float32 (n, K): score, best first; -inf: no hypothesis
    finished_nodes: tf.Tensor  # int32 (n, K): node of the last token before the end token
    done: tf.Tensor  # bool (n,): no open hypothesis can still win


def beam_search(
    step: Step,
    state: SearchState,
    *,
    beam_size: int,
    maximum_lengths: tf.Tensor,
    rules: SearchRules,
    bos_id: int = 1,
    eos_id: int = 2,
    pad_id: int = 0,
    state_shapes: SearchState | None = None,
) -> SearchResult:
    """Finds the `beam_size` best token sequences of each sentence (section 6.1).

    Each step looks at the best `2 * beam_size` continuations of a sentence. Those that end go to
    a finished set of `beam_size`, best by score; the best `beam_size` others stay open. At the
    sentence's limit only the end token may be taken, so every hypothesis ends with it; one as long
    as the limit may have been cut. A sentence that is finished by the rules leaves the batch, and
    its result never depends on its batch mates. `beam_size` 1 is greedy search: the likeliest
    token each time, until that is the end token.

    The pad, start and suppressed tokens are never generated but keep their share of the
    probability. A hypothesis whose logits hold NaN is dropped. Where fewer than `beam_size`
    hypotheses exist, the last slots are empty: length 0, all pad, score and log-probability
    `EMPTY_SCORE` (-1e9).

    Args:
        step: `step(tokens, index, state)` returns the logits `(n, K, V)` of the next token, of
            any float type with V static, and the new state. `tokens`, int32 `(n, K)`, are the
            last tokens, and `index`, an int32 scalar, their position, 0 at the start token.
            n shrinks as sentences leave.
        state: the `SearchState` before the start token, its leading dimensions N (and K).
        beam_size: K, the number of hypotheses kept, at least 1.
        maximum_lengths: int32 `(N,)`, the most tokens of each sentence, end token included.
            A limit below 1 counts as 1.
        rules: `SearchRules`: the length penalty, which ends count, when a sentence is finished.
        bos_id: id of the start token.
        eos_id: id of the end token.
        pad_id: id of padding.
        state_shapes: `SearchState` of `tf.TensorShape`, the static shapes that hold at every
            step. By default all dimensions after N stay as they are, except that one of size 0
            is taken to grow: a key/value cache that begins empty and grows by concatenation.

    Returns:
        A `SearchResult`.

    Raises:
        InputError: for an argument out of range, or logits of the wrong shape.

    Example:

    >>> table = tf.math.log([[0.0, 0.0, 0.1, 0.9], [0.0, 0.0, 0.7, 0.3]])   # (step, V)
    >>> def step(tokens, index, state):
    ...     return tf.zeros(tokens.shape + [1]) + table[index], state
    >>> result = beam_search(
    ...     step,
    ...     SearchState((), ()),
    ...     beam_size=2,
    ...     maximum_lengths=tf.constant([2]),
    ...     rules=SearchRules(alpha=0.0),
    ... )
    >>> result.sequences.numpy().tolist()
    [[[3, 2], [2, 0]]]
    """
    _check_arguments(beam_size, rules, bos_id, eos_id, pad_id)
    never = dict.fromkeys((pad_id, bos_id, *rules.suppressed_ids))
    search = _Search(step, beam_size, rules, bos_id, eos_id, pad_id, tuple(never))
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    limits = tf.maximum(tf.cast(maximum_lengths, tf.int32), 1)
    _check_shapes(limits, state, beam_size)
    return search.run(limits, state, state_shapes)


@dataclasses.dataclass(frozen=True)
class _Search:
    """One search: the settings, and the loops over the sentences left in the batch.

    Hypotheses are kept as a tree. `nodes` is int32 `(M, 2)`: the token and the parent's node of
    every token ever taken; node 0 is the root and its own parent. A hypothesis is the number of
    its last node, which stays valid when rows leave the batch or hypotheses are reordered.
    """

    step: Step
    beam_size: int
    rules: SearchRules
    bos_id: int
    eos_id: int
    pad_id: int
    never: tuple[int, ...]  # tokens that are not generated

    @property
    def width(self) -> int:
        """How many continuations of a sentence are considered.

        At most K of the best 2 K end, so K open ones are always among them. Greedy search takes
        the one best continuation, whether it ends or not.
        """
        return 2 * self.beam_size if self.beam_size > 1 else 1

    def run(self, limits: tf.Tensor, state: SearchState, shapes: SearchState | None):
        beam_size = self.beam_size
        shapes = _default_shapes(state) if shapes is None else shapes
        size = tf.shape(limits)[0]  # N
        every = tf.zeros([size, beam_size], tf.int32)
        # One hypothesis to begin with; K equal ones would fill the beam with copies.
        first = tf.constant([0.0] + [_NEVER] * (beam_size - 1))
        rows = _Rows(
            sentence=tf.range(size),
            limit=limits,
            limit_penalty=self.rules.penalty(limits),
            tokens=every + self.bos_id,
            open_scores=tf.cast(every, tf.float32) + first,
            open_nodes=every,
            finished_scores=tf.cast(every, tf.float32) + _NEVER,
            finished_nodes=every,
            done=tf.zeros([size], tf.bool),
        )
        loop = (tf.constant(0), tf.constant([[self.pad_id, 0]]), rows, state)
        each, vector = tf.TensorShape([None, beam_size]), tf.TensorShape([None])
        loop_shapes = (
            tf.TensorShape([]),
            tf.TensorShape([None, 2]),
            _Rows(vector, vector, vector, each, each, each, each, each, vector),
            shapes,
        )

        def some_left(loop, scores, nodes):
            return tf.size(loop[2].sentence) > 0

        def few_done(index, nodes, rows, state):
            done = tf.math.count_nonzero(rows.done, dtype=tf.float32)
            return done < _LEAVE_SHARE * tf.cast(tf.size(rows.done), tf.float32)

        def advance(index, nodes, rows, state):
            nodes, rows, state = self.advance(index, nodes, rows, state)
            return index + 1, nodes, rows, tf.nest.map_structure(_with_shape, state, shapes)

        def until_some_leave(loop, scores, nodes):
            loop = tf.while_loop(few_done, advance, loop, loop_shapes)
            rows = loop[2]
            where = rows.sentence[:, tf.newaxis]
            scores = tf.tensor_scatter_nd_update(scores, where, rows.finished_scores)
            nodes = tf.tensor_scatter_nd_update(nodes, where, rows.finished_nodes)
            left = tf.where(~rows.done)[:, 0]
            rows, state = tf.nest.map_structure(lambda x: tf.gather(x, left), (rows, loop[3]))
            return (loop[0], loop[1], rows, state), scores, nodes

        loop, scores, nodes = tf.while_loop(
            some_left,
            until_some_leave,
            (loop, rows.finished_scores, rows.finished_nodes),
            (loop_shapes, each, each),
        )
        return self.result(scores, nodes, loop[1])

    def advance(self, index: tf.Tensor, nodes: tf.Tensor, rows: _Rows, state: SearchState):
        """Takes one more token in every row."""
        beam_size = self.beam_size
        logits, state = self.step(rows.tokens, index, state)
        self.check_logits(logits)
        totals, ids = self.continuations(tf.cast(logits, tf.float32), rows.open_scores)
        count = ids.shape[2]
        length = index + 1

        # Open continuations, (n, K * count): not of a token that is never generated or ends, and
        # only below the limit.
        special = tf.constant([self.eos_id, *self.never])
        allowed = tf.reduce_all(ids[..., tf.newaxis] != special, axis=3)
        allowed &= (length < rows.limit)[:, tf.newaxis, tf.newaxis]
        going = tf.reshape(tf.where(allowed, totals[..., :count], _NEVER), [-1, beam_size * count])
        going, where = tf.math.top_k(going, self.width)

        # Ends, (n, K): those among the best continuations of both kinds.
        ends = totals[..., count]
        if self.rules.forced_end == "free":
            is_forced = (length >= rows.limit)[:, tf.newaxis] & (ends > _NEVER)
            ends = tf.where(is_forced, rows.open_scores, ends)
        considered = self.width if self.rules.ends_within == "candidates" else beam_size
        last_considered = tf.math.top_k(tf.concat([going, ends], 1), considered)[0][:, -1:]
        penalty = self.rules.penalty(length)
        end_scores = tf.where(ends >= last_considered, ends / penalty, _NEVER)
        finished_scores, best = tf.math.top_k(
            tf.concat([rows.finished_scores, end_scores], 1), beam_size
        )
        finished_nodes = tf.gather(
            tf.concat([rows.finished_nodes, rows.open_nodes], 1), best, batch_dims=1
        )

        # Log-probabilities only fall and alpha >= 0, so no score can come to exceed this bound,
        # where the penalty is that of the limit. The bound is -inf without an open hypothesis, so
        # the limit and NaN end a row as well.
        open_scores, where = going[:, :beam_size], where[:, :beam_size]
        if self.rules.early_stopping == "never":
            penalty = rows.limit_penalty
        done = open_scores[:, 0] / penalty <= finished_scores[:, -1]
        if beam_size == 1 or self.rules.early_stopping == "full_beam":
            done |= finished_scores[:, -1] > _NEVER
        # Frozen: what the row goes through until it leaves the batch changes nothing.
        open_scores = tf.where(done[:, tf.newaxis], _NEVER, open_scores)

        tokens = tf.gather(tf.reshape(ids, [-1, beam_size * count]), where, batch_dims=1)
        open_nodes = rows.open_nodes
        if beam_size > 1:
            parents = where // count  # (n, K)
            open_nodes = tf.gather(open_nodes, parents, batch_dims=1)
            hypotheses = tf.nest.map_structure(
                lambda x: tf.gather(x, parents, batch_dims=1), state.hypotheses
            )
            state = SearchState(hypotheses, state.sentences)
        first = tf.shape(nodes)[0]
        grown = tf.reshape(tf.stack([tokens, open_nodes], axis=2), [-1, 2])  # (n * K, 2)
        nodes = tf.concat([nodes, grown], 0)
        open_nodes = tf.reshape(tf.range(first, tf.shape(nodes)[0]), [-1, beam_size])
        rows = rows._replace(
            tokens=tokens,
            open_scores=open_scores,
            open_nodes=open_nodes,
            finished_scores=finished_scores,
            finished_nodes=finished_nodes,
            done=done,
        )
        return nodes, rows, state

    def continuations(self, logits: tf.Tensor, open_scores: tf.Tensor):
        """The likeliest continuations of each hypothesis, and its end.

        Args:
            logits: float32 `(n, K, V)`.
            open_scores: float32 `(n, K)`, the hypotheses' log-probabilities.

        Returns:
            Log-probabilities `(n, K, count + 1)` with the end token's last, and the ids
            `(n, K, count)` of the first `count`.
        """
        vocabulary_size = logits.shape[2]
        # `width` that may be taken, and the tokens that may not.
        count = self.width + 1 + len(self.never)
        values, ids = top_k_of_many(logits, min(vocabulary_size, count))
        end = logits[..., self.eos_id : self.eos_id + 1]
        # log_softmax(x) = x - max + log(softmax(max)). The softmax kernel is faster than any
        # logsumexp, and at the maximum, where it is at least 1 / V, it cannot underflow.
        largest = tf.gather(tf.nn.softmax(logits), ids[..., :1], batch_dims=2)
        falls = (tf.concat([values, end], 2) - values[..., :1]) + tf.math.log(largest)
        totals = open_scores[..., tf.newaxis] + falls
        return tf.where(tf.math.is_finite(totals), totals, _NEVER), ids

    def result(self, scores: tf.Tensor, ends: tf.Tensor, nodes: tf.Tensor) -> SearchResult:
        """Reads the hypotheses (N, K) off the tree, from the end token back to the root."""
        exists = scores > _NEVER
        shape = tf.shape(scores)
        backwards = tf.reshape(tf.where(exists, self.eos_id, self.pad_id), [-1, 1])  # (N * K, 1)
        at = tf.reshape(tf.where(exists, ends, 0), [-1])

        def one_more(backwards, at):
            entries = tf.gather(nodes, at)
            return tf.concat([backwards, entries[:, :1]], 1), entries[:, 1]

        backwards, _ = tf.while_loop(
            lambda backwards, at: tf.reduce_any(at > 0),
            one_more,
            (backwards, at),
            (tf.TensorShape([None, None]), tf.TensorShape([None])),
        )
        # The root's token is pad, which is never taken.
        lengths = tf.math.count_nonzero(backwards != self.pad_id, axis=1, dtype=tf.int32)
        sequences = tf.reverse_sequence(backwards, lengths, seq_axis=1, batch_axis=0)
        lengths = tf.reshape(lengths, [shape[0], self.beam_size])
        return SearchResult(
            tf.reshape(sequences, [shape[0], self.beam_size, tf.shape(sequences)[1]]),
            lengths,
            tf.where(exists, scores, EMPTY_SCORE),
            tf.where(exists, scores * self.rules.penalty(lengths), EMPTY_SCORE),
        )

    def check_logits(self, logits: tf.Tensor):
        """Refuses logits that the search would misread."""
        needed = max(self.eos_id, *self.never) + 1
        shape = logits.shape
        if shape.rank != 3 or shape[1] not in (None, self.beam_size) or (shape[2] or 0) < needed:
            raise InputError(
                f"step: logits must have the shape (sentences, {self.beam_size}, vocabulary) with "
                f"a static vocabulary of at least {needed}. Received: {shape}"
            )


def _check_arguments(beam_size: int, rules: SearchRules, bos_id: int, eos_id: int, pad_id: int):
    if beam_size < 1:
        raise InputError(f"beam_size must be at least 1. Received: {beam_size}")
    if min(bos_id, eos_id, pad_id) < 0 or eos_id in (bos_id, pad_id):
        raise InputError(
            "bos_id, eos_id, pad_id must be at least 0, and eos_id unlike the others. "
            f"Received: {bos_id}, {eos_id}, {pad_id}"
        )
    if eos_id in rules.suppressed_ids or min(rules.suppressed_ids, default=0) < 0:
        raise InputError(
            "suppressed_ids must be at least 0, and not the end token, without which no hypothesis "
            f"ends. Received: {rules.suppressed_ids}"
        )


def _check_shapes(limits: tf.Tensor, state: SearchState, beam_size: int):
    if limits.shape.rank != 1:
        raise InputError(f"maximum_lengths must have the shape (N,). Received: {limits.shape}")
    for tensor in tf.nest.flatten(state.hypotheses):
        if not tensor.shape[:2].is_compatible_with([None, beam_size]):
            raise InputError(
                f"state.hypotheses: every tensor must have the shape (N, {beam_size}, ...). "
                f"Received: {tensor.shape}"
            )


def _default_shapes(state: SearchState) -> SearchState:
    """Static shapes for the loop: rows leave, and a dimension of size 0 can only grow."""

    def shape(tensor):
        return tf.TensorShape([None] + [size or None for size in tensor.shape[1:]])

    return tf.nest.map_structure(shape, state)


def _with_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """`tensor` with at least the static shape that the loop promises, verified at run time."""
    if not tensor.shape.is_compatible_with(shape):
        raise InputError(
            f"step: a tensor of the state must keep the shape {shape}; name the dimensions that "
            f"change in state_shapes. Received: {tensor.shape}"
        )
    return tensor if tensor.shape.is_subtype_of(shape) else tf.ensure_shape(tensor, shape)
