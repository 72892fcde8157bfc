"""Text to text: tokenizer, model and beam search as one TensorFlow function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.forced_decoding import alignment, label_log_probabilities
from keras_transformer.model import Transformer
from keras_transformer.search import EMPTY_SCORE, beam_search
from keras_transformer.search_rules import SearchRules
from keras_transformer.text_batches import (
    Hypothesis,
    OnCut,
    score_in_batches,
    translate_in_batches,
)
from keras_transformer.tokenizer import BOS_ID, EOS_ID, PAD_ID, SubwordTokenizer
from keras_transformer.translation_tokenizer import TranslationTokenizer

# Of tokens and hypotheses: far more than memory holds, and their sums fit into int32.
_MOST = 1_000_000


class Translations(NamedTuple):
    """The hypotheses of a batch of N texts, best first.

    Attributes:
        texts: string tensor [N, K].
        scores: float32 tensor [N, K].
        truncated: bool tensor [N], whether a text was longer than the model reads.
    """

    texts: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


class Scores(NamedTuple):
    """What the model thinks of N given translations.

    Attributes:
        log_probabilities: float32 tensor [N], natural logarithms.
        tokens: int32 tensor [N], how many each is a sum over, the end token counted.
        truncated: bool tensor [N], whether a source or a translation was longer than is read.
    """

    log_probabilities: tf.Tensor
    tokens: tf.Tensor
    truncated: tf.Tensor


class Alignments(NamedTuple):
    """Where the model looks at for each token of N given translations.

    Attributes:
        source_pieces: string tensor [N, S], the tokens, the end token too; empty after it.
        target_pieces: string tensor [N, T].
        source_lengths: int32 tensor [N], the numbers of tokens, the end token counted.
        target_lengths: int32 tensor [N].
        attention: float32 tensor [N, T, S]. Row t, of target token t, sums to 1 over the source
            tokens; 0 beyond the lengths.
        truncated: bool tensor [N], whether a source or a translation was longer than is read.
    """

    source_pieces: tf.Tensor
    target_pieces: tf.Tensor
    source_lengths: tf.Tensor
    target_lengths: tf.Tensor
    attention: tf.Tensor
    truncated: tf.Tensor


class Translator:
    """Translates text with a Transformer by beam search, from section 6.1 of the paper.

    The whole way from text to text is one TensorFlow function, which Python calls here, which
    evaluation calls, and which the export writes into the SavedModel: there is one path and it
    gives one answer.

    Args:
        model: `Transformer`.
        tokenizer: `TranslationTokenizer` that the model was trained with.
        beam_size: int. Hypotheses kept for each sentence; 1 is greedy search.
        alpha: float. Length penalty; 0 ranks by the plain log-probability.
        maximum_extra_length: int. A translation has at most this many tokens more than its
            source.
        maximum_source_length: int. A longer source is cut to this many tokens.
        maximum_length: int or None. A translation has at most this many tokens, the end token
            counted, however long its source is.
        suppressed_tokens: sequence of str or None. Words of the target vocabulary that are never
            generated, such as `"<unk>"`.
        **rules: `length_penalty`, `early_stopping`, `ends_within` and `forced_end` of
            `SearchRules`.

    Raises:
        InputError: where an option is not possible, or the vocabularies do not fit.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> tokenizer = TranslationTokenizer.train(
    ...     ["one two", "two three"], ["eins zwei", "zwei drei"], vocabulary_size=300)
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=300))
    >>> translator = Translator(model, tokenizer, beam_size=2, maximum_extra_length=3)
    >>> len(translator.translate(["one two", "", "three"]))
    3

    References:
        - Wu et al., 2016, [Google's Neural Machine Translation
          System](https://arxiv.org/abs/1609.08144)
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: TranslationTokenizer,
        beam_size: int = 4,
        alpha: float = 0.6,
        maximum_extra_length: int = 50,
        maximum_source_length: int = 512,
        maximum_length: int | None = None,
        suppressed_tokens: Sequence[str] | None = None,
        **rules: str,
    ) -> None:
        for name, value, least in (
            ("beam_size", beam_size, 1),
            ("maximum_extra_length", maximum_extra_length, 0),
            ("maximum_source_length", maximum_source_length, 1),
            ("maximum_length", maximum_length, 1),
        ):
            if value is not None and not least <= value:
                raise InputError(f"{name} must be at least {least}. Received: {value!r}")
            if value is not None and value > _MOST:
                raise InputError(f"{name} must be at most {_MOST}. Received: {value!r}")
        config = model.config
        for side, words, rows in (
            (
                "source",
                tokenizer.source.vocabulary_size,
                config.source_vocabulary_size or config.vocabulary_size,
            ),
            ("target", tokenizer.target.vocabulary_size, config.vocabulary_size),
        ):
            if words != rows:
                raise InputError(
                    f"The {side} vocabulary must have the model's {rows} words. Received: {words}"
                )
        self.model = model
        self.tokenizer = tokenizer
        self.beam_size = beam_size
        self.suppressed_tokens = tuple(suppressed_tokens or ())
        suppressed_ids = _ids_of(self.suppressed_tokens, tokenizer.target)
        self.rules = SearchRules(alpha, suppressed_ids=suppressed_ids, **rules)
        self.maximum_extra_length = maximum_extra_length
        self.maximum_source_length = maximum_source_length
        self.maximum_length = maximum_length
        self.maximum_target_length = maximum_source_length + maximum_extra_length
        if maximum_length is not None:
            self.maximum_target_length = min(self.maximum_target_length, maximum_length - 1)
        self._translate_batch = tf.function(
            self.translate_tensor,
            autograph=False,
            input_signature=[tf.TensorSpec([None], tf.string, name="text")],
        )
        self._score_batch = tf.function(
            self.score_tensor,
            autograph=False,
            input_signature=[
                tf.TensorSpec([None], tf.string, name="source"),
                tf.TensorSpec([None], tf.string, name="target"),
            ],
        )

    def translate_tensor(self, text: tf.Tensor) -> Translations:
        """The translations of a batch of texts, in the graph.

        Args:
            text: string tensor [N], UTF-8; text without words is translated by empty text.

        Returns:
            `Translations`: best first and all different. Where fewer than `beam_size` exist, the
            rest are empty with a score of -1e9.
        """
        source = self._read_source(text)
        step, state = self.model.start_decoding(source.ids, self.beam_size)
        limits = source.lengths + self.maximum_extra_length
        if self.maximum_length is not None:
            limits = tf.minimum(limits, self.maximum_length)
        result = beam_search(
            step,
            state,
            beam_size=self.beam_size,
            maximum_lengths=limits,
            rules=self.rules,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            pad_id=PAD_ID,
        )
        # [N, K, T] -> [N * K, T] -> [N * K] texts -> [N, K]
        shape = tf.shape(result.sequences)
        texts = self.tokenizer.target.decode_graph(
            tf.reshape(result.sequences, [shape[0] * shape[1], shape[2]])
        )
        texts = tf.reshape(texts, [shape[0], self.beam_size])
        has_words = source.lengths[:, None] > 1
        texts = tf.where(has_words, texts, "")
        texts, scores = _all_different(texts, tf.where(has_words, result.scores, 0.0))
        return Translations(texts, scores, source.truncated)

    def score_tensor(self, source: tf.Tensor, target: tf.Tensor) -> Scores:
        """The log-probabilities of given translations, in the graph.

        Args:
            source: string tensor [N].
            target: string tensor [N].

        Returns:
            `Scores`. A log-probability is finite: -1e9 where the model's weights are no numbers.

        Raises:
            tf.errors.InvalidArgumentError: where the numbers of rows differ.
        """
        _check_rows(source, target)
        read_source, read_target = self._read_source(source), self._read_target(target)
        log_probabilities = tf.reduce_sum(
            label_log_probabilities(
                self.model, read_source.ids, _shifted_right(read_target.ids), read_target.ids
            ),
            axis=1,
        )
        return Scores(
            tf.where(tf.math.is_finite(log_probabilities), log_probabilities, EMPTY_SCORE),
            read_target.lengths,
            read_source.truncated | read_target.truncated,
        )

    def align_tensor(self, text: tf.Tensor, translation: tf.Tensor) -> Alignments:
        """Which source tokens the model looks at for each token of given translations.

        Args:
            text: string tensor [N].
            translation: string tensor [N].

        Returns:
            `Alignments`.

        Raises:
            tf.errors.InvalidArgumentError: where the numbers of rows differ.
        """
        _check_rows(text, translation)
        source, target = self._read_source(text), self._read_target(translation)
        attention = alignment(self.model, source.ids, _shifted_right(target.ids))
        return Alignments(
            self.tokenizer.source.pieces_graph(source.ids),
            self.tokenizer.target.pieces_graph(target.ids),
            source.lengths,
            target.lengths,
            tf.where(tf.math.is_finite(attention), attention, 0.0),
            source.truncated | target.truncated,
        )

    def translate(
        self, texts: Sequence[str], batch_sentences: int = 64, on_cut: OnCut | None = None
    ) -> list[list[Hypothesis]]:
        """The best hypotheses for each text, in the order of the texts.

        Args:
            texts: sequence of str.
            batch_sentences: int. Texts translated together; the result does not depend on it.
            on_cut: called with the row of each text that is too long to be read whole.

        Returns:
            For each text a list of `Hypothesis`, best first and all different; at least one.

        Raises:
            InputError: for one text that is not in a list.
        """
        return translate_in_batches(self._translate_batch, texts, batch_sentences, on_cut)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_sentences: int = 64,
        on_cut: OnCut | None = None,
    ) -> list[tuple[float, int]]:
        """Log-probability and number of tokens of each pair.

        Args:
            sources: sequence of str.
            targets: sequence of str, their translations.
            batch_sentences: int. Pairs scored together; the result does not depend on it.
            on_cut: called with the row of each pair of which one is too long to be read whole.

        Raises:
            InputError: where the numbers of sources and targets differ.
        """
        return score_in_batches(self._score_batch, sources, targets, batch_sentences, on_cut)

    def _read_source(self, text: tf.Tensor) -> _Tokens:
        return _read(self.tokenizer.source, text, self.maximum_source_length)

    def _read_target(self, text: tf.Tensor) -> _Tokens:
        # Any translation that the search can find is read whole.
        return _read(self.tokenizer.target, text, self.maximum_target_length)


