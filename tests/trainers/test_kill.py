"""Training that is killed, not stopped: the same command goes on as if nothing had happened."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from small_runs import (
    environment,
    everything_in,
    in_new_process,
    largest_difference,
    last_checkpoint,
    read_metrics,
)

from trainers.run import RunDirectory
from trainers.run_log import RunLog

pytestmark = pytest.mark.slow

STEPS, KILLED_AFTER = 400, 200
CHANGES = {
    "steps": STEPS,
    "checkpoint_every_steps": 30,
    "keep_checkpoints": 5,
    "average_checkpoints": 3,
    "validate_every_steps": 70,
    "log_every_steps": 10,
    "warmup_steps": 40,
}


def command(recipe_path, run):
    changes = [f"training.{name}={value}" for name, value in CHANGES.items()]
    return ["-m", "keras_transformer", "train", str(recipe_path), "--run-dir", str(run), *changes]


def steps_of(run, key):
    return [line["step"] for line in read_metrics(run) if key in line]


@pytest.fixture(scope="module")
def whole(recipe_path, tmp_path_factory):
    """The run without a break."""
    path = tmp_path_factory.mktemp("whole") / "run"
    done = in_new_process(*command(recipe_path, path))
    assert done.returncode == 0, done.stderr[-3000:]
    return RunDirectory(path)


@pytest.fixture(scope="module")
def killed(recipe_path, tmp_path_factory):
    """A run killed at step 200 or soon after, the step of its last checkpoint, and its lines."""
    path = tmp_path_factory.mktemp("killed") / "run"
    with open(path.with_name("output"), "w") as output:
        process = subprocess.Popen(
            [sys.executable, *command(recipe_path, path)],
            env=environment(),
            stdout=output,
            stderr=output,
        )
        log = RunLog(path.with_name("reader"))
        log.path = path / "metrics.jsonl"
        while not any(line["step"] >= KILLED_AFTER for line in log.lines()):
            assert process.poll() is None, path.with_name("output").read_text()[-3000:]
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    run = RunDirectory(path)
    last = run.checkpoints().steps()[-1]
    assert KILLED_AFTER - 30 <= last < STEPS - 30
    # What a kill in the middle of a checkpoint and of a line would leave.
    (path / "checkpoints" / ".writing-step-00000999").mkdir()
    with log.path.open("a") as file:
        file.write('{"step": 99')
    return run, last, log.lines()


@pytest.fixture(scope="module")
def resumed(recipe_path, killed):
    """The killed run after the same command has been run once more."""
    run, last, _ = killed
    done = in_new_process(*command(recipe_path, run.path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"resuming at step {last}," in done.stderr
    return run


def test_it_ends_where_the_run_without_a_break_ends(whole, resumed):
    (one, state), (two, resumed_state) = map(last_checkpoint, (whole, resumed))
    assert state["step"] == resumed_state["step"] == STEPS
    assert state["batches"] == resumed_state["batches"] == STEPS
    difference = largest_difference(everything_in(one), everything_in(two))
    print(f"largest difference of weights, seeds and Adam's slots: {difference:.3g}")
    assert difference <= 1e-6
    assert int(two.optimizer.iterations) == STEPS


def test_the_checkpoints_and_their_mean_are_the_same(whole, resumed):
    assert resumed.checkpoints().steps() == whole.checkpoints().steps()
    for one, two in zip(
        whole.load_model().get_weights(), resumed.load_model().get_weights(), strict=True
    ):
        np.testing.assert_allclose(one.astype("float64"), two, atol=1e-6)
    names = [path.name for path in (resumed.path / "checkpoints").iterdir()]
    assert len(names) == 5 and all(name.startswith("step-") for name in names)


def test_no_logged_step_is_repeated_and_none_is_missing(whole, resumed):
    assert steps_of(resumed, "loss") == list(range(10, STEPS + 1, 10))
    assert steps_of(resumed, "val_loss") == [70, 140, 210, 280, 350, STEPS]
    assert steps_of(whole, "val_loss") == steps_of(resumed, "val_loss")


def test_lines_before_the_kill_are_kept_and_the_others_as_without_it(whole, killed, resumed):
    _, last, before = killed
    lines = read_metrics(resumed)
    assert [line for line in lines if line["step"] <= last] == [
        line for line in before if line["step"] <= last
    ]
    for line, expected in zip(lines, read_metrics(whole), strict=True):
        assert line.keys() == expected.keys()
        for name in line.keys() - {"target_tokens_per_second"}:
            assert line[name] == pytest.approx(expected[name], rel=1e-5), (line, name)


def test_the_seconds_of_both_parts_are_counted(resumed):
    _, state = last_checkpoint(resumed)
    assert state["seconds"] > 0
    rates = [line["learning_rate"] for line in read_metrics(resumed) if "loss" in line]
    assert all(first > second for first, second in zip(rates[4:], rates[5:], strict=False))
