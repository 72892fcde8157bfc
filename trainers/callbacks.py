"""Keras callbacks of a run: its log, its checkpoints, its validation, and when it ends."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

import keras

from trainers.checkpoints import Checkpoints
from trainers.run_log import RunLog


class TrainingDiverged(RuntimeError):
    """The loss is no longer a finite number."""


class RunClock:
    """Seconds that a run has trained, over all its resumptions.

    Args:
        seconds_before: float. Seconds before this process.

    Example:

    >>> RunClock(60.0).seconds() >= 60.0
    True
    """

    def __init__(self, seconds_before: float = 0.0) -> None:
        self._start = time.monotonic() - seconds_before

    def seconds(self) -> float:
        return time.monotonic() - self._start


def current_step(model: keras.Model) -> int:
    """Updates made so far, over all resumptions."""
    return int(model.optimizer.iterations)


class Watch(keras.callbacks.Callback):
    """Stops a run that diverges, at once and with a message that says what to do."""

    def on_train_batch_end(self, batch, logs=None):
        loss = logs["loss"]
        if not math.isfinite(loss):
            step = current_step(self.model)
            raise TrainingDiverged(
                f"The loss became {loss} at step {step} (learning rate "
                f"{float(self.model.optimizer.learning_rate):.3g}); the run has stopped and its "
                "last checkpoint is from before that. Lower training.learning_rate_factor or "
                "raise training.warmup_steps, and run the command again."
            )


class LogTraining(keras.callbacks.Callback):
    """Logs loss, learning rate, gradient norm and speed every `every` steps.

    The loss is the mean over the tokens since the line before, and not since the epoch began.

    Args:
        log: `RunLog`.
        every: int. Steps between lines.
    """

    def __init__(self, log: RunLog, every: int) -> None:
        super().__init__()
        self.log = log
        self.every = every

    def on_epoch_begin(self, epoch, logs=None):
        # Keras sets the tracker back here, so what it held is counted first.
        self._loss_sum = self._tokens = 0.0
        self._start = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        step = current_step(self.model)
        if step % self.every:
            return
        tracker = self.model._loss_tracker
        loss_sum, tokens = float(tracker.total), float(tracker.count)
        now = time.monotonic()
        interval_tokens = tokens - self._tokens
        self.log.write(
            step,
            loss=(loss_sum - self._loss_sum) / interval_tokens,
            learning_rate=float(self.model.optimizer.learning_rate),
            gradient_norm=float(logs["gradient_norm"]),
            target_tokens_per_second=round(interval_tokens / (now - self._start), 1),
        )
        self._loss_sum, self._tokens, self._start = loss_sum, tokens, now


class SaveCheckpoints(keras.callbacks.Callback):
    """Saves a checkpoint by steps or by minutes, and at the run's end.

    Args:
        checkpoints: `Checkpoints`.
        clock: `RunClock`.
        every_steps: int or None.
        every_minutes: float or None.
        state: dict that is saved with every checkpoint, beside the step and the seconds.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        clock: RunClock,
        every_steps: int | None,
        every_minutes: float | None,
        state: dict,
    ) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.clock = clock
        self.every_steps = every_steps
        self.every_seconds = every_minutes * 60 if every_minutes else None
        self.state = state
        self._saved_at = clock.seconds()

    def on_train_batch_end(self, batch, logs=None):
        step = current_step(self.model)
        by_steps = self.every_steps and step % self.every_steps == 0
        seconds = self.clock.seconds() - self._saved_at
        by_minutes = self.every_seconds and seconds >= self.every_seconds
        if by_steps or by_minutes:
            self.save()

    def on_train_end(self, logs=None):
        if current_step(self.model) not in self.checkpoints.steps():
            self.save()

    def save(self) -> None:
        step = current_step(self.model)
        seconds = self.clock.seconds()
        self.checkpoints.save(self.model, step, {**self.state, "step": step, "seconds": seconds})
        self._saved_at = self.clock.seconds()


class EndRun(keras.callbacks.Callback):
    """Ends a run after its steps or its minutes, and says how much is left.

    Args:
        clock: `RunClock`.
        steps: int or None.
        minutes: float or None.
    """

    def __init__(self, clock: RunClock, steps: int | None, minutes: float | None) -> None:
        super().__init__()
        self.clock = clock
        self.steps = steps
        self.minutes = minutes

    def on_train_begin(self, logs=None):
        self._first_step = current_step(self.model)
        self._first_seconds = self.clock.seconds()

    def on_train_batch_end(self, batch, logs=None):
        if (self.steps and current_step(self.model) >= self.steps) or (
            self.minutes and self.clock.seconds() >= self.minutes * 60
        ):
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        step, seconds = current_step(self.model), self.clock.seconds()
        left = []
        if self.minutes:
            left.append(self.minutes * 60 - seconds)
        if self.steps:
            per_step = (seconds - self._first_seconds) / max(step - self._first_step, 1)
            left.append((self.steps - step) * per_step)
        print(
            f"step {step}, {seconds / 60:.1f} minutes trained, "
            f"{max(min(left), 0) / 60:.1f} minutes left",
            file=sys.stderr,
        )


class Validate(keras.callbacks.Callback):
    """Measures the model on the validation set after each epoch, and logs the figures.

    Args:
        log: `RunLog`.
        validation: callable that returns a dict of figures.
    """

    def __init__(self, log: RunLog, validation: Callable[[], dict[str, float]]) -> None:
        super().__init__()
        self.log = log
        self.validation = validation

    def on_epoch_end(self, epoch, logs=None):
        figures = self.validation()
        logs.update(figures)
        self.log.write(current_step(self.model), **figures)
        print(", ".join(f"{name} {value:.4g}" for name, value in figures.items()), file=sys.stderr)
