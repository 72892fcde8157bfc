"""One side's tokenizer of a Marian checkpoint: SentencePiece pieces, looked up in a list of words.

A checkpoint has a SentencePiece model for each language, and one list of words for both or one for
each. The ids of the SentencePiece models mean nothing: a piece is looked up as text. So a piece
that this side's model does not know, which keeps the characters of the text, still has an id if
the other side's words hold it.

Text goes to SentencePiece as it is, as Hugging Face's MarianTokenizer does it, for the model was
trained on such ids: the normalisation inside the model decides what becomes of control characters
and odd spaces. Only what has no UTF-8 form becomes U+FFFD first.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.marian.punctuation import (
    normalize_punctuation,
    normalize_punctuation_in_graph,
)
from keras_transformer.marian.spaces import clean_up_spaces, clean_up_spaces_in_graph
from keras_transformer.marian.unigram_cut import UnigramCut, needs_unigram_cut
from keras_transformer.text_preparation import (
    make_valid,
    make_valid_in_graph,
    on_one_line,
    on_one_line_in_graph,
)
from keras_transformer.tokenizer import (
    PAD_ID,
    UNK_ID,
    ids_in_vocabulary,
    ids_with_text,
    ids_with_text_in_graph,
    sentencepiece_resource,
)
from keras_transformer.tokenizer_training import parse_model_proto

# The language to translate into, before anything else: ">>deu<< Hello". For `re` and for RE2.
_LANGUAGE = "(?s)^(>>.*?<<)(.*)$"
_LANGUAGE_PATTERN = re.compile(_LANGUAGE.replace("$", r"\Z"))


class MarianTokenizer:
    """A SentencePiece model over a checkpoint's words: text to ids and back, as `SubwordTokenizer`.

    Equal to Hugging Face's MarianTokenizer, in Python and in the graph, but for what would let
    text pass for control symbols: `"</s>"`, `"<pad>"` or `"<unk>"` in a sentence is ordinary text.
    A piece that is no word has the id `UNK_ID`, and no text when it is decoded. `">>deu<<"` at the
    very start of a text, or any `">>...<<"`, is one word, looked up whole.

    Args:
        model_proto: bytes, a serialized SentencePiece model: the content of `source.spm` or
            `target.spm`.
        words: sequence of str, the word of each id, usually `MarianVocabulary.words`: pad, start,
            end and unknown first.
        punctuation: str, the language by whose rules the punctuation of each text is normalised
            before it is cut, `"other"` for a language without rules of its own. `None` leaves
            texts alone, as Hugging Face does unless its `normalize` is called.
        cleans_up_spaces: bool, whether the space before English punctuation and contractions is
            taken out of decoded texts, as Hugging Face does for a tokenizer that is saved with
            `clean_up_tokenization_spaces`.

    Attributes:
        model_proto: bytes, the model.
        words: tuple of str.
        punctuation: str or `None`.
        cleans_up_spaces: bool.
        vocabulary_size: int, the number of words.
        fingerprint: str, the SHA-256 of all four in hexadecimal.

    Raises:
        InputError: if `model_proto` is no SentencePiece model, a word is given twice or there are
            none but control words, or the words hold no piece of the model.

    Example:

    >>> from keras_transformer.tokenizer import SubwordTokenizer
    >>> model_proto = SubwordTokenizer.train(["ein Haus"], vocabulary_size=268).model_proto
    >>> words = ("<pad>", "<s>", "</s>", "<unk>", "▁", "e", "i", "n", ">>deu<<")
    >>> tokenizer = MarianTokenizer(model_proto, words)
    >>> tokenizer.encode(">>deu<<nein </s>")
    [8, 4, 7, 5, 6, 7, 4, 3, 3, 3, 3]
    >>> tokenizer.decode([4, 7, 5, 6, 7, 3, 2, 8])
    'nein'
    """

    def __init__(
        self,
        model_proto: bytes,
        words: Sequence[str],
        *,
        punctuation: str | None = None,
        cleans_up_spaces: bool = False,
    ) -> None:
        import sentencepiece

        try:
            self._processor = sentencepiece.SentencePieceProcessor.from_proto(model_proto)
        except RuntimeError as error:
            raise InputError(
                f"A tokenizer needs a serialized SentencePiece model. Received: "
                f"{len(model_proto)} bytes that are none"
            ) from error
        self._ids = {word: i for i, word in enumerate(words) if i > UNK_ID}
        if not self._ids or len(set(words)) < len(words):
            raise InputError(
                f"A Marian tokenizer needs different words, control words and others. Received: "
                f"{len(words)} words, {len(set(words))} of them different"
            )
        pieces = self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
        if self._ids.keys().isdisjoint(pieces):
            raise InputError(
                f"A Marian tokenizer's words must hold pieces of its SentencePiece model. "
                f"Received: {len(words)} words and {len(pieces)} pieces, none of them alike"
            )
        self._resource = None
        self.model_proto = model_proto
        self.words = tuple(words)
        self.punctuation = punctuation
        self.cleans_up_spaces = cleans_up_spaces
        self.vocabulary_size = len(self.words)
        model = hashlib.sha256(model_proto).hexdigest()
        content = [model, self.words, punctuation, cleans_up_spaces]
        self.fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def options(self) -> dict:
        """What is known of it: the model's kind and normalization, size, rules of punctuation."""
        model = parse_model_proto(self.model_proto)
        return {
            "kind": "marian",
            "model": model.trainer_spec.ModelType.Name(model.trainer_spec.model_type).lower(),
            "normalization": model.normalizer_spec.name,
            "punctuation": self.punctuation,
            "cleans_up_spaces": self.cleans_up_spaces,
            "vocabulary_size": self.vocabulary_size,
        }

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without begin and end."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, as `encode`, on all cores."""
        languages, rests = [], []
        for text in map(make_valid, texts):
            if self.punctuation is not None:
                text = normalize_punctuation(text, self.punctuation)
            found = _LANGUAGE_PATTERN.match(text)
            languages.append([found[1]] if found else [])
            rests.append(found[2] if found else text)
        cut = self._processor.encode(rests, out_type=str)
        return [
            [self._ids.get(piece, UNK_ID) for piece in (*language, *pieces)]
            for language, pieces in zip(languages, cut, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first `EOS_ID`, on one line.

        Control ids and ids outside the vocabulary have no text. `">>deu<<"` has its own.
        """
        kept = [self.words[i] for i in ids_with_text(ids, self.vocabulary_size)]
        # It leaves the spaces of the other side's pieces, U+2581, alone, which is a break to ours.
        text = on_one_line(self._processor.decode_pieces(kept))
        return clean_up_spaces(text) if self.cleans_up_spaces else text

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the word of each id, control ids too; `▁` is a space."""
        return [self.words[i] for i in ids_in_vocabulary(ids, self.vocabulary_size)]

    @property
    def resource(self) -> tf.Module:
        """The model and the table that the graph uses; a SavedModel must track them."""
        if self._resource is None:
            self._resource = MarianResource(self.model_proto, self._ids)
        return self._resource

    def encode_graph(self, text: tf.Tensor) -> tf.RaggedTensor:
        """`encode` for a string tensor of any bytes: [N] to ragged int32 [N, None]."""
        text = make_valid_in_graph(text)
        if self.punctuation is not None:
            text = normalize_punctuation_in_graph(text, self.punctuation)
        has_language = tf.strings.regex_full_match(text, _LANGUAGE)  # [N]
        language = tf.strings.regex_replace(text, _LANGUAGE, r"\1")  # [N]
        language = tf.ragged.boolean_mask(language[:, None], has_language[:, None])  # [N, 0 or 1]
        pieces = self.resource.cut(tf.strings.regex_replace(text, _LANGUAGE, r"\2"))
        pieces = tf.concat([language, pieces], axis=1)  # [N, None]
        return pieces.with_flat_values(self.resource.ids.lookup(pieces.flat_values))

    def decode_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """`decode` for a matrix of ids: int32 [N, T] to string [N], valid UTF-8 on one line."""
        kept = ids_with_text_in_graph(ids, self.vocabulary_size)  # [N, None]
        words = kept.with_values(tf.gather(tf.constant(self.words), kept.values))
        text = on_one_line_in_graph(self.resource.model.detokenize(words))
        return clean_up_spaces_in_graph(text) if self.cleans_up_spaces else text

    def pieces_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """`pieces` for a matrix of ids: int32 [N, T] to string [N, T], empty for `PAD_ID`."""
        return tf.where(tf.equal(ids, PAD_ID), "", tf.gather(tf.constant(self.words), ids))


class MarianResource(tf.Module):
    """What lives outside the graph: the SentencePiece model, and the tables of its words."""

    def __init__(self, model_proto: bytes, ids: dict[str, int]):
        super().__init__()
        self.model = sentencepiece_resource(model_proto, tf.string)
        with tf.init_scope():  # a first use while a function is traced must outlive the trace
            self.ids = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(list(ids)), tf.constant(list(ids.values()), tf.int32)
                ),
                UNK_ID,
            )
        model = parse_model_proto(model_proto)
        self.unigram_cut = UnigramCut(model) if needs_unigram_cut(model) else None

    def cut(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns the pieces of each text: [N] to ragged string [N, None]."""
        pieces = self.model.tokenize(text)
        return pieces if self.unigram_cut is None else self.unigram_cut(pieces)
