"""What a run writes as it goes: metrics.jsonl and TensorBoard, the same figures in both."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import tensorflow as tf

from keras_transformer.errors import InputError

Figure = float | Sequence[float] | Mapping[str, float]


class RunLog:
    """Appends lines to `metrics.jsonl` and scalars to TensorBoard.

    A line has `step` and either training keys (`loss`, `learning_rate`, `gradient_norm`,
    `layer_gradient_norms`, `target_tokens_per_second`) or validation keys (`val_loss`,
    `val_perplexity`, `val_token_accuracy`, `val_bleu`, `val_chrf`).

    Args:
        run_directory: path of the run.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     log = RunLog(run)
    ...     log.write(step=50, loss=4.5)
    ...     log.lines()
    [{'step': 50, 'loss': 4.5}]
    """

    def __init__(self, run_directory: str | Path) -> None:
        self.path = Path(run_directory) / "metrics.jsonl"
        self._tensorboard = Path(run_directory) / "tensorboard"
        self._writer = None

    def write(self, step: int, **figures: Figure) -> None:
        """Writes one line of figures that belong to a step; JSON has null for what is no number.

        Args:
            step: int. Updates made so far.
            **figures: numbers; lists of numbers such as one a replica, which TensorBoard gets
                under `name/0`, `name/1` and so on; or dicts of numbers, under `name/key`.

        Raises:
            InputError: where a file cannot be written, or the disk is full.
        """
        line = {"step": step, **{name: _for_json(value) for name, value in figures.items()}}
        with self._writing(self.path), self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            # A checkpoint may follow: the lines up to it must be there after a power cut too.
            _flush(file)
        with self._writing(self._tensorboard):
            if self._writer is None:  # not before there is something to write
                self._writer = tf.summary.create_file_writer(str(self._tensorboard))
            with self._writer.as_default(step=step):
                for name, value in figures.items():
                    for tag, number in _scalars(name, value):
                        tf.summary.scalar(tag, number)
            self._writer.flush()

    def lines(self) -> list[dict]:
        """All lines written so far; a last line that a crash cut short is left out.

        Raises:
            InputError: where another line is damaged.
        """
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        return [self._parse(row, text) for row, text in enumerate(whole.split(b"\n"), 1) if text]

    def has(self, step: int, key: str) -> bool:
        """Whether a figure has been written at a step.

        Args:
            step: int.
            key: name of the figure, such as `val_loss`.
        """
        return any(line["step"] == step and key in line for line in self.lines())

    def forget_after(self, step: int) -> None:
        """Drops the lines of later steps, which a run resumed at `step` will write again."""
        kept = [line for line in self.lines() if line["step"] <= step]
        if not self.path.exists():
            return
        partial = self.path.with_suffix(".partial")
        with self._writing(self.path):
            with partial.open("w") as file:
                file.write("".join(json.dumps(line) + "\n" for line in kept))
                _flush(file)
            os.replace(partial, self.path)

    def _parse(self, row: int, text: bytes) -> dict:
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                raise ValueError("another thing")
        except ValueError as error:
            raise InputError(
                f"{self.path}:{row} must be a JSON object with a step; delete the line to go on. "
                f"Received: {text[:80]!r}"
            ) from error
        return line

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Says which file could not be written."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(
                f"The figures of a run must be writable to {path}; its checkpoints are intact. "
                f"Received: {reason}"
            ) from error


def _for_json(value: Figure) -> float | None | list | dict:
    if isinstance(value, Mapping):
        return {key: _for_json(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_for_json(each) for each in value]
    return value if math.isfinite(value) else None


def _scalars(name: str, value: Figure) -> list[tuple[str, float]]:
    """The tags of TensorBoard for a figure, and their numbers."""
    if isinstance(value, Mapping):
        return [(f"{name}/{key}", each) for key, each in value.items()]
    if isinstance(value, Sequence):
        return [(f"{name}/{place}", each) for place, each in enumerate(value)]
    return [(name, value)]


def _flush(file: IO) -> None:
    """Has the system write a file to disk before what comes next."""
    file.flush()
    os.fsync(file.fileno())
