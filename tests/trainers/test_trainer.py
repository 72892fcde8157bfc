"""Trainings by a recipe: what a run leaves, how it goes on, and what it refuses."""

import json
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import learning_rate
from small_runs import (
    TRAINING_KEYS,
    VALIDATION_KEYS,
    everything_in,
    largest_difference,
    last_checkpoint,
    read_metrics,
    small_recipe,
    train,
)

from keras_transformer.cli import main
from trainers import callbacks
from trainers.batching import TokenBatches
from trainers.callbacks import TrainingDiverged
from trainers.checkpoints import Checkpoints, load_model
from trainers.recipe import load_recipe
from trainers.run import RunDirectory
from trainers.splits import read_split
from trainers.trainer import Trainer


def training_lines(run):
    return [line for line in read_metrics(run) if "loss" in line]


def validation_lines(run):
    return [line for line in read_metrics(run) if "val_loss" in line]


def flat(line: dict) -> dict[str, float]:
    """A line of the log with the figures by layer under names of their own, as TensorBoard has."""
    by_layer = line.get("layer_gradient_norms", {})
    rest = {name: value for name, value in line.items() if name != "layer_gradient_norms"}
    return rest | {f"layer_gradient_norms/{name}": value for name, value in by_layer.items()}


class TestTheRunDirectory:
    def test_it_holds_what_the_contract_names_and_nothing_else(self, finished_run):
        assert {path.name for path in finished_run.path.iterdir()} == {
            "recipe.yaml",
            "tokenizer",
            "prepared",
            "checkpoints",
            "metrics.jsonl",
            "tensorboard",
            "model.keras",
        }
        assert finished_run.checkpoints().steps() == [3, 6, 8]
        assert finished_run.load_tokenizer().target.vocabulary_size == 290

    def test_the_recipe_has_every_key_written_out(self, finished_run, recipe_path):
        recipe = small_recipe(recipe_path, validation_bleu_sentences=5)
        assert finished_run.load_recipe() == recipe
        written = finished_run.recipe_path.read_text()
        for section in recipe.to_dict().values():
            for name in section:
                assert f"{name}:" in written

    def test_lines_of_metrics_have_exactly_the_keys_of_the_contract(self, finished_run):
        lines = read_metrics(finished_run)
        assert all(set(line) in (TRAINING_KEYS, VALIDATION_KEYS) for line in lines)
        assert [line["step"] for line in training_lines(finished_run)] == [3, 6]
        assert [line["step"] for line in validation_lines(finished_run)] == [4, 8]
        assert all(np.isfinite(value) for line in lines for value in flat(line).values())
        for line in training_lines(finished_run):
            norms = list(line["layer_gradient_norms"].values())
            assert np.linalg.norm(norms) == pytest.approx(line["gradient_norm"], rel=1e-3)

    def test_tensorboard_shows_the_figures_of_metrics(self, finished_run):
        (events,) = (finished_run.path / "tensorboard").glob("events*")
        shown = {
            (event.step, value.tag): float(tf.make_ndarray(value.tensor))
            for record in tf.data.TFRecordDataset(str(events))
            for event in [tf.compat.v1.Event.FromString(record.numpy())]
            for value in event.summary.value
        }
        written = {
            (line["step"], name): value
            for line in read_metrics(finished_run)
            for name, value in flat(line).items()
            if name != "step"
        }
        assert shown == pytest.approx(written, rel=1e-6)

    def test_the_model_is_the_mean_of_the_last_checkpoints(self, finished_run):
        model = finished_run.load_model()
        expected = finished_run.checkpoints().average(2)
        for weight, mean in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, mean)
        assert getattr(model, "optimizer", None) is None

    def test_the_model_translates(self, finished_run):
        (found,) = finished_run.load_translator().translate(["one two"])
        assert len(found) >= 1

    def test_the_learning_rate_is_the_schedules(self, resumed_run):
        for line in training_lines(resumed_run):
            # The rate of the update that comes next.
            expected = learning_rate(line["step"] + 1, d_model=16, warmup_steps=5)
            assert line["learning_rate"] == pytest.approx(expected, rel=1e-5)


