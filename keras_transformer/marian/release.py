"""Reads an original Marian release, as OPUS-MT publishes them: `decoder.yml` and what it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint_files import (
    config_of,
    needed_file,
    read_tokenizer,
    vocabulary_of,
)
from keras_transformer.marian.release_settings import (
    ReleaseArchitecture,
    read_decoder,
    read_release_architecture,
)
from keras_transformer.marian.release_vocabulary import read_release_vocabulary
from keras_transformer.marian.settings import Settings
from keras_transformer.marian.tensor_files import TensorFile, open_npz
from keras_transformer.marian.vocabulary import NO_ROW, MarianVocabulary
from keras_transformer.marian.weights import NO_SHARE, MarianWeights, Part, sub_layers, word_parts

_FORM = "A Marian release"
_SETTINGS = "special:model.yml"
_ATTENTIONS = {"self_attention": "self", "cross_attention": "context"}
_LETTERS = {"query": "q", "key": "k", "value": "v", "output": "o"}


def read_release(directory: Path) -> dict[str, Any]:
    """Reads a folder with `decoder.yml`, a model and its vocabularies.

    Args:
        directory: Path.

    Returns:
        The fields of a `MarianCheckpoint`.

    Raises:
        InputError: if a file, key or tensor is missing, unknown or not what is implemented.
    """
    content = needed_file(directory, "decoder.yml", _FORM).read_bytes()
    decoder = read_decoder(Settings.of_yaml(content, "decoder.yml"))
    file = open_npz(_named(directory, decoder.model))
    architecture = read_release_architecture(_embedded_settings(file))
    source, target = (
        _vocabulary(_named(directory, path), size)
        for path, size in zip(decoder.vocabularies, architecture.sizes, strict=True)
    )
    if source.words == target.words:
        source = target
    config = config_of(
        architecture.tying,
        None if source is target else len(source.words),
        len(target.words),
        architecture.model,
    )
    suppressed = None if decoder.allows_unknown else [target.words[3]]
    return {
        "config": config,
        "tokenizer": read_tokenizer(directory, _FORM, source, target),
        "decoding": {**decoder.decoding, "suppressed_tokens": suppressed},
        "source_language": None,
        "target_language": None,
        "weights": _weights(file, config, architecture, source.rows, target.rows),
    }


def _named(directory: Path, path: str) -> Path:
    """A file that decoder.yml names: published ones lie beside it, whatever their path was."""
    return needed_file(directory, Path(path).name, _FORM)


def _embedded_settings(file: TensorFile) -> Settings:
    if _SETTINGS not in file.shapes:
        raise InputError(
            f"{file.path.name} must hold {_SETTINGS}, the model's settings. Received: none"
        )
    content = file.read_raw(_SETTINGS, slice(None)).tobytes().rstrip(b"\0")
    return Settings.of_yaml(content, f"{file.path.name}, {_SETTINGS}")


def _vocabulary(path: Path, size: int) -> MarianVocabulary:
    ids = read_release_vocabulary(path)
    if len(ids) != size:
        raise InputError(
            f"{path.name} must hold as many words as the model's dim-vocabs says, {size}. "
            f"Received: {len(ids)}"
        )
    # Marian knows no pad word, and starts a translation with an embedding of zeros.
    return vocabulary_of(path.name, ids, pad_word=None)


def _weights(
    file: TensorFile,
    config: TransformerConfig,
    architecture: ReleaseArchitecture,
    source_rows: np.ndarray,
    target_rows: np.ndarray,
) -> MarianWeights:
    width = config.d_model
    # The LayerNorm before a sub-layer has another name than the one after it.
    suffix = "_pre" if config.norm == "pre" else ""
    parts: dict[str, Part] = {}
    for sub_layer in sub_layers(config):
        name = f"{sub_layer.side}_l{sub_layer.layer + 1}_"
        block, role = sub_layer.role.split("/")
        if role == "normalization":
            block = block.removesuffix("_residual")
            name += f"{_ATTENTIONS[block]}_Wo" if block in _ATTENTIONS else "ffn_ffn"
            parts |= _normalization(sub_layer.path, name, suffix, width)
            continue
        if block in _ATTENTIONS:
            name, letter = f"{name}{_ATTENTIONS[block]}", _LETTERS[role]
        else:
            name, letter = f"{name}ffn", {"inner": "1", "outer": "2"}[role]
        parts[f"{sub_layer.path}/kernel"] = Part(f"{name}_W{letter}", sub_layer.shape)
        parts[f"{sub_layer.path}/bias"] = Part(f"{name}_b{letter}", sub_layer.shape[1:])
    if config.norm == "pre":
        for side in ("encoder", "decoder"):
            parts |= _normalization(f"{side}/final_normalization", f"{side}_top", "", width)
    source_name, target_name = (
        ("Wemb", "Wemb") if architecture.ties_source else ("encoder_Wemb", "decoder_Wemb")
    )
    source_size, target_size = architecture.sizes
    # Transposed is how Marian keeps it; Wt is the other way round.
    output, shape = "decoder_ff_logit_out_Wt", (target_size, width)
    is_turned = output not in file.shapes
    if is_turned:
        output, shape = "decoder_ff_logit_out_W", (width, target_size)
    parts |= word_parts(
        config.tying,
        Part(source_name, (source_size, width), rows=source_rows),
        Part(target_name, (target_size, width), rows=target_rows),
        Part(output, shape, transpose=is_turned, rows=target_rows),
        Part(
            "decoder_ff_logit_out_b",
            (target_size,),
            rows=target_rows,
            fills={i: NO_SHARE for i in np.flatnonzero(target_rows == NO_ROW)},
        ),
    )
    return MarianWeights(file, parts, known=[_SETTINGS])


def _normalization(path: str, name: str, suffix: str, width: int) -> dict[str, Part]:
    return {
        f"{path}/gamma": Part(f"{name}_ln_scale{suffix}", (width,)),
        f"{path}/beta": Part(f"{name}_ln_bias{suffix}", (width,)),
    }
