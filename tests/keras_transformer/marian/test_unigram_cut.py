"""Texts with many cuts of almost the same score are cut in the graph as in Python."""

import functools
import random

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from marian_tokenizers import marian_tokenizer
from small_tokenizers import trained

from keras_transformer.marian import unigram_cut
from keras_transformer.marian.unigram_cut import UnigramCut, needs_unigram_cut
from keras_transformer.tokenizer_training import parse_model_proto

SIDES = ("source", "target")


def model_of(side):
    return parse_model_proto(marian_tokenizer(side).model_proto)


def pieces_in_python(side, texts):
    return marian_tokenizer(side)._processor.encode(texts, out_type=str)


def pieces_in_graph(side, texts):
    pieces = compiled_cut(side)(tf.constant(texts, tf.string, [len(texts)]))
    return [[piece.decode() for piece in row] for row in pieces.to_list()]


@functools.cache
def compiled_cut(side):
    signature = [tf.TensorSpec([None], tf.string)]
    return tf.function(marian_tokenizer(side).resource.cut, input_signature=signature)


def pieces_of_tensorflow_text(side, texts):
    pieces = marian_tokenizer(side).resource.model.tokenize(tf.constant(texts))
    return [[piece.decode() for piece in row] for row in pieces.to_list()]


@pytest.mark.parametrize("side", SIDES)
def test_near_ties_are_cut_as_in_python(side):
    generator = random.Random(1)
    texts = ["".join(generator.choices("al les", k=80)) for _ in range(1000)]
    texts += ["l" * k for k in range(200)]
    expected = pieces_in_python(side, texts)
    assert pieces_in_graph(side, texts) == expected
    # Without the correction a good share would differ, or this test would be of no use.
    cut = pieces_of_tensorflow_text(side, texts)
    assert sum(a != b for a, b in zip(cut, expected, strict=True)) > 50


few_letters = st.text("l es▁Ü😀\u0301", max_size=60)


@pytest.mark.parametrize("side", SIDES)
@settings(deadline=None, max_examples=100)
@given(texts=st.lists(st.one_of(few_letters, st.text(max_size=20)), max_size=6))
def test_any_text_is_cut_as_in_python(side, texts):
    assert pieces_in_graph(side, texts) == pieces_in_python(side, texts)


def test_long_texts_are_cut_as_in_python():
    generator = random.Random(2)
    words = ["hellllichten", "alles", "Tom", "🐇🐇", "lll", "is"]
    texts = [" ".join(generator.choices(words, k=k)) for k in (3000, 5, 1000)]
    for side in SIDES:
        assert pieces_in_graph(side, texts) == pieces_in_python(side, texts)


def test_stretches_that_are_too_long_stay_as_they_were(monkeypatch):
    generator = random.Random(1)
    texts = ["".join(generator.choices("al les", k=80)) for _ in range(50)]
    cut = pieces_of_tensorflow_text("source", texts)
    assert cut != pieces_in_python("source", texts)
    monkeypatch.setattr(unigram_cut, "_LONGEST_STRETCH", 0)
    kept = UnigramCut(model_of("source"))(tf.ragged.constant(cut)).to_list()
    assert [[piece.decode() for piece in row] for row in kept] == cut


def test_no_text_and_empty_texts():
    assert pieces_in_graph("source", []) == []
    assert pieces_in_graph("source", ["", " ", ""]) == [[], [], []]
    assert pieces_in_graph("source", ["", "Tom"]) == [[], ["▁Tom"]]


@pytest.mark.parametrize(("kind", "needed"), [("unigram", False), ("bpe", False)])
def test_models_with_bytes_or_of_other_kinds_do_without(kind, needed):
    assert needs_unigram_cut(parse_model_proto(trained(kind).model_proto)) == needed
    assert needs_unigram_cut(model_of("source"))
