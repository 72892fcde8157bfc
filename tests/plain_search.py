"""Search over a made-up language, stated plainly in NumPy and Python."""

import itertools
import math

import numpy as np
import tensorflow as tf

from keras_transformer.search import EMPTY_SCORE, SearchState, beam_search
from keras_transformer.search_rules import SearchRules

PAD, BOS, EOS = 0, 1, 2


class Language:
    """Random next-token logits that depend on the sentence and on the whole prefix.

    The step function reads the prefix back from a key/value cache of its own, shaped
    (N, K, heads, t, d) and grown by concatenation, so a cache that does not follow its
    hypothesis gives other logits.
    """

    def __init__(self, vocabulary_size, seed=0, scale=2.0, end_bias=0.0, dtype=tf.float32, nan=0):
        # Prime. In a small vocabulary the short prefixes of one sentence never collide.
        self.rows = 20011 if vocabulary_size < 10 else 307
        table = np.random.default_rng(seed).normal(0, scale, (self.rows, vocabulary_size))
        table[:, EOS] += end_bias
        table[:nan] = math.nan
        self.vocabulary_size = vocabulary_size
        self.table = tf.cast(table, dtype)
        logits = tf.cast(self.table, tf.float64).numpy()
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        self.log_p = np.where(np.isnan(log_p), -math.inf, log_p)
        self.powers = np.array([pow(vocabulary_size, i, self.rows) for i in range(64)], np.int32)
        self.traced_shapes = []

    def log_probabilities(self, sentence, prefix):
        code = 0
        for token in (BOS, *prefix):
            code = (code * self.vocabulary_size + token) % self.rows
        return self.log_p[(code + 7919 * sentence) % self.rows]

    def score(self, sentence, tokens, alpha):
        total = sum(
            self.log_probabilities(sentence, tokens[:i])[token] for i, token in enumerate(tokens)
        )
        return total / penalty(len(tokens), alpha)

    def state(self, sentences, beam_size):
        sentences = tf.convert_to_tensor(sentences, tf.int32)
        cache = tf.zeros([tf.shape(sentences)[0], beam_size, 2, 0, 3], tf.int32)
        return SearchState({"layers": [cache, cache]}, {"sentence": sentences})

    def step(self, tokens, index, state):
        caches = state.hypotheses["layers"]
        self.traced_shapes.append(caches[0].shape.as_list())
        new = tf.tile(tokens[:, :, None, None, None], [1, 1, 2, 1, 3])
        caches = [tf.concat([cache, new], 3) for cache in caches]
        prefix = caches[1][:, :, 1, :, 2]  # (n, K, index + 1)
        code = tf.reduce_sum(prefix * tf.constant(self.powers)[index::-1], 2)
        code += 7919 * state.sentences["sentence"][:, None]
        return tf.gather(self.table, code % self.rows), SearchState(
            {"layers": caches}, state.sentences
        )

    def search(self, sentences, limits, beam_size, alpha=0.6, **rules):
        state = self.state(sentences, beam_size)
        limits = tf.convert_to_tensor(limits, tf.int32)
        return beam_search(
            self.step,
            state,
            beam_size=beam_size,
            maximum_lengths=limits,
            rules=SearchRules(alpha, **rules),
        )

    def function(self, beam_size, alpha):
        """The search over sentences and limits of any number, as an export would hold it."""
        vector = tf.TensorSpec([None], tf.int32)
        return tf.function(
            lambda sentences, limits: self.search(sentences, limits, beam_size, alpha),
            input_signature=[vector, vector],
        )


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def exhaustive(language, sentence, limit, alpha):
    """The scores of every sequence that ends within the limit, best first."""
    words = range(EOS + 1, language.vocabulary_size)
    scores = [
        language.score(sentence, (*words_taken, EOS), alpha)
        for length in range(limit)
        for words_taken in itertools.product(words, repeat=length)
    ]
    return sorted(scores, reverse=True)


