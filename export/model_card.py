"""What an export says of itself: how it was trained, how good it is, what it takes and gives."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_transformer
from keras_transformer.translator import Translator

MODEL_CARD = "assets.extra/model_card.json"


def model_card(
    translator: Translator,
    signatures: Mapping[str, tf.types.experimental.ConcreteFunction],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The card of an export.

    Args:
        translator: `Translator` that is exported.
        signatures: the exported functions.
        facts: what only the training knows: `recipe`, a dict; `weights`, which they are; `bleu`,
            the scores on a test set with their signature. Each may be missing. A path of the
            machine is shortened to its last part.

    Returns:
        A dict that JSON can hold.
    """
    import tensorflow_text

    recipe = _without_paths(dict(facts.get("recipe") or {})) or None
    data = (recipe or {}).get("data", {})
    return {
        "format": 1,
        "languages": {
            "source": data.get("source_language"),
            "target": data.get("target_language"),
        },
        "bleu": facts.get("bleu"),
        "weights": facts.get("weights"),
        "precision": translator.model.policy.name,
        "parameters": sum(
            math.prod(variable.shape) for variable in translator.model.trainable_variables
        ),
        "decoding": {
            "beam_size": translator.beam_size,
            "alpha": translator.rules.alpha,
            "length_penalty": translator.rules.length_penalty,
            "early_stopping": translator.rules.early_stopping,
            "ends_within": translator.rules.ends_within,
            "forced_end": translator.rules.forced_end,
            "suppressed_tokens": list(translator.suppressed_tokens),
        },
        "limits": {
            "maximum_source_length": translator.maximum_source_length,
            "maximum_target_length": translator.maximum_target_length,
            "maximum_extra_length": translator.maximum_extra_length,
            "maximum_length": translator.maximum_length,
            "unit": "tokens, the end token not counted; a longer text that comes in is cut, and "
            "`truncated` is true",
        },
        "signatures": {name: _describe(function) for name, function in signatures.items()},
        "tokenizer": {
            "source": hashlib.sha256(translator.tokenizer.source.model_proto).hexdigest(),
            "target": hashlib.sha256(translator.tokenizer.target.model_proto).hexdigest(),
        },
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            "tensorflow": tf.__version__,
            "tensorflow_text": tensorflow_text.__version__,
            "keras": keras.__version__,
        },
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "recipe": recipe,
    }


def write_model_card(path: Path, card: Mapping[str, Any]) -> None:
    """Writes a card into a version."""
    file = path / MODEL_CARD
    file.parent.mkdir(exist_ok=True)
    text = json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False)
    file.write_text(f"{text}\n", encoding="utf-8")


def read_model_card(path: Path) -> dict[str, Any]:
    """The card of a version; empty where it has none."""
    file = path / MODEL_CARD
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _describe(function: tf.types.experimental.ConcreteFunction) -> dict[str, dict[str, str]]:
    """Each input's and output's dtype and shape, such as `string [N]`."""
    specs = function.structured_input_signature[1]
    inputs = specs or {spec.name: spec for spec in function.structured_input_signature[0]}
    return {
        "inputs": {name: _tensor(spec) for name, spec in inputs.items()},
        "outputs": {name: _tensor(spec) for name, spec in function.structured_outputs.items()},
    }


def _tensor(spec: Any) -> str:
    sizes = ["N", *("?" if size is None else str(size) for size in spec.shape[1:])]
    return f"{spec.dtype.name} [{', '.join(sizes)}]"


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(each) for each in value]
    if isinstance(value, str | os.PathLike) and Path(value).is_absolute():
        return Path(value).name
    return value