class TestResuming:
    def test_a_run_that_was_stopped_ends_where_one_without_a_break_does(
        self, finished_run, resumed_run
    ):
        (whole, whole_state), (resumed, resumed_state) = map(
            last_checkpoint, (finished_run, resumed_run)
        )
        first, second = everything_in(whole), everything_in(resumed)
        assert sum("optimizer" in name for name in first) > 40
        assert sum("seed" in name for name in first) == 7
        # Nothing is lost in a checkpoint, and validation with BLEU leaves no trace in the weights.
        assert largest_difference(first, second) <= 1e-6
        for name in ("step", "batches", "corpus", "tokenizer"):
            assert whole_state[name] == resumed_state[name]
        assert whole_state["step"] == whole_state["batches"] == 8

    def test_it_repeats_no_line_and_leaves_none_out(self, resumed_run):
        assert [line["step"] for line in training_lines(resumed_run)] == list(range(1, 9))
        # 5 is the end of the first part, which is validated like every end.
        assert [line["step"] for line in validation_lines(resumed_run)] == [4, 5, 8]

    def test_its_seconds_go_on(self, resumed_run):
        checkpoints = resumed_run.checkpoints()
        assert checkpoints.steps() == [5, 6, 8]
        _, state = checkpoints.load_latest()
        checkpoints.path(8).rename(checkpoints.path(8).with_name("aside"))
        _, earlier = checkpoints.load_latest()
        checkpoints.path(8).with_name("aside").rename(checkpoints.path(8))
        assert state["seconds"] > earlier["seconds"] > 0

    def test_a_line_has_the_mean_over_the_tokens_since_the_line_before(
        self, finished_run, resumed_run, recipe_path
    ):
        corpus = read_split(load_recipe(recipe_path).data, "train")
        tokenizer = finished_run.load_tokenizer()
        targets = tokenizer.target.encode_batch(corpus.targets)
        batches = TokenBatches(
            tokenizer.source.encode_batch(corpus.sources), targets, batch_tokens=120, seed=3
        )
        rows = batches.plan(0)
        assert len(rows) > 8
        tokens = [sum(len(targets[row]) + 1 for row in rows[step]) for step in range(8)]
        assert len(set(tokens)) > 1
        losses = [line["loss"] for line in training_lines(resumed_run)]
        # Steps 4 to 6 lie on both sides of the validation after step 4.
        for line, (start, end) in zip(training_lines(finished_run), [(0, 3), (3, 6)], strict=True):
            expected = np.average(losses[start:end], weights=tokens[start:end])
            assert line["loss"] == pytest.approx(expected, rel=1e-5)

    def test_the_same_command_on_a_finished_run_trains_no_more(self, copied_run, capsys):
        metrics = read_metrics(copied_run)
        before = copied_run.load_model().get_weights()
        copied_run.model_path.unlink()
        Trainer(copied_run.load_recipe(), copied_run.path).train()
        assert "the run is finished: step 8" in capsys.readouterr().err
        assert read_metrics(copied_run) == metrics
        for weight, same in zip(before, copied_run.load_model().get_weights(), strict=True):
            np.testing.assert_array_equal(weight, same)

    def test_a_run_of_minutes_ends_by_the_clock(self, recipe_path, tmp_path):
        run = train(recipe_path, tmp_path / "run", steps="null", minutes=0.0001)
        assert run.checkpoints().steps() == [1]
        assert last_checkpoint(run)[1]["seconds"] > 0.006
        assert run.model_path.exists()


class TestPrecision:
    def test_mixed_bfloat16_resumes_and_its_model_is_float32(self, recipe_path, tmp_path):
        options = {"precision": "mixed_bfloat16", "checkpoint_every_steps": 1}
        train(recipe_path, tmp_path / "run", steps=2, **options)
        run = train(recipe_path, tmp_path / "run", steps=3, **options)
        assert last_checkpoint(run)[0].policy.name == "mixed_bfloat16"
        assert [line["step"] for line in training_lines(run)] == [3]
        check_float32(run, last=2)

    @pytest.mark.slow
    def test_mixed_float16_keeps_its_loss_scale_and_place_in_the_data(
        self, recipe_path, tmp_path, monkeypatch
    ):
        # A scale so high that the first batches overflow: they make no update.
        optimizer = keras.optimizers.LossScaleOptimizer
        monkeypatch.setattr(
            keras.optimizers,
            "LossScaleOptimizer",
            lambda inner: optimizer(inner, initial_scale=2.0**22),
        )
        options = {"precision": "mixed_float16", "checkpoint_every_steps": 1, "log_every_steps": 1}
        whole = train(recipe_path, tmp_path / "whole", steps=4, **options)
        train(recipe_path, tmp_path / "resumed", steps=2, **options)
        resumed = train(recipe_path, tmp_path / "resumed", steps=4, **options)

        (one, state), (two, resumed_state) = map(last_checkpoint, (whole, resumed))
        assert state["step"] == 4
        assert resumed_state["batches"] == state["batches"] > 4
        assert float(one.optimizer.dynamic_scale) < 2.0**22
        assert int(one.optimizer.step_counter) == 4
        assert largest_difference(everything_in(one), everything_in(two)) <= 1e-6
        for run in (whole, resumed):
            assert [line["step"] for line in training_lines(run)] == [1, 2, 3, 4]
            assert run.checkpoints().steps() == [2, 3, 4]
            check_float32(run, last=2)


def check_float32(run, last):
    model = run.load_model()
    assert model.policy.name == "float32"
    assert model.compute_dtype == "float32"
    logits = model({"source": np.array([[5, 2]]), "target": np.array([[1, 6]])})
    assert logits.dtype == "float32"
    mean = run.checkpoints().average(last)
    for weight, expected in zip(model.trainable_weights, mean.trainable_weights, strict=True):
        assert weight.dtype == "float32"
        np.testing.assert_array_equal(weight.numpy(), expected.numpy())


