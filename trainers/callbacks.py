"""Keras callbacks of a run: its log, its checkpoints, its validation, and when it ends."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

import keras
import numpy as np

from keras_transformer.training_step import layer_names
from trainers.batching import TokenBatches
from trainers.checkpoints import Checkpoints
from trainers.run_log import RunLog
from trainers.stop_signal import StopSignal
from trainers.workers import Workers


class TrainingDiverged(RuntimeError):
    """The loss or a weight is no longer a finite number."""


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
    # A variable that several devices hold is no number by itself.
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


def diverged(model: keras.Model, what: str) -> TrainingDiverged:
    """The error that says what happened at which step, and what to do."""
    return TrainingDiverged(
        f"{what} at step {current_step(model)} (learning rate "
        f"{float(model.optimizer.learning_rate):.3g}); the run has stopped, and the checkpoints "
        "are from before that. Train in another run directory with a lower "
        "training.learning_rate_factor or a higher training.warmup_steps."
    )


class Watch(keras.callbacks.Callback):
    """Stops a run that diverges, at once and with a message that says what to do."""

    def on_train_batch_end(self, batch, logs=None):
        if not math.isfinite(logs["loss"]):
            raise diverged(self.model, f"The loss became {logs['loss']}")


class CountBatches(keras.callbacks.Callback):
    """Counts the batches seen, over all resumptions: the run's place in the data.

    They are as many as the updates, except in mixed_float16, where a batch whose gradients
    overflow lowers the loss scale and makes no update.

    Args:
        batches_before: int. Batches before this process.
    """

    def __init__(self, batches_before: int = 0) -> None:
        super().__init__()
        self.batches = batches_before

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1


class LogTraining(keras.callbacks.Callback):
    """Logs loss, learning rate, gradient norms, speed and padding every `every` steps.

    The loss is the mean over the tokens since the line before (or since this process began), and
    not since the epoch began. The speed leaves out the time between epochs, when the run
    validates. Where there are several replicas, speed and padding are logged for each of them too.

    Args:
        log: `RunLog`.
        every: int. Steps between lines.
        batches: `TokenBatches` that are trained on.
        counter: `CountBatches`, which must come before this callback.
        replicas: int. Replicas of all workers.
    """

    def __init__(
        self,
        log: RunLog,
        every: int,
        batches: TokenBatches,
        counter: CountBatches,
        replicas: int = 1,
    ) -> None:
        super().__init__()
        self.log = log
        self.every = every
        self.batches = batches
        self.counter = counter
        self.replicas = replicas
        # Loss sum, tokens and seconds of earlier epochs since the last line.
        self._before = np.zeros(3)
        self._forget_counts()

    def on_train_begin(self, logs=None):
        self._logged_step = current_step(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        self._start = self._totals()

    def on_epoch_end(self, epoch, logs=None):
        # Keras sets the tracker back before the next epoch, so what it holds is kept here.
        self._before += self._totals() - self._start

    def on_train_batch_end(self, batch, logs=None):
        # Taken out: Keras' progress bar, which comes after, shows numbers alone.
        layer_norms = logs.pop("layer_gradient_norms", ())
        counts = self.batches.replica_counts(self.counter.batches - 1, self.replicas)
        self._target_tokens += counts["target_tokens"]
        self._tokens += counts["target_tokens"] + counts["source_tokens"]
        self._cells += counts["cells"]
        step = current_step(self.model)
        if step % self.every or step == self._logged_step:
            return
        now = self._totals()
        loss_sum, tokens, seconds = self._before + now - self._start
        figures = {
            "loss": loss_sum / tokens,
            "learning_rate": float(self.model.optimizer.learning_rate),
            "gradient_norm": float(logs["gradient_norm"]),
            "target_tokens_per_second": round(tokens / seconds, 1),
            "padding": round(1 - self._tokens.sum() / self._cells.sum(), 4),
        }
        if len(layer_norms):
            names = layer_names(self.model.trainable_variables)
            norms = np.ravel(layer_norms).tolist()
            figures["layer_gradient_norms"] = dict(zip(names, norms, strict=True))
        if self.replicas > 1:
            speeds = self._target_tokens / seconds
            figures["replica_target_tokens_per_second"] = speeds.round(1).tolist()
            figures["replica_padding"] = (1 - self._tokens / self._cells).round(4).tolist()
        self.log.write(step, **figures)
        self._before, self._start, self._logged_step = np.zeros(3), now, step
        self._forget_counts()

    def _forget_counts(self) -> None:
        """Target tokens, tokens and cells of each replica since the last line."""
        self._target_tokens, self._tokens, self._cells = np.zeros((3, self.replicas), np.int64)

    def _totals(self) -> np.ndarray:
        """Loss sum and tokens of all replicas since the epoch began, and the time."""
        tracker, strategy = self.model._loss_tracker, self.model.distribute_strategy

        def value(variable: keras.Variable) -> np.ndarray:
            # Every replica has tracked its share of the whole: no need to ask the others, which
            # other workers would have to answer.
            return strategy.experimental_local_results(variable.value)[0].numpy() * self.replicas

        return np.array([value(tracker.total), value(tracker.count), time.monotonic()], np.float64)


class SaveCheckpoints(keras.callbacks.Callback):
    """Saves a checkpoint by steps or by minutes; `save_last` saves one at the run's end.

    Args:
        checkpoints: `Checkpoints`.
        clock: `RunClock`.
        counter: `CountBatches`, which must come before this callback.
        every_steps: int or None.
        every_minutes: float or None.
        state: dict that is saved with every checkpoint, beside steps, batches and seconds.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        clock: RunClock,
        counter: CountBatches,
        every_steps: int | None,
        every_minutes: float | None,
        state: dict,
    ) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.clock = clock
        self.counter = counter
        self.every_steps = every_steps
        self.every_seconds = every_minutes * 60 if every_minutes else None
        self.state = state
        self._saved_at = clock.seconds()

    def on_train_begin(self, logs=None):
        self._saved_step = current_step(self.model)

    def on_train_batch_end(self, batch, logs=None):
        step = current_step(self.model)
        if step == self._saved_step:
            return
        by_steps = self.every_steps and step % self.every_steps == 0
        seconds = self.clock.seconds() - self._saved_at
        by_minutes = self.every_seconds and seconds >= self.every_seconds
        if by_steps or by_minutes:
            self._save(step)

    def save_last(self) -> None:
        """Saves the step that the run ended at, where that has not been done."""
        step = current_step(self.model)
        if step not in self.checkpoints.steps():
            self._save(step)

    def _save(self, step: int) -> None:
        # The loss of this step was that of the weights before it.
        if not all(np.isfinite(weight).all() for weight in self.model.get_weights()):
            raise diverged(self.model, "A weight became infinite or no number")
        progress = {
            "step": step,
            "batches": self.counter.batches,
            "seconds": self.clock.seconds(),
        }
        self.checkpoints.save(self.model, step, {**self.state, **progress})
        self._saved_at, self._saved_step = self.clock.seconds(), step


