"""Trainings in several processes: the model of one, ends by signals, and a worker that dies."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

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

# Dropout draws differently on every replica.
SETTINGS = ["model.dropout=0.0", "training.checkpoint_every_steps=20", "training.log_every_steps=5"]


def command(recipe_path, run, *words):
    words = ["-m", "keras_transformer", "train", str(recipe_path), "--run-dir", str(run), *words]
    return [*words, *SETTINGS]


def train(recipe_path, run, *words):
    done = in_new_process(*command(recipe_path, run, *words), timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return RunDirectory(run)


def figures(run, name):
    return {line["step"]: line[name] for line in read_metrics(run) if name in line}


@pytest.fixture(scope="module")
def one_process(recipe_path, tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    return train(recipe_path, run, "training.steps=60")


def started(recipe_path, run, *words):
    """The command in the background, once it has logged another line of training."""
    log = RunLog(run)
    before = len(log.lines())
    output = open(run.with_name("output"), "w")  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, *command(recipe_path, run, *words)],
        env=environment(),
        stdout=output,
        stderr=output,
    )
    until = time.monotonic() + 240
    while len(log.lines()) <= before:
        assert process.poll() is None, run.with_name("output").read_text()[-3000:]
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def worker_of(process, index: int) -> int:
    """The id of a worker's process, a child of the command."""
    found = [
        int(status.parent.name)
        for status in Path("/proc").glob("[0-9]*/status")
        if f"PPid:\t{process.pid}\n" in status.read_text()
        and f'"index": {index}' in (status.parent / "environ").read_text()
    ]
    (pid,) = found
    return pid


def said_by(run) -> str:
    return run.with_name("output").read_text()


@pytest.mark.parametrize(
    ("workers", "accumulate_steps"), [(2, 1), (3, 2)], ids=["two", "three, in two parts"]
)
def test_workers_train_the_model_of_one_process(
    one_process, recipe_path, tmp_path, workers, accumulate_steps
):
    # Adam divides by roots of tiny numbers and lets rounding grow: few steps.
    steps = ["training.steps=8", f"training.accumulate_steps={accumulate_steps}"]
    one = train(recipe_path, tmp_path / "one" / "run", "training.steps=8")
    many = train(recipe_path, tmp_path / "many" / "run", "--workers", str(workers), *steps)
    weights, others = (everything_in(last_checkpoint(run)[0]) for run in (one, many))
    weights, others = (
        {name: value for name, value in each.items() if "seed" not in name}
        for each in (weights, others)
    )
    assert largest_difference(weights, others) <= 1e-5
    for name in ("loss", "val_loss", "gradient_norm"):
        assert figures(many, name) == pytest.approx(figures(one, name), rel=1e-5)
    for line in read_metrics(many):
        if "loss" in line:
            assert len(line["replica_padding"]) == workers
            speeds = line["replica_target_tokens_per_second"]
            assert sum(speeds) == pytest.approx(line["target_tokens_per_second"], rel=0.01)


@pytest.mark.parametrize("to", ["command", "worker 1"])
def test_a_signal_saves_and_ends_all_and_the_run_goes_on(one_process, recipe_path, tmp_path, to):
    run = tmp_path / "run"
    process = started(recipe_path, run, "--workers", "2", "training.steps=60")
    pid = process.pid if to == "command" else worker_of(process, 1)
    os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 0, said_by(run)[-3000:]
    step = RunDirectory(run).checkpoints().steps()[-1]
    assert f"stopped by a signal at step {step}, which is saved" in said_by(run)
    assert step < 60
    resumed = train(recipe_path, run, "--workers", "2", "training.steps=60")
    same_end(one_process, resumed)


@pytest.mark.parametrize("killed", [1, 0])
def test_a_worker_that_is_killed_ends_all_and_the_run_goes_on(
    one_process, recipe_path, tmp_path, killed
):
    run = tmp_path / "run"
    process = started(recipe_path, run, "--workers", "2", "training.steps=60")
    os.kill(worker_of(process, killed), signal.SIGKILL)
    start = time.monotonic()
    assert process.wait(120) == 1
    seconds = time.monotonic() - start
    print(f"worker {killed} killed: all had ended after {seconds:.1f} seconds")
    assert seconds < 70
    output = said_by(run)
    assert f"worker {killed} was killed by SIGKILL" in output
    assert f"so worker {1 - killed} stops. The checkpoints are whole" in output
    assert "Traceback" not in output
    assert RunDirectory(run).checkpoints().steps()[-1:] != [60]
    # On another number of workers the batches are the same.
    resumed = train(recipe_path, run, *(["--workers", "2"] if killed else []), "training.steps=60")
    same_end(one_process, resumed)


