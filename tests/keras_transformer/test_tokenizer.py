"""The same ids and texts in Python and in the graph; files."""

import doctest
import io
import os
import random

import keras
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import (
    CORPUS,
    GERMAN,
    SIZE,
    every_sort,
    in_graph,
    out_of_graph,
    texts,
    trained,
)

from keras_transformer import tokenizer as module
from keras_transformer.errors import InputError
from keras_transformer.text_preparation import prepare
from keras_transformer.tokenizer import BOS_ID, EOS_ID, KINDS, PAD_ID, UNK_ID, SubwordTokenizer

# Python and the graph agree


@every_sort
@settings(deadline=None, max_examples=60)
@given(batch=st.lists(texts, max_size=5))
def test_graph_gives_the_ids_of_python_and_their_texts(kind, normalization, batch):
    tokenizer = trained(kind, normalization)
    ids = [tokenizer.encode(text) for text in batch]
    assert in_graph(tokenizer, batch) == ids
    assert tokenizer.encode_batch(batch) == ids
    decoded = [tokenizer.decode(row).encode() for row in ids]
    assert out_of_graph(tokenizer, ids) == decoded


@every_sort
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_ids_give_the_same_valid_line_in_python_and_graph(kind, normalization, data):
    tokenizer = trained(kind, normalization)
    some_byte = st.integers(UNK_ID + 1, UNK_ID + 256)
    piece = st.integers(-2, tokenizer.vocabulary_size + 2)
    ids = data.draw(
        st.lists(st.lists(st.one_of(piece, some_byte), min_size=9, max_size=9), min_size=1)
    )
    decoded = out_of_graph(tokenizer, ids)
    assert [text.decode("utf-8", "strict") for text in decoded] == [
        tokenizer.decode(row) for row in ids
    ]
    for text in decoded:
        text = text.decode()
        assert len(text.splitlines()) <= 1
        assert text == text.strip()
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\ufeff\u2581" for c in text)


@pytest.mark.parametrize("kind", KINDS)
def test_near_ties_are_cut_alike_by_both_versions(kind):
    # Few letters, much repeated: many ways to cut with almost the same score.
    generator = random.Random(1)
    batch = ["".join(generator.choices("al les", k=80)) for _ in range(3000)]
    tokenizer = trained(kind)
    assert in_graph(tokenizer, batch) == tokenizer.encode_batch(batch)


def test_a_text_of_twenty_thousand_words_agrees():
    generator = random.Random(2)
    vocabulary = " ".join(CORPUS).split()
    long = " ".join(generator.choices([*vocabulary, "🐇"], k=20_000))
    for kind in KINDS:
        tokenizer = trained(kind)
        ids = tokenizer.encode(long)
        assert in_graph(tokenizer, [long]) == [ids]
        assert tokenizer.decode(ids) == long
        assert out_of_graph(tokenizer, [ids]) == [long.encode()]


# Text that comes back


@settings(deadline=None, max_examples=300)
@given(text=texts)
def test_identity_returns_the_prepared_text_exactly(text):
    tokenizer = trained("bpe", "identity")
    ids = tokenizer.encode(text)
    assert all(UNK_ID < i < tokenizer.vocabulary_size for i in ids)
    assert tokenizer.decode(ids) == prepare(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "</s>",
        "a </s> b<pad> <s>",
        "<unk> and <0x41>",
        "Rabbit 🐇 and 👨\u200d👩\u200d👧",
        "𠮷野家 龘",
        "café naïve Ünïcode",
        "< / s >",
        "[END] ▅ \\n",
    ],
)
def test_ordinary_text_comes_back_without_control_ids(kind, text):
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & set(ids)
    assert tokenizer.decode(ids) == text
    assert in_graph(tokenizer, [text]) == [ids]
    assert out_of_graph(tokenizer, [ids]) == [text.encode()]


def test_case_is_folded_only_when_asked():
    for normalization, expected in (("nmt_nfkc", "Café"), ("nmt_nfkc_cf", "café")):
        tokenizer = trained("bpe", normalization)
        assert tokenizer.decode(tokenizer.encode("Café")) == expected


# Decoding rules


