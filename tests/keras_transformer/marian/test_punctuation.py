"""Punctuation as sacremoses normalises it, alike in Python and in the graph."""

import json

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from marian_tokenizers import CHECKPOINT
from sacremoses import MosesPunctNormalizer

from keras_transformer.marian.punctuation import (
    normalize_punctuation,
    normalize_punctuation_in_graph,
)

LANGUAGES = ("en", "de", "es", "fr", "cs", "cz", "ja", None)
GOLDEN = json.loads((CHECKPOINT.parent / "marian_tokenizer_golden.json").read_bytes())
NBSP = "\u00a0"
# What a rule speaks of, and what its classes of characters may be confused about.
parts = [
    *"()%.:;,!?'`´‘’‚„“”\"–—…«»< \r\n\t12٣aZéº",
    *(NBSP, NBSP, "nº", "ºC", "cm", "''", "\u2003", "\x1c", "\x85", "\u200b", "\ufeff", "🐇"),
]
texts = st.lists(st.one_of(st.sampled_from(parts), st.text(max_size=2)), max_size=25).map("".join)


def in_graph(texts, language):
    given = tf.constant(texts, tf.string, shape=[len(texts)])
    return [text.decode() for text in normalize_punctuation_in_graph(given, language).numpy()]


@pytest.mark.parametrize("language", LANGUAGES)
def test_punctuation_is_that_of_hugging_face(language):
    given = [text for text, _ in GOLDEN["punctuation"]]
    expected = [by_language[str(language)] for _, by_language in GOLDEN["punctuation"]]
    assert sum(a != b for a, b in zip(given, expected, strict=True)) > 10
    assert [normalize_punctuation(text, language) for text in given] == expected
    assert in_graph(given, language) == expected


@pytest.mark.parametrize("language", LANGUAGES)
@settings(deadline=None, max_examples=60)
@given(batch=st.lists(texts, max_size=8))
def test_any_text_is_normalised_as_sacremoses_does(language, batch):
    normalizer = MosesPunctNormalizer(language)
    expected = [normalizer.normalize(text) for text in batch]
    assert [normalize_punctuation(text, language) for text in batch] == expected
    assert in_graph(batch, language) == expected


def test_a_long_text():
    text = "„Ja“, sagte er – »nein«… (3 %) " * 5000
    expected = ('"Ja", sagte er - "nein"... (3%) ' * 5000).strip()
    assert normalize_punctuation(text, "de") == expected
    assert in_graph([text], "de") == [expected]
