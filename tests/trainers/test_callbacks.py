"""Callbacks, driven by hand: a model stands in that has nothing but what they read."""

import signal
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.callbacks import (
    CountBatches,
    EndRun,
    LogTraining,
    RunClock,
    SaveCheckpoints,
    TrainingDiverged,
    Validate,
    Watch,
)
from trainers.stop_signal import StopSignal


class Log:
    """A `RunLog` that only remembers."""

    def __init__(self):
        self.lines = []

    def write(self, step, **figures):
        self.lines.append({"step": step, **figures})


class Clock:
    """A `RunClock` that is set by hand."""

    def __init__(self, now=0.0):
        self.now = now

    def seconds(self):
        return self.now


class Store:
    """`Checkpoints` that only remember."""

    def __init__(self, *steps):
        self.saved = dict.fromkeys(steps)

    def steps(self):
        return sorted(self.saved)

    def save(self, model, step, state):
        self.saved[step] = state


class Batches:
    """`TokenBatches` of which every replica gets 8 target tokens, of 20 cells, and 4 more tokens
    a replica further on, in the first batch; half of that in others."""

    def replica_counts(self, step, replicas):
        target = (8 + 4 * np.arange(replicas)) // (1 if step == 0 else 2)
        cells = np.full(replicas, 20)
        return {"target_tokens": target, "source_tokens": target - 1, "cells": cells}


def log_training(log, every, replicas=1, batches=0):
    counter = CountBatches(batches)
    return counter, LogTraining(log, every, Batches(), counter, replicas)


class Driver:
    """Calls callbacks as `fit` does, and plays the model."""

    def __init__(self, *callbacks, step=0):
        self.optimizer = SimpleNamespace(iterations=step, learning_rate=0.5)
        self._loss_tracker = SimpleNamespace(total=keras.Variable(0.0), count=keras.Variable(0.0))
        self.distribute_strategy = tf.distribute.get_strategy()
        self.stop_training = False
        self.weight = np.zeros(2)
        self.callbacks = callbacks
        for callback in callbacks:
            callback.set_model(self)
        self.call("on_train_begin")

    def get_weights(self):
        return [self.weight]

    def call(self, event, *arguments):
        for callback in self.callbacks:
            getattr(callback, event)(*arguments)

    def begin_epoch(self):
        for variable in vars(self._loss_tracker).values():
            variable.assign(0.0)
        self.call("on_epoch_begin", 0)

    def end_epoch(self, logs=None):
        self.call("on_epoch_end", 0, {} if logs is None else logs)

    def batch(self, loss=1.0, tokens=10, is_update=True, norm=0.25):
        """One batch; an overflow in mixed_float16 is none that updates."""
        self.optimizer.iterations += is_update
        total, count = vars(self._loss_tracker).values()
        total.assign_add(loss * tokens)
        count.assign_add(tokens)
        mean = float(total) / float(count)
        self.call("on_train_batch_end", 0, {"loss": mean, "gradient_norm": norm})


