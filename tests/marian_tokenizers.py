"""The tokenizer of the small Marian checkpoint that lies beside the tests."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import tensorflow as tf
from small_tokenizers import padded

from keras_transformer.marian.tokenizer import MarianTokenizer
from keras_transformer.marian.vocabulary import MarianVocabulary

CHECKPOINT = Path(__file__).parent / "data" / "marian-en-de-tiny"
# With words that the checkpoint lacks, as of a model that translates into several languages.
LANGUAGES = (">>deu<<", ">>fra<<")


def checkpoint_lines(name: str) -> list[str]:
    """The lines of one of its texts: source.en, reference.de, or beam4.de of Hugging Face."""
    return (CHECKPOINT / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


@functools.cache
def marian_vocabulary(*more_words: str) -> MarianVocabulary:
    words = json.loads((CHECKPOINT / "vocab.json").read_text(encoding="utf-8"))
    return MarianVocabulary.of(words | {word: len(words) + i for i, word in enumerate(more_words)})


@functools.cache
def marian_tokenizer(side: str, *more_words: str, **options) -> MarianTokenizer:
    model_proto = (CHECKPOINT / f"{side}.spm").read_bytes()
    return MarianTokenizer(model_proto, marian_vocabulary(*more_words).words, **options)


def in_graph(tokenizer: MarianTokenizer, texts: list) -> list[list[int]]:
    return _compiled(tokenizer)[0](tf.constant(texts, tf.string, shape=[len(texts)])).to_list()


def out_of_graph(tokenizer: MarianTokenizer, rows: list, width: int | None = None) -> list[bytes]:
    return _compiled(tokenizer)[1](padded(rows, width)).numpy().tolist()


@functools.cache
def _compiled(tokenizer: MarianTokenizer):
    """Both directions as graphs: operation by operation, a text takes a hundred times as long."""
    text, ids = tf.TensorSpec([None], tf.string), tf.TensorSpec([None, None], tf.int32)
    return (
        tf.function(tokenizer.encode_graph, input_signature=[text]),
        tf.function(tokenizer.decode_graph, input_signature=[ids]),
    )
