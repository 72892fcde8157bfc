"""A SentencePiece model comes through the message class whole, with fields the class ignores."""

import pytest
import sentencepiece
from small_tokenizers import CORPUS, OTHERS, every_sort, trained

from keras_transformer.sentencepiece_model import ModelProto
from keras_transformer.tokenizer import KINDS, SubwordTokenizer

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
SUB_MESSAGES = ({1, 2, 3, 5}, set())  # of ModelProto: pieces and specs; of those: none


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes, depth: int = 0) -> list[tuple]:
    """A message's fields as the wire has them, by number; fields of one number keep their order."""
    found, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, at = varint(data, at)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(wire_type)
            if wire_type == LENGTH:
                size, at = varint(data, at)
            value, at = data[at : at + size], at + size
            if wire_type == LENGTH and number in SUB_MESSAGES[depth]:
                value = fields(value, depth + 1)
        found.append((number, value))
    return sorted(found, key=lambda field: field[0])


def round_trip(model_proto: bytes) -> bytes:
    return ModelProto.FromString(model_proto).SerializeToString(deterministic=True)


@every_sort
def test_a_round_trip_loses_no_field_of_the_wire(kind, normalization):
    before = trained(kind, normalization).model_proto
    assert fields(round_trip(before)) == fields(before)
    assert round_trip(round_trip(before)) == round_trip(before)


@every_sort
def test_a_round_trip_changes_no_encoding(kind, normalization):
    before = trained(kind, normalization)
    after = SubwordTokenizer(round_trip(before.model_proto))
    texts = [*CORPUS, *OTHERS, "ﬁ Ⅷ İ  é 🐇", "</s>"]
    assert after.encode_batch(texts) == before.encode_batch(texts)
    assert after.options == before.options == {**before.options, "normalization": normalization}


def test_fields_that_are_not_declared_are_kept():
    model = ModelProto.FromString(trained().model_proto)
    declared = {field.number for field in model.trainer_spec.DESCRIPTOR.fields}
    wire = dict(fields(trained().model_proto))[2]
    others = [field for field in wire if field[0] not in declared]
    assert (35, 1) in others  # byte_fallback
    assert [f for f in fields(model.trainer_spec.SerializeToString(), 1) if f in others] == others


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_scores_are_those_that_sentencepiece_reads(kind):
    model_proto = trained(kind).model_proto
    processor = sentencepiece.SentencePieceProcessor(model_proto=model_proto)
    pieces = ModelProto.FromString(model_proto).pieces
    ids = range(processor.get_piece_size())
    assert [piece.piece for piece in pieces] == processor.id_to_piece(list(ids))
    assert [piece.score for piece in pieces] == processor.get_score(list(ids))
    assert [piece.type == 6 for piece in pieces] == processor.is_byte(list(ids))
    assert [piece.type == 3 for piece in pieces] == processor.is_control(list(ids))


def test_a_score_that_is_changed_is_written():
    model = ModelProto.FromString(trained("unigram").model_proto)
    model.pieces[300].score = -99.5
    written = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    assert written.get_score(300) == -99.5


def test_defaults_are_sentencepieces():
    spec = ModelProto().trainer_spec
    assert spec.ModelType.Name(spec.model_type) == "UNIGRAM"
    assert (spec.vocab_size, round(spec.character_coverage, 6)) == (8000, 0.9995)
    assert ModelProto.FromString(b"\x0a\x03\x0a\x01a").pieces[0].type == 1
