"""A recipe on two devices: the weights of one device, and a run that moves between them."""

import shutil

import pytest
from small_runs import (
    everything_in,
    in_new_process,
    largest_difference,
    last_checkpoint,
    read_metrics,
)

from trainers.run import RunDirectory

pytestmark = pytest.mark.slow

TWO = "training.devices=[CPU:0,CPU:1]"
# Sums in another order differ in their last digits, and Adam divides by the size of each gradient,
# however small: with an epsilon of 1e-9 noise in a gradient of noise becomes a step of full size.
CHANGES = [
    "training.adam_epsilon=0.1",
    "training.checkpoint_every_steps=3",
    "training.validate_every_steps=3",
    "training.log_every_steps=1",
    "training.validation_bleu_sentences=3",
    "model.dropout=0.0",
]
TOLERANCE = 1e-5


def run_command(recipe_path, run, *changes):
    done = in_new_process(
        *("-m", "keras_transformer", "train", recipe_path, "--run-dir", run, *CHANGES, *changes)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return RunDirectory(run)


@pytest.fixture(scope="module")
def one(recipe_path, tmp_path_factory):
    """6 steps on one device."""
    return run_command(recipe_path, tmp_path_factory.mktemp("one") / "run", "training.steps=6")


@pytest.fixture(scope="module")
def two(recipe_path, tmp_path_factory):
    """3 steps on two devices."""
    return run_command(recipe_path, tmp_path_factory.mktemp("two") / "run", TWO, "training.steps=3")


def at_step(run, step, tmp_path):
    """What the checkpoint of a step holds."""
    copy = RunDirectory(tmp_path / f"until-{step}")
    source = run.checkpoints().path(step)
    shutil.copytree(source, copy.checkpoints().path(step))
    return everything_in(last_checkpoint(copy)[0])


def test_three_steps_give_the_weights_of_one_device(one, two, tmp_path):
    first, second = at_step(one, 3, tmp_path / "one"), at_step(two, 3, tmp_path / "two")
    start = at_step(one, 6, tmp_path / "one")
    moved = largest_difference(
        *({n: a for n, a in each.items() if "optimizer" not in n} for each in (first, start))
    )
    difference = largest_difference(first, second)
    print(f"moved {moved:.3g}, largest difference {difference:.3g}")
    assert moved > 100 * TOLERANCE
    assert difference <= TOLERANCE


def test_the_figures_logged_are_those_of_one_device(one, two):
    for line, expected in zip(read_metrics(two), read_metrics(one), strict=False):
        assert expected.keys() <= line.keys()
        for name in expected.keys() - {"target_tokens_per_second", "padding"}:
            assert line[name] == pytest.approx(expected[name], rel=1e-4), (line, name)


@pytest.mark.parametrize("devices", [["training.devices=null"], [TWO]], ids=["one", "two"])
def test_a_run_on_two_devices_goes_on_on_one_and_on_two(recipe_path, one, two, devices, tmp_path):
    run = shutil.copytree(two.path, tmp_path / "run")
    resumed = run_command(recipe_path, run, "training.steps=6", *devices)
    first, second = (everything_in(last_checkpoint(each)[0]) for each in (one, resumed))
    assert int(second["optimizer/iteration"]) == 6
    difference = largest_difference(first, second)
    print(f"largest difference after 6 steps {difference:.3g}")
    assert difference <= TOLERANCE
    steps = [line["step"] for line in read_metrics(resumed) if "loss" in line]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_run_on_one_device_goes_on_on_two(recipe_path, one, tmp_path):
    run = RunDirectory(shutil.copytree(one.path, tmp_path / "run"))
    run_command(recipe_path, run.path, "training.steps=7", TWO)
    model, state = last_checkpoint(run)
    assert state["step"] == int(model.optimizer.iterations) == 7


def test_the_model_of_two_devices_translates_on_one(two):
    found = two.load_translator().translate(["one two three"])
    assert len(found) == 1


def test_a_device_that_does_not_exist_ends_the_command_with_one_line(recipe_path, tmp_path):
    done = in_new_process(
        *("-m", "keras_transformer", "train", recipe_path, "--run-dir", tmp_path / "run"),
        *(*CHANGES, "training.devices=[GPU:9]"),
    )
    assert done.returncode == 2
    assert done.stderr.strip().split("\n")[-1].endswith("Received: GPU:9")
