"""Checkpoints of a run: written atomically, the last ones kept, and their average."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import Transformer
from keras_transformer.errors import InputError
from trainers.flush import flush

# What a whole checkpoint has.
_FILES = ("model.keras", "state.json")


class Checkpoints:
    """The checkpoints of a run, each a folder `step-00000200` with a model and a state.

    `model.keras` holds the weights, the optimizer with its slots, its step, its moving averages and
    its loss scale, and the schedule; `state.json` the random seeds, which Keras does not save, and
    what else a run needs to go on. A folder is written under another name and renamed, and renamed
    before it is removed: it is there whole or not at all, whenever the process or the machine dies.

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
        steps = sorted(int(match[1]) for match in matches if match)
        return [step for step in steps if all((self.path(step) / name).exists() for name in _FILES)]

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.directory / f"step-{step:08d}"

    def save(self, model: keras.Model, step: int, state: dict) -> None:
        """Writes a checkpoint, then removes those that are too old.

        A step that is there is left as it is: a run comes to it once, and there is no moment at
        which it is missing.

        Args:
            model: compiled `keras.Model`.
            step: int. Updates made so far.
            state: dict of what else the run needs to go on, as JSON has it.

        Raises:
            InputError: where the folder cannot be written, or the disk is full.
        """
        partial = self.directory / f".writing-step-{step:08d}"
        try:
            # What a process that was killed left half-written or half-removed.
            for left_over in self.directory.glob(".*-step-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            self._remove_old()  # Where fewer are kept than before, their room may be needed.
            if step not in self.steps():
                _make_folder(self.directory)
                partial.mkdir()
                _write_model(model, partial / "model.keras")
                state = {**state, "seeds": [seed.numpy().tolist() for seed in _seeds(model)]}
                (partial / "state.json").write_text(json.dumps(state, indent=2) + "\n")
                flush(partial / "state.json")
                flush(partial)
                if self.path(step).exists():  # not whole
                    self._remove(step)
                partial.rename(self.path(step))
                flush(self.directory)
            self._remove_old()
        except (OSError, RuntimeError) as error:  # HDF5 raises both when a disk is full
            shutil.rmtree(partial, ignore_errors=True)
            raise InputError(
                f"A checkpoint must be writable to {self.directory}; the same command goes on "
                "with more room, or with a lower training.keep_checkpoints; the earlier ones are "
                f"intact. Received: {_first_line(error)}"
            ) from error

    def load_latest(self) -> tuple[Transformer, dict] | None:
        """The model of the last checkpoint with its optimizer, and its state; None without one.

        Called in a strategy's scope, it makes a model of that strategy, whichever one saved it.

        Raises:
            InputError: where the checkpoint is damaged: which file it is, and how to go on without
                it.
        """
        steps = self.steps()
        if not steps:
            return None
        folder = self.path(steps[-1])
        before = f"go on from step {steps[-2]}" if len(steps) > 1 else "begin anew"
        advice = f"Delete the folder {folder} to {before}."
        try:
            model = load_model(folder / "model.keras", compile=True)
        except InputError as error:
            raise InputError(f"{advice} {error}") from error
        try:
            state = json.loads((folder / "state.json").read_text())
            for seed, value in zip(_seeds(model), state.pop("seeds"), strict=True):
                seed.assign(value)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{advice} {folder / 'state.json'} must be what the checkpoint was saved with. "
                f"Received: {type(error).__name__}, {_first_line(error)}"
            ) from error
        return model, state

    def exponential_average(self) -> Transformer:
        """The moving average of the weights that the optimizer of the last checkpoint keeps.

        Returns:
            The model with the averages in the place of its weights, without an optimizer.

        Raises:
            InputError: where there is no checkpoint, or its optimizer keeps no averages.
        """
        steps = self.steps()
        if not steps:
            raise InputError(
                f"A moving average is taken from a checkpoint. Received: {self.directory}, which "
                "has none"
            )
        path = self.path(steps[-1]) / "model.keras"
        trained = load_model(path, compile=True)
        # A loss scale is kept by an optimizer around the one that updates.
        optimizer = getattr(trained.optimizer, "inner_optimizer", trained.optimizer)
        if not optimizer.use_ema:
            raise InputError(
                f"{path} must hold a moving average of its weights, which an optimizer keeps that "
                "was made with use_ema=True. Received: one without"
            )
        if int(optimizer.iterations):  # all averages are 0 before the first update
            # The base class's way, whatever the optimizer itself does at the end of `fit`.
            keras.optimizers.Optimizer.finalize_variable_values(
                optimizer, trained.trainable_variables
            )
        model = Transformer.from_config(trained.get_config())
        model.set_weights(trained.get_weights())
        return model

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
        if not steps:
            raise InputError(
                "A run must have checkpoints, which 'train' writes; an imported run has its "
                f"model.keras alone. Received: {self.directory.parent}, which has none"
            )
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

    def _remove_old(self) -> None:
        """Removes all but the last `keep`."""
        for old in self.steps()[: -self.keep]:
            self._remove(old)

    def _remove(self, step: int) -> None:
        """Removes a checkpoint; half of one has a name that counts for nothing."""
        away = self.directory / f".removing-step-{step:08d}"
        self.path(step).rename(away)
        shutil.rmtree(away)


