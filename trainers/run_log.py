"""What a run writes as it goes: metrics.jsonl and TensorBoard, the same figures in both."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import tensorflow as tf


class RunLog:
    """Appends lines to `metrics.jsonl` and scalars to TensorBoard.

    A line has `step` and either training keys (`loss`, `learning_rate`, `gradient_norm`,
    `target_tokens_per_second`) or validation keys (`val_loss`, `val_perplexity`,
    `val_token_accuracy`, `val_bleu`, `val_chrf`).

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

    def write(self, step: int, **figures: float) -> None:
        """Writes one line of figures that belong to a step; JSON has null for what is no number."""
        line = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **line}) + "\n")
        if self._writer is None:  # not before there is something to write
            self._writer = tf.summary.create_file_writer(str(self._tensorboard))
        with self._writer.as_default(step=step):
            for name, value in figures.items():
                tf.summary.scalar(name, value)
        self._writer.flush()

    def lines(self) -> list[dict]:
        """All lines written so far; a last line that a crash cut short is left out."""
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.split("\n") if line]

    def forget_after(self, step: int) -> None:
        """Drops the lines of later steps, which a run resumed at `step` will write again."""
        kept = [line for line in self.lines() if line["step"] <= step]
        if not self.path.exists():
            return
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(partial, self.path)