class TestLogTraining:
    def test_the_loss_is_the_mean_over_the_tokens_since_the_line_before(self):
        log = Log()
        run = Driver(*log_training(log, every=2))
        run.begin_epoch()
        for loss, tokens in ((6.0, 10), (3.0, 30), (2.0, 8), (1.0, 2)):
            run.batch(loss, tokens)
        assert [line["step"] for line in log.lines] == [2, 4]
        assert log.lines[0]["loss"] == pytest.approx((6 * 10 + 3 * 30) / 40)
        assert log.lines[1]["loss"] == pytest.approx((2 * 8 + 1 * 2) / 10)
        assert set(log.lines[0]) == {
            "step",
            "loss",
            "learning_rate",
            "gradient_norm",
            "target_tokens_per_second",
            "padding",
        }
        assert log.lines[0]["learning_rate"] == 0.5
        assert log.lines[0]["gradient_norm"] == 0.25

    def test_an_interval_goes_on_over_the_end_of_an_epoch(self):
        log = Log()
        run = Driver(*log_training(log, every=3))
        for losses in ((6.0, 5.0), (4.0, 3.0), (2.0, 1.0)):
            run.begin_epoch()
            for loss in losses:
                run.batch(loss, tokens=int(loss))
            run.end_epoch()
            # Resumed in an epoch, a run calls fit twice.
            run.call("on_train_begin")
        assert [line["step"] for line in log.lines] == [3, 6]
        assert log.lines[0]["loss"] == pytest.approx((36 + 25 + 16) / 15)
        assert log.lines[1]["loss"] == pytest.approx((9 + 4 + 1) / 6)

    def test_the_time_of_validation_does_not_count(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("trainers.callbacks.time.monotonic", lambda: now[0])
        log = Log()
        run = Driver(*log_training(log, every=2))
        for wait in (50.0, 0.0):
            run.begin_epoch()
            now[0] += 2.0
            run.batch(tokens=30)
            run.end_epoch()
            now[0] += wait
        assert [line["target_tokens_per_second"] for line in log.lines] == [15.0]

    def test_a_run_that_resumes_inside_an_interval_logs_what_it_has_seen(self):
        log = Log()
        run = Driver(*log_training(log, every=4), step=6)
        run.begin_epoch()
        for loss in (9.0, 3.0, 1.0):
            run.batch(loss)
        assert [(line["step"], line["loss"]) for line in log.lines] == [(8, pytest.approx(6.0))]

    def test_a_batch_that_makes_no_update_repeats_no_step(self):
        log = Log()
        run = Driver(*log_training(log, every=1))
        run.begin_epoch()
        run.batch(8.0, is_update=False, norm=float("inf"))
        run.batch(6.0)
        run.batch(4.0, is_update=False, norm=float("inf"))
        run.batch(2.0)
        assert [line["step"] for line in log.lines] == [1, 2]
        assert [line["loss"] for line in log.lines] == pytest.approx([7.0, 3.0])
        assert all(np.isfinite(line["gradient_norm"]) for line in log.lines)

    def test_padding_and_speed_of_each_replica(self, monkeypatch):
        now = [0.0]
        monkeypatch.setattr("trainers.callbacks.time.monotonic", lambda: now[0])
        log = Log()
        run = Driver(*log_training(log, every=2, replicas=2))
        run.begin_epoch()
        for _ in range(4):
            now[0] += 2.0
            run.batch(tokens=10)
        # First 8 and 12 target tokens, then 4 and 6: 15 and 23 with the source, then 7 and 11.
        assert log.lines[0]["replica_target_tokens_per_second"] == [3.0, 4.5]
        assert log.lines[0]["replica_padding"] == pytest.approx([1 - 22 / 40, 1 - 34 / 40])
        assert log.lines[0]["padding"] == pytest.approx(1 - 56 / 80)
        assert log.lines[1]["replica_target_tokens_per_second"] == [2.0, 3.0]
        assert log.lines[1]["padding"] == pytest.approx(1 - 36 / 80)
        # Each replica's tracker has its share of the whole.
        assert log.lines[0]["target_tokens_per_second"] == 2 * 20 / 4.0

    def test_one_replica_has_no_lists(self):
        log = Log()
        run = Driver(*log_training(log, every=1))
        run.begin_epoch()
        run.batch()
        assert log.lines[0]["padding"] == pytest.approx(1 - 15 / 20)


class TestSaveCheckpoints:
    def saver(self, store, clock=None, steps=None, minutes=None, batches=0):
        counter = CountBatches(batches)
        saver = SaveCheckpoints(store, clock or Clock(), counter, steps, minutes, {"corpus": "c"})
        return counter, saver

    def test_by_steps(self):
        store = Store()
        counter, saver = self.saver(store, Clock(2.5), steps=2)
        run = Driver(counter, saver)
        for _ in range(5):
            run.batch()
        assert store.steps() == [2, 4]
        assert store.saved[4] == {"corpus": "c", "step": 4, "batches": 4, "seconds": 2.5}

    def test_by_minutes_since_the_one_before(self):
        store, clock = Store(), Clock(100.0)
        run = Driver(*self.saver(store, clock, minutes=0.5), step=10)
        for clock.now in (110.0, 129.0, 131.0, 160.0, 162.0):
            run.batch()
        assert store.steps() == [13, 15]

    def test_by_whichever_comes_first(self):
        store, clock = Store(), Clock()
        run = Driver(*self.saver(store, clock, steps=4, minutes=1))
        for clock.now in (10.0, 61.0, 70.0, 80.0, 130.0, 145.0):
            run.batch()
        assert store.steps() == [2, 4, 6]

    def test_a_batch_that_makes_no_update_saves_nothing_and_is_counted(self):
        store, clock = Store(), Clock()
        run = Driver(*self.saver(store, clock, steps=1, minutes=1, batches=7))
        clock.now = 61.0
        run.batch(is_update=False)
        assert store.saved == {}
        run.batch()
        clock.now = 200.0
        run.batch(is_update=False)
        assert store.steps() == [1]
        assert store.saved[1]["batches"] == 9

    def test_the_end_of_fit_is_not_the_end_of_the_run(self):
        store = Store()
        run = Driver(*self.saver(store, steps=10))
        run.batch()
        run.call("on_train_end")
        assert store.steps() == []

    def test_the_last_step_is_saved_once(self):
        store = Store(6)
        run = Driver(*self.saver(store, steps=10), step=6)
        saver = run.callbacks[-1]
        saver.save_last()
        assert store.saved == {6: None}
        run.batch()
        saver.save_last()
        assert store.steps() == [6, 7]

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_weights_that_are_no_numbers_are_not_saved(self, value):
        store = Store()
        run = Driver(*self.saver(store, steps=1))
        run.batch()
        run.weight[1] = value
        with pytest.raises(TrainingDiverged, match="A weight .* at step 2 .*learning_rate_factor"):
            run.batch()
        assert store.steps() == [1]


class TestEndRun:
    def test_by_steps(self):
        run = Driver(EndRun(Clock(), steps=3, minutes=None), step=1)
        run.batch()
        assert not run.stop_training
        run.batch()
        assert run.stop_training

    def test_by_minutes_of_all_resumptions(self):
        clock = Clock(50.0)
        run = Driver(EndRun(clock, steps=None, minutes=1))
        run.batch()
        assert not run.stop_training
        clock.now = 60.0
        run.batch()
        assert run.stop_training

    def test_by_whichever_comes_first(self):
        clock = Clock()
        run = Driver(EndRun(clock, steps=2, minutes=1))
        run.batch()
        clock.now = 60.0
        run.batch()
        assert run.stop_training
        early = Driver(EndRun(clock, steps=10, minutes=1))
        early.batch()
        assert early.stop_training

    @pytest.mark.parametrize(
        ("steps", "minutes", "left"),
        [(10, None, "2.0"), (None, 9, "6.0"), (10, 9, "2.0"), (10, 4, "1.0"), (6, None, "0.0")],
    )
    def test_it_says_how_much_is_left(self, capsys, steps, minutes, left):
        clock = Clock(60.0)
        run = Driver(EndRun(clock, steps, minutes), step=2)  # resumed there
        for clock.now in (75.0, 105.0, 135.0, 180.0):  # half a minute a step
            run.batch()
        run.end_epoch()
        expected = f"step 6, 3.0 minutes trained, {left} minutes left\n"
        assert capsys.readouterr().err == expected


class TestTheOthers:
    def test_the_clock_goes_on_from_before(self, monkeypatch):
        now = [5.0]
        monkeypatch.setattr("trainers.callbacks.time.monotonic", lambda: now[0])
        clock = RunClock(60.0)
        now[0] = 8.0
        assert clock.seconds() == 63.0

    @pytest.mark.parametrize("loss", [float("nan"), float("inf")])
    def test_a_loss_that_is_no_number_stops_the_run(self, loss):
        run = Driver(Watch(), step=41)
        run.begin_epoch()
        with pytest.raises(TrainingDiverged) as caught:
            run.batch(loss)
        assert str(caught.value).startswith(
            f"The loss became {loss} at step 42 (learning rate 0.5)"
        )
        assert "learning_rate_factor" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_finite_loss_goes_on(self):
        run = Driver(Watch())
        run.begin_epoch()
        run.batch(1e30)

    def test_validation_is_logged_at_the_step_and_shown(self, capsys):
        log = Log()
        figures = {"val_loss": 2.5, "val_bleu": 31.25}
        end_run = EndRun(Clock(), steps=9, minutes=None)
        run = Driver(Validate(log, lambda break_off: figures, end_run, every=5), step=4)
        run.batch()
        run.end_epoch()
        assert log.lines == [{"step": 5, "val_loss": 2.5, "val_bleu": 31.25}]
        assert capsys.readouterr().err == "\nval_loss 2.5, val_bleu 31.25\n"

    def test_a_signal_ends_the_run_after_the_update_and_keeps_it_from_validating(self, capsys):
        log = Log()
        with StopSignal() as stop:
            end_run = EndRun(Clock(), steps=9, minutes=None, signal=stop)
            run = Driver(end_run, Validate(log, lambda break_off: {"val_loss": 2.5}, end_run, 1))
            run.batch()
            assert not run.stop_training
            signal.raise_signal(signal.SIGTERM)
            run.batch()
        assert run.stop_training and end_run.is_interrupted and not end_run.is_over
        run.end_epoch()
        assert log.lines == [] and capsys.readouterr().err == ""

    def test_a_signal_breaks_a_validation_off(self):
        log, asked = Log(), []

        def validation(break_off):
            asked.append(break_off())
            signal.raise_signal(signal.SIGTERM)
            asked.append(break_off())
            return None

        with StopSignal() as stop:
            end_run = EndRun(Clock(), steps=9, minutes=None, signal=stop)
            Driver(Validate(log, validation, end_run, every=1), step=1).end_epoch()
        assert asked == [False, True] and log.lines == []

    @pytest.mark.parametrize("is_chief", [True, False])
    def test_workers_end_together_by_the_chiefs_clock_or_a_signal_to_any(self, is_chief):
        class Pair:
            """This worker and another one, which wishes what `other` says."""

            def __init__(self):
                self.is_chief, self.other = is_chief, (False, False)

            def agree(self, *wishes):
                return [mine or other for mine, other in zip(wishes, self.other, strict=True)]

        workers, clock = Pair(), Clock()
        end_run = EndRun(clock, steps=None, minutes=1, workers=workers)
        run = Driver(end_run)
        clock.now = 61.0
        run.batch()
        assert run.stop_training is end_run.is_over is is_chief
        run.stop_training, clock.now = False, 0.0
        workers.other = (True, False)
        run.batch()
        assert run.stop_training and end_run.is_interrupted