class TestDivergence:
    def test_a_learning_rate_far_too_high_ends_the_command_with_advice(
        self, recipe_path, tmp_path, capsys
    ):
        run = tmp_path / "run"
        changes = ["learning_rate_factor=1e60", "checkpoint_every_steps=1"]
        code = main(
            ["train", str(recipe_path), "--run-dir", str(run)]
            + [f"training.{change}" for change in changes]
        )
        assert code == 1
        (line,) = [
            line for line in capsys.readouterr().err.split("\n") if "keras-transformer:" in line
        ]
        assert line.startswith("keras-transformer: A weight became")
        assert "at step 1 " in line and "learning_rate_factor" in line
        # The first loss was finite, the weights after it are not: they are no checkpoint.
        assert RunDirectory(run).checkpoints().steps() == []

    def test_the_last_good_checkpoint_is_left(self, copied_run, recipe_path, monkeypatch):
        load = Checkpoints.load_latest

        def load_poisoned(self):
            model, state = load(self)
            weight = model.trainable_weights[-1]
            weight.assign(weight.numpy() * np.nan)
            return model, state

        before = everything_in(last_checkpoint(copied_run)[0])
        monkeypatch.setattr(Checkpoints, "load_latest", load_poisoned)
        with pytest.raises(TrainingDiverged, match="The loss became nan at step 9 .*directory"):
            train(recipe_path, copied_run.path, steps=12, checkpoint_every_steps=1)
        monkeypatch.undo()
        assert copied_run.checkpoints().steps() == [3, 6, 8]
        after = everything_in(last_checkpoint(copied_run)[0])
        assert largest_difference(before, after) == 0
        assert all(np.isfinite(array).all() for array in after.values())
        assert max(line["step"] for line in read_metrics(copied_run)) == 8


class TestSignals:
    def test_sigterm_saves_and_the_same_command_goes_on(
        self, finished_run, recipe_path, tmp_path, capsys
    ):
        class Terminate(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if self.model.optimizer.iterations == 4:  # the fifth update is being made
                    signal.raise_signal(signal.SIGTERM)

        command = ["train", str(recipe_path), "--run-dir", str(tmp_path / "run")]
        command += ["training.validation_bleu_sentences=5"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(callbacks, "Watch", Terminate)
            assert main([*command, "--json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out) == {"run_dir": command[3], "finished": False}
        assert "stopped by a signal at step 5, which is saved" in captured.err
        run = RunDirectory(tmp_path / "run")
        assert run.checkpoints().steps() == [3, 5] and not run.model_path.exists()
        assert [line["step"] for line in validation_lines(run)] == [4]

        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"run_dir": command[3], "finished": True}
        first, second = (last_checkpoint(each)[0] for each in (finished_run, run))
        assert largest_difference(everything_in(first), everything_in(second)) <= 1e-6
        assert [line["step"] for line in validation_lines(run)] == [4, 8]

    def test_a_validation_that_was_broken_off_is_made_up_for(self, copied_run):
        metrics = read_metrics(copied_run)
        assert "val_loss" in metrics[-1] and metrics[-1]["step"] == 8
        text = "".join(json.dumps(line) + "\n" for line in metrics[:-1])
        (copied_run.path / "metrics.jsonl").write_text(text)
        Trainer(copied_run.load_recipe(), copied_run.path).train()
        (line,) = read_metrics(copied_run)[len(metrics) - 1 :]
        assert line == pytest.approx(metrics[-1])


class TestMovingAverage:
    @pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
    def test_the_model_is_the_average_and_the_run_goes_on_from_the_raw_weights(
        self, recipe_path, tmp_path, precision
    ):
        options = {"ema_decay": 0.9, "precision": precision, "checkpoint_every_steps": 1}
        run = train(recipe_path, tmp_path / "whole", steps=4, keep_checkpoints=4, **options)
        expected = None
        for step in run.checkpoints().steps():
            model = load_model(run.checkpoints().path(step) / "model.keras")
            weights = model.trainable_weights
            if expected is None:  # before the first update there is nothing to average
                expected = [weight.numpy().astype("float64") for weight in weights]
                continue
            pairs = zip(expected, weights, strict=True)
            expected = [0.9 * mean + 0.1 * weight.numpy() for mean, weight in pairs]
        for weight, mean in zip(run.load_model().trainable_weights, expected, strict=True):
            np.testing.assert_allclose(weight.numpy(), mean, atol=1e-6)
        # `fit` has ended twice in this one, and the process once.
        options["validate_every_steps"] = 1
        train(recipe_path, tmp_path / "parts", steps=2, **options)
        parts = train(recipe_path, tmp_path / "parts", steps=4, **options)
        one, two = (last_checkpoint(each)[0] for each in (run, parts))
        assert largest_difference(everything_in(one), everything_in(two)) <= 1e-6
