"""Text to text: tokenizer, model and beam search as one TensorFlow function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.search import EMPTY_SCORE, beam_search
from keras_transformer.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SubwordTokenizer,
    TranslationTokenizer,
)


class Hypothesis(NamedTuple):
    """One translation of a sentence, and its score: log p / ((5 + n) / 6)^alpha."""

    text: str
    score: float


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
        maximum_source_length: int. A longer source is cut to this many tokens; `cut_sources`
            tells which are.

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
    ) -> None:
        for name, value, least in (
            ("beam_size", beam_size, 1),
            ("alpha", alpha, 0),
            ("maximum_extra_length", maximum_extra_length, 0),
            ("maximum_source_length", maximum_source_length, 1),
        ):
            if not least <= value < np.inf:
                raise InputError(f"{name} must be at least {least}. Received: {value!r}")
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
        self.alpha = alpha
        self.maximum_extra_length = maximum_extra_length
        self.maximum_source_length = maximum_source_length
        self.maximum_target_length = maximum_source_length + maximum_extra_length
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

    def translate_tensor(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The translations of a batch of texts, in the graph.

        Args:
            text: string tensor [N], UTF-8; text without words is translated by empty text.

        Returns:
            A tuple: translations, string [N, beam_size], best first and all different, and their
            scores, float32 [N, beam_size]. Where fewer exist, the rest are empty with a score of
            -1e9.
        """
        ids = self.tokenizer.source.encode_graph(text)[:, : self.maximum_source_length]
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        step, state = self.model.start_decoding(_with_end(ids), self.beam_size)
        result = beam_search(
            step,
            state,
            beam_size=self.beam_size,
            alpha=self.alpha,
            maximum_lengths=lengths + self.maximum_extra_length,
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
        has_words = lengths[:, None] > 0
        texts = tf.where(has_words, texts, "")
        return _all_different(texts, tf.where(has_words, result.scores, 0.0))

    def score_tensor(self, source: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The log-probability of given translations, in the graph.

        Args:
            source: string tensor [N].
            target: string tensor [N].

        Returns:
            A tuple: the log-probabilities, float32 [N], and the numbers of target tokens that
            they are sums over, int32 [N], the end token counted. A target longer than any
            translation can be is cut as a source is.
        """
        source_ids = self.tokenizer.source.encode_graph(source)[:, : self.maximum_source_length]
        target_ids = self.tokenizer.target.encode_graph(target)[:, : self.maximum_target_length]
        labels = _with_end(target_ids)  # [N, T]
        # The target shifted right: the start token, then all but the last label.
        inputs = tf.concat([tf.fill([tf.shape(labels)[0], 1], BOS_ID), labels[:, :-1]], axis=1)
        logits = self.model({"source": _with_end(source_ids), "target": inputs}, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        is_real = labels != PAD_ID
        log_probabilities = tf.where(is_real, -losses, 0.0)
        return (
            tf.reduce_sum(log_probabilities, axis=1),
            tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1),
        )

    def translate(self, texts: Sequence[str], batch_sentences: int = 64) -> list[list[Hypothesis]]:
        """The best hypotheses for each text, in the order of the texts.

        Args:
            texts: sequence of str.
            batch_sentences: int. Texts translated together; the result does not depend on it.

        Returns:
            For each text a list of `Hypothesis`, best first and all different; at least one.

        Raises:
            InputError: for one text that is not in a list.
        """
        check_texts(texts)
        results: list[list[Hypothesis]] = [[] for _ in texts]
        for rows in batches_by_length(texts, batch_sentences):
            translations, scores = self._translate_batch(string_tensor(texts, rows))
            for row, row_texts, row_scores in zip(
                rows, translations.numpy(), scores.numpy(), strict=True
            ):
                results[row] = hypotheses(row_texts, row_scores)
        return results

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_sentences: int = 64
    ) -> list[tuple[float, int]]:
        """Log-probability and number of tokens of each pair.

        Raises:
            InputError: where the numbers of sources and targets differ.
        """
        check_texts(sources)
        check_texts(targets)
        if len(sources) != len(targets):
            raise InputError(
                f"Sources and targets must be as many. Received: {len(sources)} and {len(targets)}"
            )
        results = [(0.0, 0)] * len(sources)
        for rows in batches_by_length(targets, batch_sentences):
            log_probabilities, tokens = self._score_batch(
                string_tensor(sources, rows), string_tensor(targets, rows)
            )
            for row, log_probability, count in zip(
                rows, log_probabilities.numpy(), tokens.numpy(), strict=True
            ):
                results[row] = (float(log_probability), int(count))
        return results

    def cut_sources(self, texts: Sequence[str]) -> list[int]:
        """Rows of the texts that are too long to be read whole, ascending."""
        return _longer(self.tokenizer.source, texts, self.maximum_source_length)

    def cut_targets(self, texts: Sequence[str]) -> list[int]:
        """Rows of the texts that are too long to be scored whole, ascending."""
        return _longer(self.tokenizer.target, texts, self.maximum_target_length)


def hypotheses(texts: Sequence[bytes], scores: Sequence[float]) -> list[Hypothesis]:
    """One sentence's rows of `translations` and `scores` as a list, without the empty slots."""
    found = [
        Hypothesis(text.decode(), float(score)) for text, score in zip(texts, scores, strict=True)
    ]
    # The first slot is empty only where the model's weights are no numbers.
    return found[:1] + [hypothesis for hypothesis in found[1:] if hypothesis.score > EMPTY_SCORE]


def check_texts(texts: Sequence[str]) -> None:
    """Refuses one text in the place of a list of them, whose letters would be the texts."""
    if isinstance(texts, str | bytes):
        raise InputError(f"Texts must be a list of str. Received: {texts[:60]!r}")


def string_tensor(texts: Sequence[str], rows: Sequence[int]) -> tf.Tensor:
    """Some of the texts as a string tensor; the graph replaces what is no valid UTF-8."""
    return tf.constant([texts[row].encode(errors="surrogatepass") for row in rows])


def _all_different(texts: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Empties the slots that repeat a better text of their row, which other ids can spell too."""
    beam_size = texts.shape[1]
    # [N, K, K]: slot i has the text of slot j; j is better where it is below the diagonal.
    repeats = (texts[:, :, None] == texts[:, None, :]) & np.tri(beam_size, k=-1, dtype=bool)
    is_repeated = tf.reduce_any(repeats, axis=2)
    texts = tf.where(is_repeated, "", texts)
    scores, order = tf.math.top_k(tf.where(is_repeated, EMPTY_SCORE, scores), beam_size)
    return tf.gather(texts, order, batch_dims=1), scores


def _longer(tokenizer: SubwordTokenizer, texts: Sequence[str], limit: int) -> list[int]:
    return [row for row, text in enumerate(texts) if len(tokenizer.encode(text)) > limit]


def _with_end(ids: tf.RaggedTensor) -> tf.Tensor:
    """Adds the end token to each row and pads: ragged [N, None] -> int32 [N, T]."""
    ends = tf.fill([ids.nrows(out_type=tf.int32), 1], EOS_ID)
    return tf.concat([tf.cast(ids, tf.int32), ends], axis=1).to_tensor(PAD_ID)


def batches_by_length(texts: Sequence[str], batch_sentences: int) -> Iterator[np.ndarray]:
    """Rows of texts of like length together, so that little is padded; the longest come first."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    for start in range(0, len(order), batch_sentences):
        yield order[start : start + batch_sentences]
