"""Checkpoints of a run: written atomically, the last ones kept, and their average."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import keras
import numpy as np

from keras_transformer import Transformer
from keras_transformer.errors import InputError


class Checkpoints:
    """The checkpoints of a run, each a folder `step-00000200` with a model and a state.

    `model.keras` holds the weights, the optimizer with its slots and its step, and the schedule;
    `state.json` the random seeds, which Keras does not save, and what else a run needs to go on.
    A folder is written under another name and renamed: it is there whole or not at all.

    Args:
        directory: path of the folder of checkpoints.
        keep: int. How many of the last checkpoints are kept.

    Example:

    >>> Checkpoints("a/new/run/checkpoints", keep=5).steps()
    []
    """

    def __init__(self, directory: str | Path, keep: int = 5) -> None:
        self.directory = Path(directory)
        self.keep = keep

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, ascending."""
        if not self.directory.is_dir():
            return []
        matches = (re.fullmatch(r"step-(\d{8,})", path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.directory / f"step-{step:08d}"

    def save(self, model: keras.Model, step: int, state: dict) -> None:
        """Writes a checkpoint, then removes those that are too old.

        Raises:
            InputError: where the folder cannot be written.
        """
        partial = self.directory / f".writing-step-{step:08d}"
        try:
            # What a process that was killed left half-written.
            for left_over in self.directory.glob(".writing-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            partial.mkdir(parents=True)
            model.save(partial / "model.keras")
            state = {**state, "seeds": [seed.numpy().tolist() for seed in _seeds(model)]}
            (partial / "state.json").write_text(json.dumps(state, indent=2) + "\n")
            for file in partial.iterdir():
                _flush(file)
            shutil.rmtree(self.path(step), ignore_errors=True)
            partial.rename(self.path(step))
            _flush(self.directory)
            for old in self.steps()[: -self.keep]:
                shutil.rmtree(self.path(old))
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise InputError(
                f"A checkpoint must be writable to {self.directory}; earlier ones are intact. "
                f"Received: {error}"
            ) from error

    def load_latest(self) -> tuple[Transformer, dict] | None:
        """The model of the last checkpoint with its optimizer, and its state; None without one."""
        steps = self.steps()
        if not steps:
            return None
        folder = self.path(steps[-1])
        model = load_model(folder / "model.keras", compile=True)
        try:
            state = json.loads((folder / "state.json").read_text())
            for seed, value in zip(_seeds(model), state.pop("seeds"), strict=True):
                seed.assign(value)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{folder / 'state.json'} must be what the checkpoint was saved with. "
                f"Received: {error}"
            ) from error
        return model, state

    def average(self, last: int) -> Transformer:
        """The mean of the weights of the last checkpoints, from section 6.1 of the paper.

        The mean is taken in float64 and over the model's trainable weights only: the optimizer's
        slots, its step and the states of random seeds are not averaged. Each weight keeps its
        dtype.

        Args:
            last: int. How many checkpoints.

        Returns:
            The averaged model, without an optimizer.

        Raises:
            InputError: where there are fewer checkpoints, or their shapes differ.
        """
        steps = self.steps()
        if not 1 <= last <= len(steps):
            raise InputError(
                f"{self.directory} has {len(steps)} checkpoints; the number to average must be "
                f"from 1 to that. Received: {last}"
            )
        sums: list[np.ndarray] = []
        for step in steps[-last:]:
            model = load_model(self.path(step) / "model.keras")
            weights = [np.asarray(weight, np.float64) for weight in model.trainable_weights]
            if not sums:
                sums = weights
                continue
            before, now = ([weight.shape for weight in each] for each in (sums, weights))
            if before != now:
                raise InputError(
                    f"Checkpoints of {self.directory} must have weights of equal shapes to be "
                    f"averaged. Received: others at step {step} than before"
                )
            for total, weight in zip(sums, weights, strict=True):
                total += weight
        for variable, total in zip(model.trainable_weights, sums, strict=True):
            variable.assign(total / last)
        return model


def load_model(path: str | Path, compile: bool = False) -> Transformer:
    """Reads a `.keras` file of a `Transformer`.

    Args:
        path: path of the file.
        compile: bool. Whether its optimizer and loss are read too.

    Raises:
        InputError: where it is damaged, or of another model.
    """
    try:
        model = keras.models.load_model(path, compile=compile)
    except Exception as error:  # zip, HDF5 and JSON each complain in their own way
        raise InputError(
            f"{path} must be a whole model file. Received: {type(error).__name__}, "
            f"{str(error).strip().partition(chr(10))[0]}"
        ) from error
    if not isinstance(model, Transformer):
        raise InputError(f"{path} must hold a Transformer. Received: {type(model).__name__}")
    return model


def save_model(model: keras.Model, path: str | Path) -> None:
    """Writes a `.keras` file under another name and renames it.

    Raises:
        InputError: where it cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".writing-{path.name}")
    try:
        model.save(partial)
        _flush(partial)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"A model must be writable to {path}. Received: {error}") from error


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """What the dropouts of a model draw from next, [2] each."""
    return [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]


def _flush(path: Path) -> None:
    """Has the system write a file or folder to disk before what comes next."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
