"""Text <-> ids with SentencePiece, in Python and in the graph, the same ids and bytes both ways.

The two agree because `text_preparation` gives both the same characters, and because the models
that `tokenizer_training` makes have scores whose sums are exact and bytes for every character
outside the vocabulary. Bytes that a translation model puts in an order that is no character
decode to U+FFFD.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.text_preparation import prepare, prepare_in_graph
from keras_transformer.tokenizer_files import read_file, write_file
from keras_transformer.tokenizer_training import (
    BOS_ID,
    EOS_ID,
    KINDS,
    NORMALIZATIONS,
    PAD_ID,
    UNK_ID,
    parse_model_proto,
    train_model_proto,
)

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "KINDS",
    "NORMALIZATIONS",
    "PAD_ID",
    "UNK_ID",
    "SubwordTokenizer",
    "sentencepiece_resource",
]


class SubwordTokenizer:
    """One SentencePiece model: text to ids and back, in Python and in the graph.

    The sub-word vocabulary of section 5.1 of the paper. Both directions give the same result in
    Python and in the graph, byte for byte. Text of white space alone has no ids. The ids of
    control symbols (`PAD_ID`, `BOS_ID`, `EOS_ID`, `UNK_ID`) never come from text: `"</s>"` or
    `"<0x41>"` in a sentence is ordinary text.

    Args:
        model_proto: bytes, a serialized SentencePiece model with pad 0, bos 1, eos 2, unk 3.
            Usually from `SubwordTokenizer.train` or `SubwordTokenizer.load`.

    Attributes:
        model_proto: bytes, the model.
        vocabulary_size: int, the number of ids, control ids included.
        fingerprint: str, the SHA-256 of `model_proto` in hexadecimal.

    Raises:
        InputError: if `model_proto` is no SentencePiece model or has other control ids.

    Example:

    >>> tokenizer = SubwordTokenizer.train(["ein Haus", "ein Hase"], vocabulary_size=272)
    >>> tokenizer.decode(tokenizer.encode("ein </s> 🐇"))
    'ein </s> 🐇'
    >>> tokenizer.decode_graph(tokenizer.encode_graph(tf.constant(["ein Hase"])).to_tensor())
    <tf.Tensor: shape=(1,), dtype=string, numpy=array([b'ein Hase'], dtype=object)>

    References:
        - [Kudo and Richardson, 2018](https://arxiv.org/abs/1808.06226)
        - [Sennrich et al., 2016](https://arxiv.org/abs/1508.07909)
        - [Kudo, 2018](https://arxiv.org/abs/1804.10959)
    """

    def __init__(self, model_proto: bytes):
        import sentencepiece

        try:
            processor = sentencepiece.SentencePieceProcessor.from_proto(model_proto)
        except RuntimeError as error:
            raise InputError(
                f"A tokenizer needs a serialized SentencePiece model. Received: "
                f"{len(model_proto)} bytes that are none"
            ) from error
        controls = [getattr(processor, f"{name}_id")() for name in ("pad", "bos", "eos", "unk")]
        if controls != [PAD_ID, BOS_ID, EOS_ID, UNK_ID]:
            raise InputError(
                f"A tokenizer's model must have pad, bos, eos, unk as ids {PAD_ID}, {BOS_ID}, "
                f"{EOS_ID}, {UNK_ID}. Received: {controls}"
            )
        self._processor = processor
        self._resource = None
        self.model_proto = model_proto
        self.vocabulary_size = processor.get_piece_size()
        self.fingerprint = hashlib.sha256(model_proto).hexdigest()

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        *,
        vocabulary_size: int,
        kind: str = "bpe",
        normalization: str = "nmt_nfkc",
        character_coverage: float = 1.0,
        maximum_sentences: int = 1_000_000,
        num_threads: int = 16,
    ) -> SubwordTokenizer:
        """Learns a vocabulary from sentences; the same sentences give the same model.

        Args:
            sentences: iterable of str, read once. Long ones count in full; white-space-only ones
                count for nothing.
            vocabulary_size: int, the number of ids: 4 control ids, 256 bytes, the characters of
                the corpus and what is learned.
            kind: `"bpe"` (as the paper) or `"unigram"`.
            normalization: a SentencePiece rule, stored in the model: `"nmt_nfkc"`, `"nfkc"`,
                `"nmt_nfkc_cf"`, `"nfkc_cf"` (`cf` folds case) or `"identity"`. All keep accents.
            character_coverage: float, the share of the corpus' characters that get an id of their
                own; the rarest others are written in bytes. 0.9995 suits Chinese and Japanese.
            maximum_sentences: int, at most so many sentences are learned from, a uniform sample.
            num_threads: int. The scores of a unigram model depend on it in their last digits,
                so the default does not follow the machine.

        Returns:
            A `SubwordTokenizer`.

        Raises:
            InputError: if there is no text, an option is wrong, or the corpus cannot fill or not
                fit into `vocabulary_size`; the message tells which sizes are possible.
        """
        return cls(
            train_model_proto(
                sentences,
                vocabulary_size=vocabulary_size,
                kind=kind,
                normalization=normalization,
                character_coverage=character_coverage,
                maximum_sentences=maximum_sentences,
                num_threads=num_threads,
            )
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> SubwordTokenizer:
        """Reads a model that `save` wrote. Raises `InputError` if there is none at `path`.

        A unigram model that was trained elsewhere keeps its scores: there the graph may cut near
        ties differently from Python.
        """
        model_proto = read_file(Path(path))
        try:
            return cls(model_proto)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model to `path`, aside and then renamed: never half a file."""
        write_file(Path(path), self.model_proto)

    @property
    def options(self) -> dict:
        """What the model itself says of its training: kind, normalization, coverage, size."""
        model = parse_model_proto(self.model_proto)
        spec = model.trainer_spec
        return {
            "kind": spec.ModelType.Name(spec.model_type).lower(),
            "normalization": model.normalizer_spec.name,
            "character_coverage": round(spec.character_coverage, 6),  # stored as float32
            "vocabulary_size": self.vocabulary_size,
        }

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without begin and end."""
        return self._processor.encode(prepare(text))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, as `encode`, on all cores."""
        return self._processor.encode([prepare(text) for text in texts])

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first `EOS_ID`, on one line.

        Control ids and ids outside the vocabulary have no text.
        """
        return prepare(self._processor.decode(ids_with_text(ids, self.vocabulary_size)))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the vocabulary's entry for each id, control ids too; `▁` is a space."""
        return self._processor.id_to_piece(ids_in_vocabulary(ids, self.vocabulary_size))

    @property
    def resource(self) -> tf.Module:
        """The TensorFlow Text tokenizer that the graph uses; a SavedModel must track it."""
        if self._resource is None:
            self._resource = sentencepiece_resource(self.model_proto, tf.int32)
        return self._resource

    def encode_graph(self, text: tf.Tensor) -> tf.RaggedTensor:
        """`encode` for a string tensor of any bytes: [N] to ragged int32 [N, None]."""
        return self.resource.tokenize(prepare_in_graph(text))

    def decode_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """`decode` for a matrix of ids: int32 [N, T] to string [N], valid UTF-8 on one line."""
        kept = ids_with_text_in_graph(ids, self.vocabulary_size)
        return prepare_in_graph(self.resource.detokenize(kept))

    def pieces_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """`pieces` for a matrix of ids: int32 [N, T] to string [N, T], empty for `PAD_ID`."""
        return tf.where(tf.equal(ids, PAD_ID), "", self.resource.id_to_string(ids))


def ids_with_text(ids: Iterable[int], vocabulary_size: int) -> list[int]:
    """Returns the ids up to the first `EOS_ID`, without control ids and those beyond the last.

    Example:

    >>> ids_with_text([7, 3, 900, 8, 2, 9], 100)
    [7, 8]
    """
    until_end = itertools.takewhile(lambda i: i != EOS_ID, map(int, ids))
    return [i for i in until_end if UNK_ID < i < vocabulary_size]


def ids_with_text_in_graph(ids: tf.Tensor, vocabulary_size: int) -> tf.RaggedTensor:
    """`ids_with_text` for a matrix of ids: int32 [N, T] to ragged [N, None].

    Example:

    >>> ids_with_text_in_graph(tf.constant([[7, 3, 900, 8, 2, 9]]), 100).to_list()
    [[7, 8]]
    """
    before_end = tf.math.cumprod(tf.cast(ids != EOS_ID, tf.int32), axis=1) == 1  # [N, T]
    has_text = (ids > UNK_ID) & (ids < vocabulary_size)  # [N, T]
    return tf.ragged.boolean_mask(ids, before_end & has_text)


def ids_in_vocabulary(ids: Iterable[int], vocabulary_size: int) -> list[int]:
    """Returns the ids as int; raises `InputError` for one that is in no vocabulary of this size.

    Example:

    >>> ids_in_vocabulary([7, 99], 100)
    [7, 99]
    """
    ids = [int(i) for i in ids]
    for i in ids:
        if not 0 <= i < vocabulary_size:
            raise InputError(
                f"An id must be in 0..{vocabulary_size - 1}, the vocabulary. Received: {i}"
            )
    return ids


def sentencepiece_resource(model_proto: bytes, out_type: tf.DType) -> tf.Module:
    """Returns TensorFlow Text's tokenizer of a model, which lives as long as the process.

    Args:
        model_proto: bytes, a serialized SentencePiece model.
        out_type: `tf.int32` to cut into ids, `tf.string` to cut into pieces.

    Returns:
        A `tensorflow_text.SentencepieceTokenizer`. A SavedModel must track it.

    Example:

    >>> tokenizer = SubwordTokenizer.train(["ein Haus", "ein Hase"], vocabulary_size=272)
    >>> sentencepiece_resource(tokenizer.model_proto, tf.string).tokenize(["ein"]).to_list()
    [[b'\\xe2\\x96\\x81', b'ein']]
    """
    import tensorflow_text
    from tensorflow_text.python.ops import sentencepiece_tokenizer as ops

    shared_name = hashlib.sha256(model_proto).hexdigest()

    class SharedModel(ops._SentencepieceModelResource):
        # Without a name the model belongs to the op's kernel, and goes with it when
        # TensorFlow drops its kernels: tf.random.set_seed and clear_session do.
        def _create_resource(self):
            return ops.gen_sentencepiece_tokenizer.sentencepiece_op(
                model=self._model, shared_name=shared_name
            )

    with tf.init_scope():  # a first use while a function is traced must outlive the trace
        resource = tensorflow_text.SentencepieceTokenizer(model=model_proto, out_type=out_type)
        resource._model_resource = SharedModel(model_proto, None)
    return resource