def test_decoding_stops_at_the_first_end_and_drops_controls():
    tokenizer = trained()
    ids = tokenizer.encode("the house")
    row = [BOS_ID, UNK_ID, *ids[:1], PAD_ID, *ids[1:], 10**6, -1, EOS_ID, *ids, EOS_ID]
    assert tokenizer.decode(row) == "the house"
    assert out_of_graph(tokenizer, [row, [EOS_ID, *ids], ids, []]) == [
        b"the house",
        b"",
        b"the house",
        b"",
    ]


def test_bytes_of_no_character_decode_to_replacement_characters():
    tokenizer = trained()

    def byte(value):
        return UNK_ID + 1 + value

    row = [byte(0xE2), byte(0x96), *tokenizer.encode("a"), byte(0x0A), byte(0xFF), byte(0x41)]
    assert tokenizer.decode(row) == "\ufffd\ufffd a \ufffdA"
    assert out_of_graph(tokenizer, [row]) == ["\ufffd\ufffd a \ufffdA".encode()]


def test_empty_batches():
    tokenizer = trained()
    assert tokenizer.encode_batch([]) == []
    ids = tokenizer.encode_graph(tf.zeros([0], tf.string))
    assert ids.dtype == tf.int32
    assert ids.shape.as_list() == [0, None]
    assert out_of_graph(tokenizer, [], width=3) == []
    assert out_of_graph(tokenizer, [], width=0) == []


def test_ids_may_be_numpy_and_are_read_once():
    tokenizer = trained()
    ids = tokenizer.encode("the house")
    assert tokenizer.decode(iter(tf.constant(ids).numpy())) == "the house"


def test_pieces():
    tokenizer = trained()
    pieces = tokenizer.pieces([PAD_ID, BOS_ID, EOS_ID, UNK_ID, *tokenizer.encode("the 🐇")])
    assert pieces[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert "".join(pieces[4:-4]) == "▁the▁"
    assert pieces[-4:] == [f"<0x{byte:02X}>" for byte in "🐇".encode()]
    with pytest.raises(InputError, match=rf"0\.\.{SIZE - 1}.*Received: {SIZE}$"):
        tokenizer.pieces([SIZE])


# Files


def test_a_model_is_saved_and_loaded(tmp_path):
    trained().save(tmp_path / "a.model")
    loaded = SubwordTokenizer.load(tmp_path / "a.model")
    assert loaded.fingerprint == trained().fingerprint
    assert loaded.encode(GERMAN[0]) == trained().encode(GERMAN[0])
    assert [file.name for file in tmp_path.iterdir()] == ["a.model"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.model"
    path.write_bytes(b"old")

    def fail(source, destination):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        trained().save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_model_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"none\.model: .*Received: No such file"):
        SubwordTokenizer.load(tmp_path / "none.model")
    for content in (b"", b"no model at all"):
        (tmp_path / "a.model").write_bytes(content)
        with pytest.raises(InputError, match=r"a\.model: .*SentencePiece model\. Received"):
            SubwordTokenizer.load(tmp_path / "a.model")


def test_a_model_with_other_control_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=100, minloglevel=2
    )
    with pytest.raises(InputError, match=r"pad, bos, eos, unk .*Received: \[-1, 1, 2, 0\]$"):
        SubwordTokenizer(model.getvalue())


def test_the_examples_in_the_documentation_run():
    result = doctest.testmod(module)
    assert result.attempted > 3
    assert result.failed == 0


@pytest.mark.parametrize("forget", [keras.utils.set_random_seed, tf.random.set_seed])
def test_the_graph_keeps_its_model_when_a_seed_is_set(forget):
    """Setting a seed makes TensorFlow drop its kernels, and what belongs to them."""
    tokenizer = SubwordTokenizer.train(["ein Haus", "ein Hase"], vocabulary_size=272)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def round_trip(text):
        return tokenizer.decode_graph(tokenizer.encode_graph(text).to_tensor())

    text = tf.constant(["ein Hase"])
    for call in (round_trip, round_trip.python_function):
        before = call(text).numpy().tolist()
        forget(1)
        assert call(text).numpy().tolist() == before == [b"ein Hase"]
