"""The search under the rules of other systems, against a plain statement of each."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_search import EOS, Language, hypotheses_of, plain_beam_by_rules

from keras_transformer.errors import InputError
from keras_transformer.search_rules import CHOICES, SearchRules

all_rules = st.builds(
    SearchRules,
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    suppressed_ids=st.sampled_from([(), (3,), (3, 5)]),
    **{name: st.sampled_from(choices) for name, choices in CHOICES.items()},
)


@settings(deadline=None, max_examples=60)
@given(
    all_rules,
    st.integers(0, 10**6),
    st.integers(6, 9),
    st.integers(2, 4),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from([-2.0, 0.0, 2.0]),
)
def test_the_search_is_the_plain_statement(rules, seed, size, beam_size, limits, end_bias):
    language = Language(size, seed, 1.0, end_bias)
    result = language.search(range(len(limits)), limits, beam_size, **vars(rules))
    for row, limit in enumerate(limits):
        expected = plain_beam_by_rules(language, row, limit, beam_size, rules)
        assert hypotheses_of(result, row) == [list(tokens) for _, tokens in expected]
        scores = [score for score, _ in expected]
        np.testing.assert_allclose(result.scores[row, : len(scores)], scores, atol=2e-5)


@pytest.mark.parametrize(
    ("length_penalty", "alpha", "expected"),
    [
        ("gnmt", 0.0, [1, 1, 1]),
        ("gnmt", 1.0, [1, 2, 3]),
        ("gnmt", 0.6, [1, 1.515717, 1.933182]),
        ("power", 0.0, [1, 1, 1]),
        ("power", 1.0, [1, 7, 13]),
        ("power", 0.5, [1, 2.645751, 3.605551]),
    ],
)
def test_penalties_by_hand(length_penalty, alpha, expected):
    rules = SearchRules(alpha, length_penalty)
    np.testing.assert_allclose(rules.penalty(tf.constant([1, 7, 13])), expected, rtol=1e-6)


def test_greedy_search_never_takes_a_suppressed_token():
    language = Language(8, seed=3, end_bias=-2.0)
    free = language.search(range(20), [9] * 20, 1)
    suppressed = language.search(range(20), [9] * 20, 1, suppressed_ids=(4, 6))
    assert {4, 6} <= set(free.sequences.numpy().flat)
    assert not {4, 6} & set(suppressed.sequences.numpy().flat)


def test_a_free_end_costs_nothing_at_the_limit_alone():
    language = Language(6, seed=4, end_bias=-9.0)
    scored = language.search([0], [3], 2, 0.0, forced_end="scored")
    free = language.search([0], [3], 2, 0.0, forced_end="free")
    for found, row in ((hypotheses_of(free, 0)[0], 0), (hypotheses_of(free, 0)[1], 1)):
        assert len(found) == 3
        without_end = language.score(0, found, 0) - language.log_probabilities(0, found[:-1])[EOS]
        np.testing.assert_allclose(free.scores[0, row], without_end, atol=1e-5)
    assert scored.scores[0, 0] < free.scores[0, 0] - 5


def test_a_hypothesis_with_nan_gets_no_free_end():
    language = Language(6, seed=4, nan=20011)
    result = language.search([0], [3], 2, 0.0, forced_end="free")
    assert hypotheses_of(result, 0) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -0.1}, "alpha must be .* Received: -0.1"),
        ({"alpha": float("nan")}, "alpha must be .* Received: nan"),
        ({"alpha": float("inf")}, "alpha must be .* Received: inf"),
        ({"length_penalty": "log"}, "length_penalty must be 'gnmt' or 'power'. Received: 'log'"),
        ({"early_stopping": True}, "early_stopping must be 'never' or .* Received: True"),
        ({"ends_within": ""}, "ends_within must be 'candidates' or 'beam'. Received: ''"),
        ({"forced_end": "x"}, "forced_end must be 'scored' or 'free'. Received: 'x'"),
    ],
)
def test_impossible_rules_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        SearchRules(**arguments)
