"""Cuts the text of a unigram model in the graph where the sentencepiece package cuts it in Python.

Both look for the cut with the highest sum of float32 scores, adding from left to right, and take
the first of several. But the SentencePiece inside TensorFlow Text compares the next sum before it
is rounded with the best one after: of sums that round to the same value it may take a later one.
That is rare in prose and common in repeated letters (`l ll` or `ll l`). The rounded sums are the
same in both, so what TensorFlow Text found tells the best sum up to each place where every cut must
have an end. Between two such places, the stretch is cut anew.

From a sum of -100,000 on, about 40,000 characters, the sentencepiece package counts from 0 again,
which is left out here: what follows may be cut differently, of text much longer than any model
reads. A model that this package trains has scores whose sums are exact, and needs none of this.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_transformer.sentencepiece_model import ModelProto

_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3  # types of pieces
_UNKNOWN_PENALTY = np.float32(10)  # SentencePiece's: an unknown character, below the worst piece
# A longer stretch, which is no text in any language, stays as TensorFlow Text cut it.
_LONGEST_STRETCH = 500


def needs_unigram_cut(model: ModelProto) -> bool:
    """Tells whether `UnigramCut` is needed, and can be had, for a model.

    Models with bytes or symbols of their user's have other rules for scores; there the graph may
    resolve a tie differently from Python.
    """
    is_unigram = model.trainer_spec.ModelType.Name(model.trainer_spec.model_type) == "UNIGRAM"
    types = {piece.type for piece in model.pieces}
    return is_unigram and types <= {_NORMAL, _UNKNOWN, _CONTROL}


class UnigramCut(tf.Module):
    """Corrects the pieces that TensorFlow Text cuts to those of the sentencepiece package.

    Args:
        model: message, a unigram model for which `needs_unigram_cut`.

    Call arguments:
        pieces: ragged string [N, None], the pieces that TensorFlow Text cut.

    Returns:
        Ragged string [N, None], the same text in pieces.

    References:
        - [Kudo, 2018](https://arxiv.org/abs/1804.10959)
    """

    def __init__(self, model: ModelProto):
        super().__init__()
        scores = {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}
        pairs = sorted({piece[i : i + 2] for piece in scores for i in range(len(piece) - 1)})
        self._longest_piece = max(map(len, scores))
        self._unknown_score = np.float32(min(scores.values())) - _UNKNOWN_PENALTY
        with tf.init_scope():  # a first use while a function is traced must outlive the trace
            self._scores = _table(list(scores), list(scores.values()), tf.float32, -np.inf)
            self._pairs_in_pieces = _table(
                pairs or [""], [True] * max(1, len(pairs)), tf.bool, False
            )

    def __call__(self, pieces: tf.RaggedTensor) -> tf.RaggedTensor:
        # F characters in W stretches, which are the stuff between the ends that all cuts share.
        steps = self._steps(pieces)
        letters = tf.strings.unicode_split(steps.values, "UTF-8")  # [steps, None]
        step = letters.value_rowids()  # [F]
        row = tf.gather(steps.value_rowids(), step)  # [F]
        letters = letters.values  # [F]
        pairs = tf.strings.join([letters[:-1], letters[1:]])
        divided = ~self._pairs_in_pieces.lookup(pairs) | (row[1:] != row[:-1])  # [F - 1]
        starts_stretch = tf.concat([tf.ones_like(row[:1], tf.bool), divided], axis=0)  # [F]
        starts = tf.where(starts_stretch)[:, 0]  # [W]
        lengths = tf.concat([starts[1:], [tf.size(row, tf.int64)]], axis=0)[: tf.size(starts)]
        lengths -= starts  # [W]
        stretch = tf.cumsum(tf.cast(starts_stretch, tf.int64)) - 1  # [F]
        place = tf.range(tf.size(row, tf.int64)) - tf.gather(starts, stretch)  # [F]
        sums = tf.gather(self._sums_before(steps), tf.gather(step, starts))  # [W]

        scores = self._scores_of_pieces(letters, place)  # [F, L]
        chosen = self._chosen_lengths(scores, starts, lengths, sums)  # [T, W]
        cuts = _cuts(chosen, starts, lengths, tf.size(row, tf.int64))  # [F]
        cut_before = tf.concat([tf.ones_like(row[:1], tf.bool), step[1:] != step[:-1]], axis=0)
        cuts = tf.where(tf.gather(lengths > _LONGEST_STRETCH, stretch), cut_before, cuts)

        # Unknown characters side by side are one piece.
        is_alone = cuts & tf.concat([cuts[1:], tf.ones_like(cuts[:1])], axis=0)
        is_unknown = is_alone & tf.math.is_inf(self._scores.lookup(letters))
        goes_on = is_unknown[1:] & is_unknown[:-1] & (row[1:] == row[:-1])
        cuts &= tf.concat([tf.ones_like(cuts[:1]), ~goes_on], axis=0)
        rows = tf.boolean_mask(row, cuts)
        piece = tf.cumsum(tf.cast(cuts, tf.int64)) - 1
        joined = tf.strings.unsorted_segment_join(letters, piece, tf.size(rows))
        return tf.RaggedTensor.from_value_rowids(joined, rows, nrows=pieces.nrows())

    def _steps(self, pieces: tf.RaggedTensor) -> tf.RaggedTensor:
        """Takes unknown pieces apart: each of their characters was a step of the search."""
        known = tf.math.is_finite(self._scores.lookup(pieces.values))[:, None]  # [P, 1]
        whole = tf.ragged.boolean_mask(pieces.values[:, None], known)  # [P, 0 or 1]
        unknown = tf.where(known[:, 0], "", pieces.values)
        letters = tf.strings.unicode_split(unknown, "UTF-8")  # [P, None]
        return pieces.with_values(tf.concat([whole, letters], axis=1)).merge_dims(1, 2)

    def _sums_before(self, steps: tf.RaggedTensor) -> tf.Tensor:
        """Returns the sum of the scores before each step, added from left to right: [steps]."""
        scores = self._scores.lookup(steps.values)
        scores = tf.where(tf.math.is_inf(scores), self._unknown_score, scores)
        # On a CPU, as a server's string operations are, cumsum adds one after the other.
        sums = tf.cumsum(steps.with_values(scores).to_tensor(), axis=1, exclusive=True)
        return tf.RaggedTensor.from_tensor(sums, lengths=steps.row_lengths()).values

    def _scores_of_pieces(self, letters: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        """Returns the score of the piece of L, ..., 2, 1 characters up to each: [F, L]."""
        scores = self._scores.lookup(letters)
        columns = [tf.where(tf.math.is_inf(scores), self._unknown_score, scores)]
        text = letters
        for length in range(2, self._longest_piece + 1):
            before = tf.concat([tf.fill(tf.shape(letters[:1]), ""), text[:-1]], axis=0)
            text = tf.strings.join([before, letters])
            within = place >= length - 1  # or it would begin in the stretch before
            columns.append(tf.where(within, self._scores.lookup(text), -np.inf))
        return tf.stack(columns[::-1], axis=1)

    def _chosen_lengths(self, scores, starts, lengths, sums) -> tf.Tensor:
        """Returns how long the best last piece is up to each place of each stretch: [T, W]."""
        longest = self._longest_piece
        final = tf.size(scores[:, 0], tf.int64) - 1
        cut_anew = tf.boolean_mask(lengths, lengths <= _LONGEST_STRETCH)
        count = tf.cast(tf.reduce_max(tf.concat([[1], cut_anew], axis=0)), tf.int32)
        nowhere = tf.fill([tf.size(starts), longest - 1], -np.float32(np.inf))
        best = tf.concat([nowhere, sums[:, None]], axis=1)  # [W, L]: at the last L places

        def add_letter(t, best, chosen):
            at = tf.minimum(starts + tf.cast(t, tf.int64), final)  # [W]
            found = best + tf.gather(scores, at)  # [W, L]
            value, index = tf.math.top_k(found, 1)  # of equal sums the first: the longest piece
            best = tf.concat([best[:, 1:], value], axis=1)
            return t + 1, best, chosen.write(t, longest - index[:, 0])

        chosen = tf.TensorArray(tf.int32, count)
        invariants = (tf.TensorShape([]), tf.TensorShape([None, longest]), None)
        return tf.while_loop(
            lambda t, *_: t < count, add_letter, (0, best, chosen), shape_invariants=invariants
        )[2].stack()


def _cuts(chosen: tf.Tensor, starts: tf.Tensor, lengths: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Follows the best pieces back from the end of each stretch: [F], true where one begins."""
    stretch = tf.range(tf.size(starts))

    def step_back(t, end, found):
        last = tf.cast(tf.maximum(end - 1, 0), tf.int32)
        length = tf.gather_nd(chosen, tf.stack([last, stretch], axis=1))
        end = tf.maximum(end - tf.cast(length, tf.int64), 0)
        return t + 1, end, found.write(t, starts + end)

    end = tf.where(lengths > _LONGEST_STRETCH, tf.zeros_like(lengths), lengths)
    found = tf.TensorArray(tf.int64, 1, dynamic_size=True)
    found = tf.while_loop(
        lambda t, end, _: (t == 0) | tf.reduce_any(end > 0), step_back, (0, end, found)
    )[2].concat()
    return tf.scatter_nd(found[:, None], tf.ones_like(found), size[None]) > 0


def _table(keys: list, values: list, dtype: tf.DType, default) -> tf.lookup.StaticHashTable:
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(values, dtype))
    return tf.lookup.StaticHashTable(initializer, default)
