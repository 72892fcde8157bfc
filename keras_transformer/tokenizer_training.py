"""From sentences to a SentencePiece model that reads text alike in Python and in the graph.

SentencePiece's trainer logs, drops sentences without a word and complains in terms of its own.
Here it is silent, learns from every sentence, and its complaints tell what is possible.

* Exact arithmetic. A unigram model compares sums of float32 scores, and the two versions of
  SentencePiece that read the model (see `text_preparation`) round them differently, so that near
  ties are cut differently. Training rounds each score to a sixteenth: the sums are then exact in
  both, up to about 400,000 characters a text.
* Byte fallback. A character that is not in the vocabulary becomes its UTF-8 bytes, so nothing is
  unknown.
"""

from __future__ import annotations

import io
import itertools
import random
import re
from collections.abc import Iterable, Iterator

from keras_transformer.errors import InputError
from keras_transformer.sentencepiece_model import ModelProto
from keras_transformer.text_preparation import prepare

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3

KINDS = ("bpe", "unigram")
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")

# SentencePiece's trainer drops every sentence that holds this character; see `_training_texts`.
_RESERVED_IN_TRAINING = "\u2585"
# SentencePiece's trainer skips sentences over `max_sentence_length` bytes without a word, and a
# unigram model needs minutes for, or fails on, a few 100,000 characters in one sentence.
_MAXIMUM_CHARACTERS = 1_000
_SAMPLING_SEED = 20170612
_SCORES_PER_UNIT = 16


def train_model_proto(
    sentences: Iterable[str],
    *,
    vocabulary_size: int,
    kind: str,
    normalization: str,
    character_coverage: float,
    maximum_sentences: int,
    num_threads: int,
) -> bytes:
    """Learns a SentencePiece model from sentences, as section 5.1 of the paper its vocabularies.

    The same sentences and options give the same bytes. `SubwordTokenizer.train` has the defaults
    and tells more of each option.

    Args:
        sentences: iterable of str, read once. Each is prepared as `text_preparation.prepare`.
        vocabulary_size: int, the number of ids: 4 control ids, 256 bytes, characters and what is
            learned.
        kind: str, one of `KINDS`.
        normalization: str, one of `NORMALIZATIONS`.
        character_coverage: float in 0.98..1, the share of the characters with an id of their own.
        maximum_sentences: int, the size of the sample that is learned from.
        num_threads: int, the threads of SentencePiece's trainer.

    Returns:
        Bytes, a serialized model with pad 0, bos 1, eos 2 and unk 3.

    Raises:
        InputError: if there is no text, an option is wrong, or the corpus cannot fill or not fit
            into `vocabulary_size`; the message tells which sizes are possible.

    Example:

    >>> model_proto = train_model_proto(
    ...     ["ein Haus", "ein Hase"],
    ...     vocabulary_size=272,
    ...     kind="bpe",
    ...     normalization="nmt_nfkc",
    ...     character_coverage=1.0,
    ...     maximum_sentences=1000,
    ...     num_threads=1,
    ... )
    >>> [piece.piece for piece in parse_model_proto(model_proto).pieces[:4]]
    ['<pad>', '<s>', '</s>', '<unk>']

    References:
        - [Kudo and Richardson, 2018](https://arxiv.org/abs/1808.06226)
    """
    _check_size("vocabulary_size", vocabulary_size)
    _check_size("maximum_sentences", maximum_sentences)
    _check_choice("kind", kind, KINDS)
    _check_choice("normalization", normalization, NORMALIZATIONS)
    if not 0.98 <= character_coverage <= 1:  # SentencePiece's own limits
        raise InputError(f"character_coverage must be in 0.98..1. Received: {character_coverage!r}")
    import sentencepiece

    # Only what is in the sample is prepared: a corpus may have many times as many sentences.
    written = (text for text in sentences if text and not text.isspace())
    texts = _sample(written, maximum_sentences)
    texts = list(filter(None, map(prepare, texts)))
    if not texts:
        raise InputError(
            "A tokenizer needs at least one sentence that is not white space to learn from. "
            "Received: an empty corpus"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_texts(texts),
            model_writer=model,
            vocab_size=vocabulary_size,
            model_type=kind,
            normalization_rule_name=normalization,
            character_coverage=character_coverage,
            max_sentence_length=4 * _MAXIMUM_CHARACTERS,
            num_threads=num_threads,
            byte_fallback=True,
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            minloglevel=2,  # errors only; they also come as exceptions
        )
    except RuntimeError as error:
        raise _training_error(str(error), vocabulary_size) from error
    return _with_exact_scores(model.getvalue()) if kind == "unigram" else model.getvalue()


def parse_model_proto(model_proto: bytes) -> ModelProto:
    """Returns a serialized SentencePiece model as a message: its pieces, scores and options.

    Args:
        model_proto: bytes, a serialized model, such as `SubwordTokenizer.model_proto`.

    Returns:
        A `keras_transformer.sentencepiece_model.ModelProto`.

    Example:

    >>> from keras_transformer.tokenizer import SubwordTokenizer
    >>> tokenizer = SubwordTokenizer.train(["ein Haus", "ein Hase"], vocabulary_size=272)
    >>> parse_model_proto(tokenizer.model_proto).trainer_spec.vocab_size
    272
    """
    return ModelProto.FromString(model_proto)


def _check_size(key: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key} must be a positive whole number. Received: {value!r}")


def _check_choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{key} must be one of {', '.join(allowed)}. Received: {value!r}")


def _sample(texts: Iterator[str], size: int) -> list[str]:
    """Returns all texts, or `size` of them drawn uniformly and always the same (reservoir)."""
    kept = list(itertools.islice(texts, size))
    generator = random.Random(_SAMPLING_SEED)
    for seen, text in enumerate(texts, start=size + 1):
        place = generator.randrange(seen)
        if place < size:
            kept[place] = text
    return kept


def _training_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts in parts that SentencePiece's trainer takes, cut at spaces if possible."""
    for text in texts:
        text = text.replace(_RESERVED_IN_TRAINING, " ")
        start = 0
        while len(text) - start > _MAXIMUM_CHARACTERS:
            limit = start + _MAXIMUM_CHARACTERS
            cut = text.rfind(" ", start + 1, limit + 1)
            cut = limit if cut < 0 else cut
            yield text[start:cut]
            start = cut
        yield text[start:]


def _training_error(message: str, vocabulary_size: int) -> InputError:
    """Returns SentencePiece's complaint as an error that tells what is possible."""
    if match := re.search(r"Please set it to a value <= (\d+)", message):
        expected = f"vocabulary_size must be at most {match[1]}: the corpus has no more pieces"
    elif match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        expected = (
            f"vocabulary_size must be at least {match[1]}: 4 control ids, 256 bytes and the "
            f"characters of the corpus (a lower character_coverage needs fewer)"
        )
    else:
        expected = f"SentencePiece cannot learn a vocabulary from this corpus ({message})"
    return InputError(f"{expected}. Received: vocabulary_size={vocabulary_size}")


def _with_exact_scores(model_proto: bytes) -> bytes:
    """Rounds a unigram model's scores so that their float32 sums are exact (see the module)."""
    model = parse_model_proto(model_proto)
    for piece in model.pieces:
        piece.score = round(piece.score * _SCORES_PER_UNIT) / _SCORES_PER_UNIT
    return model.SerializeToString(deterministic=True)