def same_end(one_process, run):
    (one, state), (two, other_state) = map(last_checkpoint, (one_process, run))
    assert (state["step"], state["batches"]) == (other_state["step"], other_state["batches"])
    weights, others = ([w.numpy() for w in model.trainable_weights] for model in (one, two))
    difference = max(abs(a - b).max() for a, b in zip(weights, others, strict=True))
    print(f"largest difference of weights after 60 steps: {difference:.2g}")
    assert difference <= 1e-3  # Adam lets the rounding of other sums grow
    assert figures(run, "loss").keys() == figures(one_process, "loss").keys()
    assert figures(run, "val_loss") == pytest.approx(figures(one_process, "val_loss"), rel=1e-3)


def test_workers_with_other_recipes_are_refused(recipe_path, tmp_path):
    script = tmp_path / "differ.py"
    script.write_text(
        "import json, os, sys\n"
        "from keras_transformer.cli import main\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "sys.exit(main([*sys.argv[1:], f'training.steps={5 + index}']))\n"
    )
    words = command(recipe_path, tmp_path / "run")[2:]
    launcher = "import sys; from trainers.launch import launch; sys.exit(launch(sys.argv[1:], 2))"
    done = in_new_process("-c", launcher, sys.executable, script, *words, timeout=200)
    assert done.returncode == 2
    assert "All workers must train the same recipe" in done.stderr
    assert "the chief has training.steps=5. Received: training.steps=6 on worker 1" in done.stderr
    assert "All workers must be able to start" in done.stderr


def by_hand(recipe_path, run, index, addresses):
    """One of two workers, as on a host of its own."""
    task = {"type": "worker", "index": index}
    config = json.dumps({"cluster": {"worker": addresses}, "task": task})
    output = open(run.with_name(f"output-{index}"), "w")  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, *command(recipe_path, run, "training.steps=60")],
        env={**environment(), "TF_CONFIG": config},
        stdout=output,
        stderr=output,
    )
    return process, Path(output.name)


def wait_for_text(path, text, seconds=60):
    until = time.monotonic() + seconds
    while text not in path.read_text():
        assert time.monotonic() < until, path.read_text()[-3000:]
        time.sleep(0.1)


@pytest.fixture
def ports():
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        numbers = [each.getsockname()[1] for each in sockets]
    return [f"127.0.0.1:{number}" for number in numbers]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_that_waits_for_another_one(
    recipe_path, tmp_path, ports, index, number
):
    process, output = by_hand(recipe_path, tmp_path / "run", index, ports)
    wait_for_text(output, "waiting for all of 2 workers")
    time.sleep(2)
    process.send_signal(number)
    assert process.wait(10) == {signal.SIGTERM: 0, signal.SIGINT: 130}[number]
    said = output.read_text()
    assert ("stopped by a signal before training" in said) is (index == 0)
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_named(recipe_path, tmp_path, ports):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(ports[0].partition(":")[2])))
        taken.listen()
        process, output = by_hand(recipe_path, tmp_path / "run", 0, ports)
        assert process.wait(120) == 2
    last = output.read_text().strip().split("\n")[-1]
    assert "TF_CONFIG must give this worker a free port" in last and ports[0] in last


def test_workers_that_see_other_checkpoints_are_refused(one_process, recipe_path, tmp_path, ports):
    first, second = tmp_path / "a" / "run", tmp_path / "b" / "run"
    for run in (first, second):
        shutil.copytree(one_process.path, run)
    shutil.rmtree(RunDirectory(second).checkpoints().path(60))
    started = [by_hand(recipe_path, run, i, ports) for i, run in enumerate((first, second))]
    for process, output in started:
        assert process.wait(120) == 1
        last = output.read_text().strip().split("\n")[-1]
        assert "All workers must see the same corpus and weights as the chief" in last
    assert "step 40" in last and "on worker 1" in last
