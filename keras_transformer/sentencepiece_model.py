"""A SentencePiece model file as a message: the fields that we read and write.

The sentencepiece package has a message class of its own, but it is generated for the newest
protobuf alone, which leaves no room for packages that need an older one, as apache-beam does. The
file format never changes the number of a field, so the few we need are declared here. All others
are kept as they are when a message is written again.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "sentencepiece"
_MODEL_TYPES = {"UNIGRAM": 1, "BPE": 2, "WORD": 3, "CHAR": 4}

# Numbers, types and defaults as in sentencepiece_model.proto, which is proto2.
# message: {field: (number, type, default)}; a type in capitals is a message or an enum of ours.
_FIELDS = {
    "Piece": {
        "piece": (1, "string", ""),
        "score": (2, "float", ""),
        "type": (3, "int32", "1"),  # an enum there: 1 normal, 2 unknown, 3 control, 6 byte
    },
    "TrainerSpec": {
        "model_type": (3, "ModelType", "UNIGRAM"),
        "vocab_size": (4, "int32", "8000"),
        "character_coverage": (10, "float", "0.9995"),
    },
    "NormalizerSpec": {"name": (1, "string", "")},
    "ModelProto": {
        "pieces": (1, "Piece", ""),
        "trainer_spec": (2, "TrainerSpec", ""),
        "normalizer_spec": (3, "NormalizerSpec", ""),
    },
}
_REPEATED = {"pieces"}


def _model_class() -> type:
    """Builds the class; its descriptors are in a pool of their own, so no other can clash."""
    file = descriptor_pb2.FileDescriptorProto(
        name="sentencepiece_model.proto", package=_PACKAGE, syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        if message_name == "TrainerSpec":  # where the names of its values are read from
            values = message.enum_type.add(name="ModelType").value
            for name, number in _MODEL_TYPES.items():
                values.add(name=name, number=number)
        for name, (number, kind, default) in fields.items():
            label = kinds.LABEL_REPEATED if name in _REPEATED else kinds.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if kind in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            elif kind == "ModelType":
                field.type, field.type_name = kinds.TYPE_ENUM, f".{_PACKAGE}.TrainerSpec.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if default:
                field.default_value = default
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))


ModelProto = _model_class()
