"""Beam search against exhaustive search and against a plain statement of its rule."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_search import (
    EOS,
    Language,
    assert_scores,
    exhaustive,
    greedy,
    hypotheses_of,
    plain_beam,
)

from keras_transformer.errors import InputError
from keras_transformer.search import SearchState, beam_search
from keras_transformer.search_rules import SearchRules

PAPER, PLAIN = SearchRules(), SearchRules(alpha=0.0)

alphas = st.sampled_from([0.0, 0.6, 1.0, 2.0])


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6), st.integers(3, 7), st.integers(1, 4), alphas, st.sampled_from([1, 4, 9])
)
def test_wide_beam_is_exhaustive_search(seed, vocabulary_size, limit, alpha, scale):
    language = Language(vocabulary_size, seed, scale)
    expected = exhaustive(language, 5, limit, alpha)
    result = language.search([5], [limit], len(expected) + 2, alpha)
    assert_scores(result, 0, language, 5, alpha, expected)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(4, 9),
    st.integers(2, 5),
    alphas,
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([-2.0, 0.0, 2.0]),
)
def test_small_beam_is_the_plain_rule(seed, vocabulary_size, beam_size, alpha, limits, end_bias):
    language = Language(vocabulary_size, seed, 1.0, end_bias)
    result = language.search(range(len(limits)), limits, beam_size, alpha)
    for row, limit in enumerate(limits):
        expected = plain_beam(language, row, limit, beam_size, alpha)
        assert_scores(result, row, language, row, alpha, expected)


def test_wide_beam_finds_what_a_small_one_loses():
    language = Language(6, seed=1)
    best = exhaustive(language, 0, 5, 1.0)[0]
    wide, narrow = (language.search([0], [5], size, 1.0).scores.numpy() for size in (200, 1))
    assert wide[0, 0] == pytest.approx(best, abs=1e-5)
    assert narrow[0, 0] < best - 1e-3


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_beam_size_1_is_greedy(alpha):
    language = Language(9, seed=1, scale=1.0)
    sentences, limits = np.arange(24), np.arange(24) % 12 + 1
    result = language.function(1, alpha)(sentences, limits)
    lengths = set()
    for row, (sentence, limit) in enumerate(zip(sentences, limits, strict=True)):
        expected = greedy(language, sentence, limit)
        assert hypotheses_of(result, row) == [expected]
        score = language.score(sentence, expected, alpha)
        assert result.scores.numpy()[row, 0] == pytest.approx(score, abs=2e-5)
        lengths.add(len(expected))
    assert len(lengths) > 4


@pytest.mark.parametrize("batch_mates", [0, 15])
def test_greedy_search_ends_at_the_first_end(batch_mates):
    # Not with a better score later, whether the sentence leaves the batch at once or waits.
    likely_end = tf.math.log([[0, 0, 0.6, 0.4], [0, 0, 0.01, 0.99], [0, 0, 1.0, 0]])
    no_end = tf.math.log([[0, 0, 0.1, 0.9]] * 3)
    tables = tf.stack([likely_end] + [no_end] * batch_mates)

    def step(tokens, index, state):
        return state.sentences[:, None, index], state

    limits = tf.fill([batch_mates + 1], 3)
    result = beam_search(
        step,
        SearchState((), tables),
        beam_size=1,
        rules=SearchRules(alpha=6.0),
        maximum_lengths=limits,
    )
    assert hypotheses_of(result, 0) == [[2]]
    assert all(hypotheses_of(result, row) == [[3, 3, 2]] for row in range(1, batch_mates + 1))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_batch_mates_do_not_matter(beam_size):
    language = Language(9, seed=2, scale=1.5, end_bias=-2.0)
    function = language.function(beam_size, 0.6)
    sentences, limits = np.arange(33), np.arange(33) * 7 % 20
    together = function(sentences, limits)
    assert len(set(together.lengths.numpy()[:, 0].tolist())) > 4
    for row in range(33):
        alone = function(sentences[row : row + 1], limits[row : row + 1])
        assert hypotheses_of(together, row) == hypotheses_of(alone, 0)
        np.testing.assert_allclose(together.scores[row], alone.scores[0], rtol=1e-5)


def test_rows_leave_the_batch_and_keep_their_own_state():
    language = Language(8, seed=4, end_bias=-30.0)
    limits = [3, 9, 1, 6, 9, 2, 2, 4]
    sizes = []

    def step(tokens, index, state):
        sentences = state.sentences["sentence"]
        sizes.append(len(sentences))
        owner = state.hypotheses["owner"]
        np.testing.assert_array_equal(owner, tf.tile(sentences[:, None], [1, 3]))
        # Sentences whose limit has come are gone: a row costs nothing once it has finished.
        assert all(limits[i] > index for i in sentences.numpy())
        inner = SearchState({"layers": state.hypotheses["layers"]}, state.sentences)
        logits, inner = language.step(tokens, index, inner)
        return logits, SearchState({**inner.hypotheses, "owner": owner}, inner.sentences)

    state = language.state(range(8), 3)
    owner = tf.tile(tf.range(8)[:, None], [1, 3])
    state = SearchState({**state.hypotheses, "owner": owner}, state.sentences)
    result = beam_search(
        step, state, beam_size=3, rules=PAPER, maximum_lengths=tf.constant(limits, tf.int32)
    )
    assert sizes == [8, 7, 5, 4, 3, 3, 2, 2, 2]
    for row, limit in enumerate(limits):
        expected = plain_beam(language, row, limit, 3, 0.6)
        assert_scores(result, row, language, row, 0.6, expected)


def test_stops_as_soon_as_nothing_can_win():
    calls = []
    table = tf.math.log([0.0, 0.0, 0.9, 0.09, 0.01])

    def step(tokens, index, state):
        calls.append(int(index))
        return tf.zeros([1, 2, 1]) + table, state

    limit = tf.constant([100])
    result = beam_search(step, SearchState((), ()), beam_size=2, rules=PLAIN, maximum_lengths=limit)
    assert hypotheses_of(result, 0) == [[2], [3, 2]]
    # After two tokens log 0.09 ** 2 is below log(0.09 * 0.9), the worst of the finished.
    assert calls == [0, 1]
    # A strong length penalty promises long hypotheses a better score: the search goes on.
    calls.clear()
    beam_search(
        step, SearchState((), ()), beam_size=2, rules=SearchRules(alpha=2.0), maximum_lengths=limit
    )
    assert len(calls) > 10


def test_waits_for_a_longer_hypothesis_that_wins():
    # The end is likeliest at first, but its sum over the penalty is not the best score.
    tables = tf.math.log([[0, 0, 0.6, 0.4], [0, 0, 0.01, 0.99], [0, 0, 0.01, 0.99], [0, 0, 1.0, 0]])

    def step(tokens, index, state):
        return tf.zeros([1, 2, 1]) + tables[index], state

    def best(alpha):
        limit = tf.constant([4])
        result = beam_search(
            step,
            SearchState((), ()),
            beam_size=2,
            rules=SearchRules(alpha=alpha),
            maximum_lengths=limit,
        )
        return hypotheses_of(result, 0)[0]

    assert best(0.0) == [2]
    assert best(2.0) == [3, 3, 3, 2]


@pytest.mark.parametrize("limit", [-3, 0, 1])
def test_smallest_limits_leave_the_end_alone(limit):
    language = Language(5, end_bias=-9.0)
    result = language.search([0], [limit], 3, 0.6)
    assert hypotheses_of(result, 0) == [[EOS]]
    assert result.lengths.numpy().tolist() == [[1, 0, 0]]
    expected = language.log_probabilities(0, ())[EOS]
    assert result.scores.numpy()[0, 0] == pytest.approx(expected, abs=1e-5)


def test_pad_and_start_tokens_keep_their_share_of_the_probability():
    table = tf.math.log([0.4, 0.3, 0.2, 0.1])

    def step(tokens, index, state):
        return tf.zeros([1, 2, 1]) + table, state

    result = beam_search(
        step, SearchState((), ()), beam_size=2, rules=PLAIN, maximum_lengths=tf.constant([3])
    )
    assert hypotheses_of(result, 0) == [[2], [3, 2]]
    np.testing.assert_allclose(np.exp(result.scores[0]), [0.2, 0.1 * 0.2], rtol=1e-5)


def test_other_special_ids():
    def step(tokens, index, state):
        np.testing.assert_array_equal(tokens, [[0]] if index == 0 else [[3]])
        return tf.constant([[[9.0, 1.0, 0.0, 2.0, -9.0, 9.0]]]), state

    result = beam_search(
        step,
        SearchState((), ()),
        beam_size=1,
        rules=PLAIN,
        maximum_lengths=tf.constant([4]),
        bos_id=0,
        eos_id=4,
        pad_id=5,
    )
    assert result.sequences.numpy().tolist() == [[[3, 3, 3, 4]]]


def test_long_copy_is_not_cut():
    source = np.random.default_rng(0).integers(3, 40, (2, 251)).astype(np.int32)
    source[:, 250] = EOS
    source[1, 100] = EOS

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def copy(source):
        def step(tokens, index, state):
            token = tf.tile(state.sentences[:, tf.minimum(index, 250), None], [1, 4])
            return 12 * tf.one_hot(token, 40), state

        limits = tf.fill([tf.shape(source)[0]], 400)
        return beam_search(
            step, SearchState((), source), beam_size=4, rules=PAPER, maximum_lengths=limits
        )

    result = copy(source)
    assert hypotheses_of(result, 0)[0] == source[0].tolist()
    assert hypotheses_of(result, 1)[0] == source[1, :101].tolist()


@pytest.mark.parametrize("beam_size", [1, 3])
def test_empty_batch(beam_size):
    language = Language(9)
    empty = np.zeros([0], np.int32)
    for result in (
        language.search(empty, empty, beam_size, 0.6),
        language.function(beam_size, 0.6)(empty, empty),
    ):
        assert result.sequences.shape[:2] == [0, beam_size]
        assert result.scores.shape == result.lengths.shape == [0, beam_size]


def test_bfloat16_logits_are_scored_in_float32():
    language = Language(30, seed=5, scale=1.0, dtype=tf.bfloat16)
    result = language.search([0, 1], [20, 20], 4, 0.6)
    for row in range(2):
        assert_scores(result, row, language, row, 0.6, plain_beam(language, row, 20, 4, 0.6))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("vocabulary_size", [20, 4096])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_logits_that_are_not_numbers_end_only_their_own_sentence(beam_size, vocabulary_size, bad):
    table = tf.random.stateless_normal([vocabulary_size], [1, 2])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def function(spoiler):
        def step(tokens, index, state):
            here = tf.where(index == 3, state.sentences, 0.0)[:, None, None]
            logits = tf.zeros([tf.shape(tokens)[0], beam_size, 1]) + table
            return tf.concat([logits[..., :7], logits[..., 7:8] + here, logits[..., 8:]], 2), state

        limits = tf.fill([tf.shape(spoiler)[0]], 30)
        return beam_search(
            step, SearchState((), spoiler), beam_size=beam_size, rules=PAPER, maximum_lengths=limits
        )

    result, clean = function([0.0, bad, 0.0]), function([0.0])
    for row in (0, 2):
        assert hypotheses_of(result, row) == hypotheses_of(clean, 0)
    assert all(len(tokens) <= 3 for tokens in hypotheses_of(result, 1))


@pytest.mark.parametrize("seed", range(5))
def test_a_hypothesis_with_nan_is_dropped(seed):
    language = Language(9, seed, 1.0, end_bias=-2.0, nan=5000)  # for a quarter of the prefixes
    result = language.search(range(8), [7] * 8, 4, 0.6)
    for row in range(8):
        assert_scores(result, row, language, row, 0.6, plain_beam(language, row, 7, 4, 0.6))


def test_all_logits_nan_gives_empty_slots():
    def step(tokens, index, state):
        return tf.fill([2, 3, 9], math.nan), state

    result = beam_search(
        step, SearchState((), ()), beam_size=3, rules=PAPER, maximum_lengths=tf.constant([9, 9])
    )
    assert hypotheses_of(result, 0) == hypotheses_of(result, 1) == []


def test_impossible_tokens_are_not_taken():
    table = tf.math.log([0.0, 0.0, 0.5, 0.0, 0.5])

    def step(tokens, index, state):
        return tf.zeros([1, 4, 1]) + table, state

    result = beam_search(
        step, SearchState((), ()), beam_size=4, rules=PLAIN, maximum_lengths=tf.constant([3])
    )
    assert hypotheses_of(result, 0) == [[2], [4, 2], [4, 4, 2]]


def test_traced_cache_keeps_its_static_shape():
    language = Language(9)
    language.function(4, 0.6).get_concrete_function()
    assert language.traced_shapes[-1] == [None, 4, 2, None, 3]


def test_state_shapes_name_what_changes():
    language = Language(9)

    def run(sentences, state_shapes):
        started = language.state(sentences, 2)
        prompt = tf.ones([tf.shape(sentences)[0], 2, 5], tf.int32)
        state = SearchState((started.hypotheses, prompt), started.sentences)

        def step(tokens, index, state):
            inner, prompt = state.hypotheses
            logits, inner = language.step(tokens, index, SearchState(inner, state.sentences))
            prompt = tf.concat([prompt, tokens[:, :, None]], 2)
            return logits, SearchState((inner.hypotheses, prompt), inner.sentences)

        limits = tf.fill([tf.shape(sentences)[0]], 6)
        return beam_search(
            step, state, beam_size=2, rules=PAPER, maximum_lengths=limits, state_shapes=state_shapes
        )

    cache = tf.TensorShape([None, 2, 2, None, 3])
    shapes = SearchState(
        ({"layers": [cache, cache]}, tf.TensorShape([None, 2, None])),
        {"sentence": tf.TensorShape([None])},
    )
    expected = language.search([3, 4], [6, 6], 2, 0.6)
    result = tf.function(lambda x: run(x, shapes))(tf.constant([3, 4]))
    np.testing.assert_array_equal(result.sequences, expected.sequences)
    with pytest.raises(InputError, match="state_shapes"):
        run(tf.constant([3, 4]), None)


def test_saved_model(tmp_path):
    language = Language(4096, seed=6, end_bias=5.0)
    vector = tf.TensorSpec([None], tf.int32)

    @tf.function(input_signature=[vector, vector])
    def serve(sentences, limits):
        return language.search(sentences, limits, 4, 0.6)._asdict()

    sentences, limits = tf.range(9), tf.range(9) * 3
    tf.saved_model.save(tf.Module(), str(tmp_path), signatures={"serving_default": serve})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    eager = language.search(sentences, limits, 4, 0.6)
    for rows in (slice(0, 9), slice(4, 5), slice(0, 0)):
        result = loaded(sentences=sentences[rows], limits=limits[rows])
        width = result["sequences"].shape[2]
        np.testing.assert_array_equal(result["sequences"], eager.sequences[rows, :, :width])
        np.testing.assert_allclose(result["scores"], eager.scores[rows], rtol=1e-5)

    # As a server loads it: a graph and a session, no Python objects.
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path))
        signature = meta.signature_def["serving_default"]
        feed = {
            signature.inputs["sentences"].name: np.arange(9),
            signature.inputs["limits"].name: np.arange(9) * 3,
        }
        sequences = session.run(signature.outputs["sequences"].name, feed)
        nodes = list(graph.as_graph_def().node)
        for function in graph.as_graph_def().library.function:
            nodes += function.node_def
    np.testing.assert_array_equal(sequences, eager.sequences)
    assert {node.op for node in nodes} >= {"TopKV2", "Softmax", "GatherV2"}
    assert not [node.op for node in nodes if "PyFunc" in node.op or "Xla" in node.op]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rules": SearchRules(suppressed_ids=(4, 2))}, r"suppressed_ids .* Received: \(4, 2\)"),
        ({"rules": SearchRules(suppressed_ids=(-1,))}, r"suppressed_ids .* Received: \(-1,\)"),
        ({"rules": SearchRules(suppressed_ids=(9,))}, "logits must have .* at least 10."),
        ({"beam_size": 0}, "beam_size must be .* Received: 0"),
        ({"eos_id": 0}, "eos_id unlike"),
        ({"eos_id": 9}, r"logits must have .* at least 10. Received: \(1, 2, 9\)"),
        ({"beam_size": 3}, r"\(sentences, 3, vocabulary\)"),
        ({"maximum_lengths": 5}, r"maximum_lengths must have .* Received: \(\)"),
        ({"state": SearchState(tf.zeros([2, 1]), ())}, r"\(N, 2, ...\). Received: \(2, 1\)"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    def step(tokens, index, state):
        return tf.zeros([1, 2, 9]), state

    usual = {"beam_size": 2, "maximum_lengths": [5], "rules": SearchRules()}
    usual["state"] = SearchState((), ())
    with pytest.raises(InputError, match=message):
        beam_search(step, **{**usual, **arguments})
