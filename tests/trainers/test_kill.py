"""A run that is killed 20 times at random moments ends as the one that never was."""

import signal
import subprocess
import sys
import time
from pathlib import Path

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

STEPS, EVERY, SECONDS = 300, 20, 180
CHANGES = {
    "steps": STEPS,
    "checkpoint_every_steps": EVERY,
    "keep_checkpoints": 3,
    "average_checkpoints": 3,
    "validate_every_steps": 70,
    "log_every_steps": 1,
    "warmup_steps": 40,
}
# What each kill aims at: the first start, a random step, or a checkpoint being written.
AIMS = ["start"] * 2 + ["step", "checkpoint"] * 9


class Killer:
    """Starts the same command again and again, and kills it with SIGKILL.

    Args:
        command: list of str.
        run: path of the run directory.
        random: `numpy.random.Generator`.
    """

    def __init__(self, command: list[str], run: Path, random: np.random.Generator) -> None:
        self.command, self.run, self.random = command, run, random
        self.output = run.with_name("output")
        self.log = RunLog(run)

    def kill_at(self, aim: str) -> str:
        """Kills one start of the run, and says where it struck."""
        reached = getattr(self, f"_until_{aim}")()
        with self.output.open("w") as output:
            process = subprocess.Popen(
                self.command, env=environment(), stdout=output, stderr=output
            )
        deadline = time.monotonic() + SECONDS
        while not reached():
            assert process.poll() is None, self.output.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{aim}: {self.output.read_text()[-3000:]}"
            time.sleep(0.001)
        # Writing a checkpoint takes some hundredths of a second.
        time.sleep(self.random.uniform(0, 0.06))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        lines = self.log.lines()
        half = sorted(path.name for path in (self.run / "checkpoints").glob(".*"))
        checkpoints = RunDirectory(self.run).checkpoints().steps()
        return f"{aim}: step {lines[-1]['step'] if lines else 0}, {checkpoints}, half: {half}"

    def _until_start(self):
        """While the run directory is being set up."""
        delay = self.random.uniform(0, 1)
        seen = []

        def reached():
            if not seen and self.run.exists():
                seen.append(time.monotonic())
            return seen and time.monotonic() - seen[0] > delay

        return reached

    def _until_step(self):
        """At most 25 steps after the checkpoint that the run goes on from."""
        steps = RunDirectory(self.run).checkpoints().steps() or [0]
        target = min(steps[-1] + int(self.random.integers(1, 26)), STEPS - 15)
        before = [line["step"] for line in self.log.lines()]
        forgotten = [not any(step > steps[-1] for step in before)]

        def reached():
            lines = self.log.lines()
            last = max((line["step"] for line in lines), default=0)
            # Lines after the checkpoint are those of the last start, until they are dropped.
            forgotten[0] = forgotten[0] or last <= steps[-1]
            return forgotten[0] and last >= target

        return reached

    def _until_checkpoint(self):
        """While a checkpoint is being written."""
        old = set((self.run / "checkpoints").glob(".writing-*"))
        times = {path: path.stat().st_ino for path in old}

        def reached():
            for path in (self.run / "checkpoints").glob(".writing-*"):
                try:
                    if path.stat().st_ino != times.get(path):
                        return True
                except FileNotFoundError:
                    continue
            return False

        return reached


def command(recipe_path, run):
    changes = [f"training.{name}={value}" for name, value in CHANGES.items()]
    return ["-m", "keras_transformer", "train", str(recipe_path), "--run-dir", str(run), *changes]


@pytest.fixture(scope="module")
def whole(recipe_path, tmp_path_factory):
    """The run without a break."""
    path = tmp_path_factory.mktemp("whole") / "run"
    done = in_new_process(*command(recipe_path, path))
    assert done.returncode == 0, done.stderr[-3000:]
    return RunDirectory(path)


@pytest.fixture(scope="module")
def resumed(recipe_path, tmp_path_factory):
    """The run killed 20 times, and then left to finish."""
    path = tmp_path_factory.mktemp("killed") / "run"
    killer = Killer([sys.executable, *command(recipe_path, path)], path, np.random.default_rng(11))
    struck = [killer.kill_at(aim) for aim in AIMS]
    print("\n".join(struck))
    assert len(struck) == 20
    assert sum("half: ['." in each for each in struck) >= 5, "kills missed the checkpoints"
    last = RunDirectory(path).checkpoints().steps()[-1]
    with killer.log.path.open("a") as file:
        file.write('{"step": 99')  # what a kill in the middle of a line would leave
    done = in_new_process(*command(recipe_path, path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"resuming at step {last}" in done.stderr
    return RunDirectory(path)


def test_it_ends_where_the_run_without_a_break_ends(whole, resumed):
    (one, state), (two, resumed_state) = map(last_checkpoint, (whole, resumed))
    assert state["step"] == resumed_state["step"] == STEPS
    assert state["batches"] == resumed_state["batches"] == STEPS
    difference = largest_difference(everything_in(one), everything_in(two))
    print(f"largest difference of weights, seeds and Adam's slots: {difference:.3g}")
    print("bit-equal" if difference == 0 else "not bit-equal")
    assert difference <= 1e-6
    assert int(two.optimizer.iterations) == STEPS


def test_the_checkpoints_and_their_mean_are_the_same(whole, resumed):
    assert resumed.checkpoints().steps() == whole.checkpoints().steps() == [260, 280, STEPS]
    for one, two in zip(
        whole.load_model().get_weights(), resumed.load_model().get_weights(), strict=True
    ):
        np.testing.assert_allclose(one.astype("float64"), two, atol=1e-6)
    names = [path.name for path in (resumed.path / "checkpoints").iterdir()]
    assert len(names) == 3 and all(name.startswith("step-") for name in names)


def test_each_line_is_logged_once_and_is_the_same(whole, resumed):
    lines = read_metrics(resumed)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if "val_loss" in line] == [70, 140, 210, 280, STEPS]
    for line, expected in zip(lines, read_metrics(whole), strict=True):
        assert line.keys() == expected.keys()
        for name in line.keys() - {"target_tokens_per_second"}:
            assert line[name] == pytest.approx(expected[name], rel=1e-5), (line, name)


def test_nothing_else_differs_in_the_run_directory(whole, resumed):
    for name in ("recipe.yaml", "tokenizer"):
        one, two = whole.path / name, resumed.path / name
        files = [one] if one.is_file() else sorted(one.iterdir())
        for file in files:
            other = two if one.is_file() else two / file.name
            assert other.read_bytes() == file.read_bytes(), file
    top = [sorted(path.name for path in run.path.iterdir()) for run in (whole, resumed)]
    assert top[0] == top[1]