def plain_beam(language, sentence, limit, beam_size, alpha):
    """The rule of the search, for one sentence and without stopping early."""
    opened, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        candidates = []
        for total, tokens in opened:
            log_p = language.log_probabilities(sentence, tokens)
            taken = [EOS] if length == limit else range(EOS, language.vocabulary_size)
            candidates += [(total + log_p[token], (*tokens, token)) for token in taken]
        candidates = [candidate for candidate in candidates if candidate[0] > -math.inf]
        candidates = sorted(candidates, reverse=True)[: 2 * beam_size]
        ended = [(total / penalty(length, alpha), x) for total, x in candidates if x[-1] == EOS]
        finished = sorted(finished + ended, reverse=True)[:beam_size]
        opened = [x for x in candidates if x[1][-1] != EOS][:beam_size]
    return [score for score, _ in finished]


def plain_beam_by_rules(language, sentence, limit, beam_size, rules):
    """The search under any rules, for one sentence, with its stopping: scores and tokens."""

    def score(total, tokens):
        n = len(tokens)
        return total / (
            n**rules.alpha if rules.length_penalty == "power" else penalty(n, rules.alpha)
        )

    opened, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        candidates = []
        for total, tokens in opened:
            log_p = language.log_probabilities(sentence, tokens)
            if length < limit:
                taken = set(range(EOS, language.vocabulary_size)) - set(rules.suppressed_ids)
                candidates += [(total + log_p[token], (*tokens, token)) for token in taken]
            else:
                cost = log_p[EOS] if rules.forced_end == "scored" else 0.0
                candidates.append((total + cost, (*tokens, EOS)))
        candidates = sorted(candidates, reverse=True)[: 2 * beam_size]
        may_end = candidates[:beam_size] if rules.ends_within == "beam" else candidates
        ended = [(score(total, x), x) for total, x in may_end if x[-1] == EOS]
        finished = sorted(finished + ended, reverse=True)[:beam_size]
        opened = [x for x in candidates if x[1][-1] != EOS][:beam_size]
        if len(finished) == beam_size and opened and rules.early_stopping != "never":
            best_now = score(opened[0][0], opened[0][1])
            if rules.early_stopping == "full_beam" or best_now <= finished[-1][0]:
                break
    return finished


def greedy(language, sentence, limit):
    tokens = ()
    while len(tokens) + 1 < limit:
        log_p = language.log_probabilities(sentence, tokens)
        tokens += (EOS + int(np.argmax(log_p[EOS:])),)
        if tokens[-1] == EOS:
            return list(tokens)
    return [*tokens, EOS]


def hypotheses_of(result, row):
    """The token lists of one row, after checking the form that every result has."""
    sequences, lengths = result.sequences.numpy()[row], result.lengths.numpy()[row]
    scores, log_p = result.scores.numpy()[row], result.log_probabilities.numpy()[row]
    assert sequences.dtype == lengths.dtype == np.int32 and scores.dtype == np.float32
    assert np.isfinite(scores).all() and (np.diff(scores) <= 0).all()
    found = []
    for tokens, length in zip(sequences.tolist(), lengths.tolist(), strict=True):
        assert tokens[length:] == [PAD] * (len(tokens) - length)
        if length:
            assert tokens[length - 1] == EOS
            assert not {PAD, BOS, EOS} & set(tokens[: length - 1])
            found.append(tokens[:length])
    count = len(found)
    assert (lengths[:count] > 0).all()
    assert (scores[count:] == EMPTY_SCORE).all() and (log_p[count:] == EMPTY_SCORE).all()
    assert len(set(map(tuple, found))) == count
    return found


def assert_scores(result, row, language, sentence, alpha, expected):
    """The row holds the expected scores, and each is the true score of its sequence."""
    found = hypotheses_of(result, row)
    scores = result.scores.numpy()[row, : len(found)]
    np.testing.assert_allclose(scores, expected, atol=2e-5)
    for tokens, score, log_p in zip(
        found, scores, result.log_probabilities.numpy()[row], strict=False
    ):
        np.testing.assert_allclose(score, language.score(sentence, tokens, alpha), atol=2e-5)
        np.testing.assert_allclose(log_p, language.score(sentence, tokens, 0), atol=2e-5)