class EndRun(keras.callbacks.Callback):
    """Ends a run after its steps, its minutes or by a signal, and says how much is left.

    Several workers end after the same step: a signal to any of them is one to all, and the
    chief's clock counts.

    Args:
        clock: `RunClock`.
        steps: int or None.
        minutes: float or None.
        signal: `StopSignal`, or None where none is waited for.
        workers: `Workers`, or None for one process.
    """

    def __init__(
        self,
        clock: RunClock,
        steps: int | None,
        minutes: float | None,
        signal: StopSignal | None = None,
        workers: Workers | None = None,
    ) -> None:
        super().__init__()
        self.clock = clock
        self.steps = steps
        self.minutes = minutes
        self.signal = signal
        self.workers = workers or Workers({})
        self.is_interrupted = False
        self.is_over = False

    def on_train_begin(self, logs=None):
        self._first_step = current_step(self.model)
        self._first_seconds = self.clock.seconds()

    def on_train_batch_end(self, batch, logs=None):
        is_late = self.minutes is not None and self.clock.seconds() >= self.minutes * 60
        has_signal = self.signal is not None and self.signal.requested is not None
        self.is_interrupted, is_late = self.workers.agree(
            has_signal, is_late and self.workers.is_chief
        )
        self.is_over = is_late or (
            self.steps is not None and current_step(self.model) >= self.steps
        )
        if self.is_interrupted or self.is_over:
            self.model.stop_training = True

    def look_for_signal(self) -> None:
        """Ends the run where a signal has come since the last update, as in a validation."""
        has_signal = self.signal is not None and self.signal.requested is not None
        (self.is_interrupted,) = self.workers.agree(has_signal)

    def on_epoch_end(self, epoch, logs=None):
        if self.is_interrupted or not self.workers.is_chief:
            return
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

    An epoch that a signal has ended is not measured, and a signal breaks a measurement off: the run
    makes up for it when it goes on.

    Args:
        log: `RunLog`.
        validation: callable that returns a dict of figures. It is given a callable that says
            whether to break off, and returns None where it has.
        end_run: `EndRun`, which must come before this callback.
        every: int. Steps between measurements. Epochs of mixed_float16 may end on other steps,
            since a batch whose gradients overflow makes none.
    """

    def __init__(
        self,
        log: RunLog,
        validation: Callable[[Callable[[], bool]], dict[str, float] | None],
        end_run: EndRun,
        every: int,
    ) -> None:
        super().__init__()
        self.log = log
        self.validation = validation
        self.end_run = end_run
        self.every = every

    def on_epoch_end(self, epoch, logs=None):
        step = current_step(self.model)
        is_due = step > 0 and (step % self.every == 0 or self.end_run.is_over)
        if is_due and not self.end_run.is_interrupted:
            self.measure(step)

    def measure(self, step: int) -> None:
        """Measures and logs at once, as the step's figures."""
        signal = self.end_run.signal
        figures = self.validation(lambda: signal is not None and signal.requested is not None)
        if figures is None:
            return
        self.log.write(step, **figures)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        print(f"\n{shown}", file=sys.stderr)  # below the line of the progress bar
