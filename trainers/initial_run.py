"""Fine-tuning: what a run takes over from the run that it goes on from."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from trainers.checkpoints import load_model
from trainers.sections import show

# Dropout has no weights, so that each run may have its own.
OWN_KEYS = ("dropout", "attention_dropout", "activation_dropout")


def take_over(
    values: Mapping[str, Any], initial: Mapping[str, Any], initial_run: str
) -> dict[str, Any]:
    """A recipe's values with the sections that it takes over from another run.

    Args:
        values: nested dicts of the recipe.
        initial: those of the initial run's resolved recipe.
        initial_run: path of that run, for the message.

    Returns:
        `values`, with all keys of `model` and `tokenizer` as the initial run has them, but for
        dropout rates of their own, and with its `decoding` where they set no key themselves.

    Raises:
        InputError: where a key of `model` or `tokenizer` is set to another value.

    Example:

    >>> initial = {"model": {"d_model": 64, "dropout": 0.1}, "tokenizer": {}, "decoding": {}}
    >>> take_over({"model": {"dropout": 0.3}}, initial, "runs/first")["model"]
    {'d_model': 64, 'dropout': 0.3}
    """
    taken = dict(values)
    for section in ("model", "tokenizer", "decoding"):
        own = values.get(section) or {}
        if not isinstance(own, Mapping):
            continue  # The section says what is wrong with it.
        for name, value in own.items():
            is_fixed = section != "decoding" and name not in OWN_KEYS and name in initial[section]
            if is_fixed and value != initial[section][name]:
                raise InputError(
                    f"{section}.{name} must be left out or that of training.initial_run "
                    f"{initial_run}, {show(initial[section][name])}. Received: {show(value)}"
                )
        taken[section] = {**initial[section], **own}
    return taken


def initial_model_path(initial_run: str | Path) -> Path:
    """The path of a run's averaged model; raises `InputError` where it has none."""
    path = Path(initial_run) / "model.keras"
    if not path.exists():
        raise InputError(
            "training.initial_run must be a run directory with a model.keras, which 'train', "
            f"'average' or an import writes. Received: {show(str(initial_run))}"
        )
    return path


def initial_weights(initial_run: str | Path, config: TransformerConfig) -> list[np.ndarray]:
    """The trainable weights of a run's averaged model, in the order of the model's.

    Args:
        initial_run: path of the run directory.
        config: `TransformerConfig` of the model that they are for.

    Raises:
        InputError: where there is no such model, or it is of another shape.
    """
    model = load_model(initial_model_path(initial_run))
    for name, value in dataclasses.asdict(config).items():
        of_model = getattr(model.config, name)
        if value != of_model and name not in OWN_KEYS:
            raise InputError(
                f"model.{name} must be that of training.initial_run {initial_run}, "
                f"{show(of_model)}. Received: {show(value)}"
            )
    return [variable.numpy() for variable in model.trainable_variables]


def weights_fingerprint(weights: Sequence[np.ndarray]) -> str:
    """SHA-256 of some arrays, one after the other, as 64 hexadecimal digits.

    Example:

    >>> weights_fingerprint([np.zeros(2), np.ones(1)])[:8] == weights_fingerprint([])[:8]
    False
    """
    digest = hashlib.sha256()
    for array in weights:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
