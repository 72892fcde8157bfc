"""Any text becomes the same line in Python and in the graph, and so the same ids."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import blobs, every_sort, in_graph, out_of_graph, trained

from keras_transformer.text_preparation import (
    on_one_line,
    on_one_line_in_graph,
    prepare,
    prepare_in_graph,
)
from keras_transformer.tokenizer import KINDS


@settings(deadline=None, max_examples=200)
@given(batch=st.lists(blobs, max_size=5))
def test_graph_prepares_as_python_does(batch):
    prepared = [prepare(blob.decode("utf-8", "replace")) for blob in batch]
    blob_tensor = tf.constant(batch, tf.string, shape=[len(batch)])
    assert prepare_in_graph(blob_tensor).numpy().tolist() == [text.encode() for text in prepared]
    assert [prepare(text) for text in prepared] == prepared


@settings(deadline=None, max_examples=200)
@given(batch=st.lists(blobs, max_size=5))
def test_text_is_put_on_one_line_in_the_graph_as_in_python(batch):
    lines = [on_one_line(blob.decode("utf-8", "replace")) for blob in batch]
    blob_tensor = tf.constant(batch, tf.string, shape=[len(batch)])
    found = on_one_line_in_graph(blob_tensor).numpy().tolist()
    assert found == [line.encode() for line in lines]
    for line in lines:
        assert line == on_one_line(line) and len(line.splitlines()) <= 1


def test_what_is_on_one_line_keeps_its_spaces():
    assert on_one_line("\u2581a,  b \r\nc\u00a0d\u00a0") == "a,  b   c\u00a0d"


def test_tensors_of_any_shape_are_prepared():
    assert prepare_in_graph(tf.constant(" a\nb ")).numpy() == b"a b"
    pairs = tf.constant([[b"a\x00", b"\xff"], [b"", b" \t"]])
    assert prepare_in_graph(pairs).numpy().tolist() == [[b"a", b"\xef\xbf\xbd"], [b"", b""]]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=200)
@given(batch=st.lists(blobs, max_size=5))
def test_any_bytes_give_the_ids_of_their_text_with_replacement_characters(kind, batch):
    tokenizer = trained(kind, "nfkc")  # nmt_nfkc would turn U+FFFD into a space
    ids = [tokenizer.encode(blob.decode("utf-8", "replace")) for blob in batch]
    assert in_graph(tokenizer, batch) == ids


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("a\rb\nc\td", "a b c d"),
        ("a\r\nb", "a b"),
        *((f"a{c}b", "a b") for c in "\x00\v\f\x1c\x1d\x1e\x7f\x85\x9b\u2028\u2029\u2581"),
        ("  a \n\n b  ", "a b"),
        ("\ufeffa\ufeffb", "ab"),
        ("a\ud800b", "a\ufffdb"),
        ("a\u00a0b", "a\u00a0b"),
        ("\u00a0a\u3000", "a"),
    ],
)
def test_preparation(text, prepared):
    assert prepare(text) == prepared
    tokenizer = trained("bpe", "identity")
    assert tokenizer.decode(tokenizer.encode(text)) == prepared


def test_invalid_bytes_become_replacement_characters():
    tokenizer = trained("bpe", "identity")
    ids = in_graph(tokenizer, [b"a\xff\xe2\x96b", b"\xef\xbb\xbfhi"])
    assert [tokenizer.decode(row) for row in ids] == ["a\ufffd\ufffdb", "hi"]


@every_sort
def test_white_space_alone_has_no_ids(kind, normalization):
    tokenizer = trained(kind, normalization)
    blank = [
        "",
        " ",
        "\u00a0",
        " \t\r\n\v\f\x00\x85\u2028\u2029 ",
        "\u2003\u3000",
        "\u2581",
        "\ufeff",
    ]
    assert tokenizer.encode_batch(blank) == [[]] * len(blank)
    assert in_graph(tokenizer, blank) == [[]] * len(blank)
    assert tokenizer.decode([]) == ""
    assert out_of_graph(tokenizer, [[]] * 2) == [b"", b""]