def load_model(path: str | Path, compile: bool = False) -> Transformer:
    """Reads a `.keras` file of a `Transformer`.

    Args:
        path: path of the file.
        compile: bool. Whether its optimizer and loss are read too.

    Raises:
        InputError: where it is damaged, or of another model.
    """
    try:
        # Keras reads on where a checksum is wrong, and would train on with other weights.
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"Bad CRC-32 for file {damaged!r}")
        model = keras.models.load_model(path, compile=compile)
    except tf.errors.OpError:
        raise  # not the file's fault: another worker is lost, or the memory does not suffice
    except Exception as error:  # zip, HDF5 and JSON each complain in their own way
        raise InputError(
            f"{path} must be a whole model file. Received: {type(error).__name__}, "
            f"{_first_line(error)}"
        ) from error
    if not isinstance(model, Transformer):
        raise InputError(f"{path} must hold a Transformer. Received: {type(model).__name__}")
    return model


def save_model(model: keras.Model, path: str | Path) -> None:
    """Writes a `.keras` file under another name and renames it.

    Keras holds all weights in memory a second time where it writes such a file. Here they go
    through a file of their own, in the same folder, which is then put into the archive.

    Raises:
        InputError: where it cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".writing-{path.name}")
    weights = path.with_name(f".writing-{path.name}.weights.h5")
    try:
        _check_room(model, partial, files=2)
        model.save_weights(weights)
        config = json.dumps(keras.saving.serialize_keras_object(model))
        metadata = json.dumps({"keras_version": keras.__version__, "date_saved": time.ctime()})
        with zipfile.ZipFile(partial, "w") as archive:
            archive.writestr("metadata.json", metadata)
            archive.writestr("config.json", config)
            archive.write(weights, "model.weights.h5")
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except (OSError, RuntimeError) as error:  # HDF5 raises both when a disk is full
        if partial.is_file():
            partial.unlink()
        raise InputError(
            f"A model must be writable to {path}. Received: {_first_line(error)}"
        ) from error
    finally:
        weights.unlink(missing_ok=True)


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """What the dropouts of a model draw from next, [2] each."""
    return [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]


def _write_model(model: keras.Model, path: Path) -> None:
    """Writes a `.keras` file to disk, where there is room for it."""
    _check_room(model, path)
    model.save(path)
    flush(path)


def _check_room(model: keras.Model, path: Path, files: int = 1) -> None:
    """Asks the system for the room of some files of a model, beside one another; gives it back.

    Where HDF5 writes the weights straight to the disk, and the disk fills up, the whole process
    ends by a segmentation fault.
    """
    variables = [*model.variables, *getattr(getattr(model, "optimizer", None), "variables", [])]
    # HDF5 takes about 1.5 kB for the name and place of a variable.
    size = sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size + 2048 for v in variables)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, files * size)
    path.unlink()


def _make_folder(path: Path) -> None:
    """Makes a folder so that it is there after a power cut too."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        flush(path.parent)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