def _ids_of(tokens: Sequence[str], tokenizer: SubwordTokenizer) -> tuple[int, ...]:
    """The ids of some words of a vocabulary."""
    if not tokens:
        return ()
    words = tokenizer.pieces(range(tokenizer.vocabulary_size))
    ids = {word: i for i, word in enumerate(words)}
    for token in tokens:
        if ids.get(token, EOS_ID) == EOS_ID:
            raise InputError(
                "suppressed_tokens must be words of the target vocabulary, in which \u2581 is the "
                f"space before a word, other than the end token. Received: {token!r}"
            )
    return tuple(ids[token] for token in tokens)


def _all_different(texts: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Empties the slots that repeat a better text of their row, which other ids can spell too."""
    beam_size = texts.shape[1]
    # [N, K, K]: slot i has the text of slot j; j is better where it is below the diagonal.
    repeats = (texts[:, :, None] == texts[:, None, :]) & np.tri(beam_size, k=-1, dtype=bool)
    is_repeated = tf.reduce_any(repeats, axis=2)
    texts = tf.where(is_repeated, "", texts)
    scores, order = tf.math.top_k(tf.where(is_repeated, EMPTY_SCORE, scores), beam_size)
    return tf.gather(texts, order, batch_dims=1), scores


def _check_rows(source: tf.Tensor, target: tf.Tensor) -> None:
    # Else one row of the one would go with all of the other.
    tf.debugging.assert_equal(
        tf.shape(source), tf.shape(target), "Each source must have one translation."
    )


class _Tokens(NamedTuple):
    """A batch of N texts as tokens."""

    ids: tf.Tensor  # int32 [N, T], each with the end token, padded
    lengths: tf.Tensor  # int32 [N], the end token counted
    truncated: tf.Tensor  # bool [N], whether the text had more tokens than are read


def _read(tokenizer: SubwordTokenizer, text: tf.Tensor, limit: int) -> _Tokens:
    ids = tf.cast(tokenizer.encode_graph(text), tf.int32)  # [N, None]
    truncated = ids.row_lengths() > limit
    ids = ids[:, :limit]
    ends = tf.fill([ids.nrows(out_type=tf.int32), 1], EOS_ID)
    ids = tf.concat([ids, ends], axis=1)
    return _Tokens(ids.to_tensor(PAD_ID), tf.cast(ids.row_lengths(), tf.int32), truncated)


def _shifted_right(labels: tf.Tensor) -> tf.Tensor:
    """The start token, then each row's labels but the last: int32 [N, T], the labels' padding."""
    starts = tf.fill([tf.shape(labels)[0], 1], BOS_ID)
    return tf.where(labels == PAD_ID, PAD_ID, tf.concat([starts, labels[:, :-1]], axis=1))
