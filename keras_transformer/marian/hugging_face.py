"""Reads a Hugging Face directory of a Marian model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint_files import (
    needed_file,
    read_tokenizer,
    vocabulary_of,
)
from keras_transformer.marian.hugging_face_settings import (
    Architecture,
    read_architecture,
    read_search,
    split_search,
)
from keras_transformer.marian.settings import Settings, read_json_object
from keras_transformer.marian.tensor_files import (
    TensorFile,
    open_hdf5,
    open_safetensors,
    open_sharded_safetensors,
    open_torch,
)
from keras_transformer.marian.vocabulary import MarianVocabulary
from keras_transformer.marian.weights import (
    NO_SHARE,
    MarianWeights,
    Part,
    check_equal,
    sub_layers,
    word_parts,
)

_FORM = "A Hugging Face checkpoint"
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "tf_model.h5",
    "pytorch_model.bin",
)
_ROLES = {
    "self_attention/query": "self_attn.q_proj",
    "self_attention/key": "self_attn.k_proj",
    "self_attention/value": "self_attn.v_proj",
    "self_attention/output": "self_attn.out_proj",
    "self_attention_residual/normalization": "self_attn_layer_norm",
    "cross_attention/query": "encoder_attn.q_proj",
    "cross_attention/key": "encoder_attn.k_proj",
    "cross_attention/value": "encoder_attn.v_proj",
    "cross_attention/output": "encoder_attn.out_proj",
    "cross_attention_residual/normalization": "encoder_attn_layer_norm",
    "feed_forward/inner": "fc1",
    "feed_forward/outer": "fc2",
    "feed_forward_residual/normalization": "final_layer_norm",
}
_SHARED, _SOURCE, _TARGET, _OUTPUT, _BIAS = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
    "final_logits_bias",
)
_POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
_KERAS_SUFFIXES = {
    "kernel": "weight",
    "embeddings": "weight",
    "weight": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
}


def read_hugging_face(directory: Path) -> dict[str, Any]:
    """Reads a directory that Hugging Face's `save_pretrained` wrote.

    Args:
        directory: Path.

    Returns:
        The fields of a `MarianCheckpoint`.

    Raises:
        InputError: if a file, key or tensor is missing, unknown or not what is implemented.
    """
    settings = Settings.of_json(directory / "config.json")
    search_settings = split_search(settings)
    architecture = read_architecture(settings)
    generation = directory / "generation_config.json"
    if generation.is_file():
        search = read_search(Settings.of_json(generation), architecture, forced_end=None)
    else:
        # 0 is the default of MarianConfig.
        end = 0 if architecture.end_id == 0 else None
        search = read_search(search_settings, architecture, forced_end=end)
    tokenizer_settings = Settings("tokenizer_config.json", {})
    if (directory / tokenizer_settings.file).is_file():
        tokenizer_settings = Settings.of_json(directory / tokenizer_settings.file)
    source_words, target_words, languages = _vocabularies(
        directory, tokenizer_settings, architecture
    )
    # The tokenizer's own default is 512, and a huge number means no limit. The end token counts.
    longest = tokenizer_settings.take("model_max_length", float, 512, at_least=2)
    longest = int(min(longest, architecture.maximum_positions)) - 1
    config = architecture.config(
        None if source_words.words == target_words.words else len(source_words.words),
        len(target_words.words),
    )
    new_ids = {int(row): i for i, row in reversed([*enumerate(target_words.rows)])}
    suppressed = [new_ids[id_] for id_ in search.suppressed_ids]
    fills = {1: NO_SHARE}
    if search.renormalizes:
        fills |= dict.fromkeys(suppressed, NO_SHARE)
    return {
        "config": config,
        "tokenizer": read_tokenizer(
            directory,
            _FORM,
            source_words,
            target_words,
            cleans_up_spaces=tokenizer_settings.take("clean_up_tokenization_spaces", bool, False),
        ),
        "decoding": {
            **search.decoding,
            "maximum_source_length": longest,
            "suppressed_tokens": [target_words.words[i] for i in suppressed] or None,
        },
        "source_language": languages[0],
        "target_language": languages[1],
        "weights": _weights(
            directory, config, architecture, source_words.rows, target_words.rows, fills
        ),
    }


def _vocabularies(
    directory: Path, settings: Settings, architecture: Architecture
) -> tuple[MarianVocabulary, MarianVocabulary, tuple[str | None, str | None]]:
    """The words of both sides, the same object where they share them, and the two languages."""
    is_separate = settings.take("separate_vocabs", bool, False)
    settings.expect(
        {
            "sp_model_kwargs": ({}, None),
            "additional_special_tokens": ([], None),
            "extra_special_tokens": ([], {}, None),
        }
    )
    languages = (
        settings.take("source_lang", str, None),
        settings.take("target_lang", str, None),
    )
    unknown = _special_word(settings, "unk_token", "<unk>")

    def read(name: str, size: int) -> dict[str, int]:
        ids = read_json_object(needed_file(directory, name, _FORM))
        if len(ids) != size:
            raise InputError(
                f"{name} must hold as many words as config.json says, {size}. Received: {len(ids)}"
            )
        return ids

    name = "target_vocab.json" if is_separate else "vocab.json"
    ids = read(name, architecture.target_size)
    words = {id_: word for word, id_ in ids.items()}
    pad, end = words.get(architecture.pad_id), words.get(architecture.end_id)
    for key, word in (("pad_token", pad), ("eos_token", end)):
        if _special_word(settings, key, word) != word:
            raise settings.error(key, f"{word!r}, the word that config.json names")
    added = settings.take("added_tokens_decoder", dict, {}).values()
    if not {_content(each) for each in added} <= {pad, end, unknown}:
        raise settings.error("added_tokens_decoder", f"of {pad}, {end} and {unknown} alone")
    special = {"pad_word": pad, "end_word": end, "unknown_word": unknown}
    target = vocabulary_of(name, ids, start_row=architecture.start_id, **special)
    if not is_separate:
        return target, target, languages
    ids = read("vocab.json", architecture.source_size)
    return vocabulary_of("vocab.json", ids, **special), target, languages


def _special_word(settings: Settings, key: str, default: str | None) -> str | None:
    """A special word, which some versions write as an object with its `content`."""
    return _content(settings.get(key, default))


def _content(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def _weights(
    directory: Path,
    config: TransformerConfig,
    architecture: Architecture,
    source_rows: np.ndarray,
    target_rows: np.ndarray,
    fills: dict[int, float],
) -> MarianWeights:
    file, is_keras = _open(directory)
    width = config.d_model
    parts: dict[str, Part] = {}
    for sub_layer in sub_layers(config):
        name = f"model.{sub_layer.side}.layers.{sub_layer.layer}.{_ROLES[sub_layer.role]}"
        if len(sub_layer.shape) == 1:
            parts[f"{sub_layer.path}/gamma"] = Part(f"{name}.weight", sub_layer.shape)
            parts[f"{sub_layer.path}/beta"] = Part(f"{name}.bias", sub_layer.shape)
            continue
        # PyTorch keeps kernels as [out, in], Keras as [in, out].
        shape = sub_layer.shape if is_keras else sub_layer.shape[::-1]
        parts[f"{sub_layer.path}/kernel"] = Part(f"{name}.weight", shape, transpose=not is_keras)
        parts[f"{sub_layer.path}/bias"] = Part(f"{name}.bias", sub_layer.shape[1:])
    source, target = _embeddings(file, architecture)
    target_shape = (architecture.target_size, width)
    parts |= word_parts(
        config.tying,
        Part(source, (architecture.source_size, width), rows=source_rows),
        Part(target, target_shape, rows=target_rows),
        Part(_OUTPUT, target_shape, rows=target_rows),
        Part(
            _BIAS if _BIAS in file.shapes else None, target_shape[:1], rows=target_rows, fills=fills
        ),
    )
    _check_positions(file, width)
    copies = [_SOURCE, _TARGET, _SHARED] if architecture.shares_embeddings else []
    if config.tying != "none":
        copies.append(_OUTPUT)
    return MarianWeights(file, parts, known={*copies, *_POSITIONS})


def _open(directory: Path) -> tuple[TensorFile, bool]:
    """The weights, and whether they lie as Keras has them."""
    names = [name for name in WEIGHT_FILES if (directory / name).is_file()]
    if not names:
        raise InputError(
            f"{_FORM} must hold its weights as {' or '.join(WEIGHT_FILES)}. "
            f"Received: {directory} without them"
        )
    path = directory / names[0]
    match path.name:
        case "model.safetensors":
            return open_safetensors([path]), False
        case "model.safetensors.index.json":
            return open_sharded_safetensors(path), False
        case "tf_model.h5":
            return open_hdf5(path, _name_of_keras), True
    return open_torch(path), False


def _name_of_keras(path: str) -> str:
    """The name in PyTorch of a dataset of the former TFMarianMTModel.

    >>> _name_of_keras("model/tf_marian_mt_model/model/encoder/layers.0/fc1/kernel:0")
    'model.encoder.layers.0.fc1.weight'
    """
    names = path.removesuffix(":0").split("/")
    if names[-1] == _BIAS:
        return _BIAS
    # What comes before the stack depends on how the model was built.
    for i, name in enumerate(names):
        if name in ("encoder", "decoder"):
            stack = names[i:-1]
            break
        if name == "model.shared" or names[i : i + 2] == ["model", "shared"]:
            stack = ["shared"]
            break
    else:
        return path
    return ".".join(["model", *stack, _KERAS_SUFFIXES.get(names[-1], names[-1])])


def _embeddings(file: TensorFile, architecture: Architecture) -> tuple[str, str]:
    """The tensors of the source and the target embedding; copies of one must all be equal."""
    if architecture.tying == "none" and architecture.shares_embeddings:
        # Hugging Face ties nothing then, and earlier versions stored one tensor under one name.
        return (
            _held(file, _SOURCE, _SHARED, _TARGET)[0],
            _held(file, _TARGET, _SHARED, _SOURCE)[0],
        )
    target = [_TARGET] if architecture.tying == "none" else [_TARGET, _OUTPUT]
    if architecture.shares_embeddings:
        target = [_SHARED, _SOURCE, *target]
    first, *others = _held(file, *target)
    for name in others:
        check_equal(file, first, name)
    return first if architecture.shares_embeddings else _SOURCE, first


def _held(file: TensorFile, *names: str) -> list[str]:
    """Those of the names that the file holds, or the first if it holds none."""
    return [name for name in names if name in file.shapes] or [names[0]]


def _check_positions(file: TensorFile, width: int) -> None:
    """Refuses position tables that are no sinusoids: they are computed here, and not stored."""
    rates = 1e4 ** (-np.arange(0, width, 2) / width)
    for name in _POSITIONS:
        if name not in file.shapes:
            continue
        table = file.read(name)
        angles = np.arange(len(table))[:, None] * rates[None, :]
        expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        # Tables in half precision are as far off as this.
        if table.shape != expected.shape or not np.allclose(table, expected, atol=0.01):
            raise InputError(
                f"{file.path.name}: {name} must be the table of sinusoids. Received: other values"
            )
