"""A few sentences, tokenizers trained on them, and the texts that have broken tokenizers."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf
from hypothesis import strategies as st

from keras_transformer.tokenizer import KINDS, NORMALIZATIONS, PAD_ID, SubwordTokenizer

GERMAN = [
    "Das Haus ist groß und die Tür ist grün.",
    "Über den Fluss führt eine schöne, alte Brücke.",
    "Ich lese gern Bücher; alle lesen sie schnell.",
    "Wo ist der Ball? Alle wollen ihn holen!",
]
ENGLISH = [
    "The house is big and the door is green.",
    "A beautiful old bridge leads over the river.",
    "I like reading books; they all read quickly.",
    "Where is the ball? They all will call for it!",
]
OTHERS = ["Le café naïf coûte 12 €.", "我们明天去北京。", "Он читает книгу."]
CORPUS = GERMAN + ENGLISH + OTHERS
SIZE = 355  # 4 controls, 256 bytes, the characters of CORPUS and what is learned

# What has broken tokenizers: separators, marks, other scripts, markers as text, spaces of all kinds
AWKWARD = [
    *"\n\r\t\v\f\x00\x07\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x9f\u2028\u2029",
    *" \u00a0\u1680\u2003\u200b\u200d\u200e\u202f\u205f\u3000\u2581\u2585\u2047\ufeff\ufffd\ufffe",
    *("</s>", "<s>", "<pad>", "<unk>", "<0x41>", "<0x", " ⁇ ", "▁the", "ﬁ", "Ⅷ", "①", "ẞ", "İ"),
    *(
        "e\u0301",
        "\u0301",
        "ﷺ",
        "が",
        "か\u3099",
        "각",
        "👨\u200d👩\u200d👧",
        "🐇",
        "𠮷",
        "\U0010ffff",
    ),
]
words = st.sampled_from(sorted({word for line in CORPUS for word in line.split()}))
texts = st.lists(
    st.one_of(words, st.just(" "), st.sampled_from(AWKWARD), st.text(max_size=4)), max_size=12
).map("".join)
blobs = st.lists(
    st.one_of(
        texts.map(str.encode),
        st.binary(max_size=6),
        # Halves of characters, surrogates in UTF-8, overlong forms, beyond U+10FFFF, a mark
        st.sampled_from(
            [
                b"\xe2\x96",
                b"\xf0\x9f",
                b"\xed\xa0\x80",
                b"\xc0\x80",
                b"\xf4\x90\x80\x80",
                b"\xef\xbb",
            ]
        ),
    ),
    max_size=6,
).map(b"".join)

every_sort = pytest.mark.parametrize(
    ("kind", "normalization"), [(k, n) for k in KINDS for n in NORMALIZATIONS]
)


@functools.cache
def trained(kind: str = "bpe", normalization: str = "nmt_nfkc") -> SubwordTokenizer:
    """One tokenizer of each sort for all tests."""
    return SubwordTokenizer.train(
        CORPUS, vocabulary_size=SIZE, kind=kind, normalization=normalization
    )


def in_graph(tokenizer: SubwordTokenizer, texts: list) -> list[list[int]]:
    return tokenizer.encode_graph(tf.constant(texts, tf.string, shape=[len(texts)])).to_list()


def out_of_graph(tokenizer: SubwordTokenizer, rows: list, width: int | None = None) -> list[bytes]:
    return tokenizer.decode_graph(padded(rows, width)).numpy().tolist()


def padded(rows: list, width: int | None = None) -> tf.Tensor:
    width = max(map(len, rows), default=0) if width is None else width
    matrix = [list(row) + [PAD_ID] * (width - len(row)) for row in rows]
    return tf.constant(matrix, tf.int32, shape=[len(rows), width])
