"""Replicas, worker processes and accumulation: the same five batches, the same weights and loss."""

import sys
from pathlib import Path

import numpy as np
import pytest
from small_runs import environment, in_new_process

from trainers.launch import launch

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "train_five_steps.py"
# Each place by name: logical replicas, or worker processes on the loopback interface.
PLACES = {"2 replicas": "r2/2-0", "4 replicas": "r4/4-0"}
PLACES |= {f"worker {i} of {n}": f"w{n}/{n}-{i}" for n in (2, 3) for i in range(n)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    for replicas in (1, 2, 4):
        (folder / f"r{replicas}").mkdir()
        done = in_new_process(SCRIPT, folder / f"r{replicas}", replicas)
        assert done.returncode == 0, done.stderr[-3000:]
    for workers in (2, 3):
        (folder / f"w{workers}").mkdir()
        command = [sys.executable, str(SCRIPT), str(folder / f"w{workers}"), "1"]
        assert launch(command, workers, environment=environment()) == 0
    return folder


def results(folder, place: str, accumulate_steps: int) -> dict:
    loaded = np.load(folder / f"{place}.npz")
    names = ("start", "weights", "loss", "gradient_norm")
    return {name: loaded[f"{accumulate_steps}/{name}"] for name in names}


@pytest.mark.parametrize("accumulate_steps", [1, 2, 5])
@pytest.mark.parametrize("place", PLACES)
def test_every_place_ends_with_the_weights_and_loss_of_one_replica(folder, place, accumulate_steps):
    one = results(folder, "r1/1-0", 1)
    other = results(folder, PLACES[place], accumulate_steps)
    np.testing.assert_array_equal(one["start"], other["start"])
    assert np.abs(one["weights"] - one["start"]).max() > 1e-2
    difference = np.abs(one["weights"] - other["weights"]).max()
    print(f"{place}, {accumulate_steps} parts: weights {difference:.2g}")
    assert difference <= 1e-5
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("accumulate_steps", [2, 5])
def test_parts_of_a_batch_on_one_replica(folder, accumulate_steps):
    one, parts = results(folder, "r1/1-0", 1), results(folder, "r1/1-0", accumulate_steps)
    np.testing.assert_allclose(parts["weights"], one["weights"], atol=1e-5)
    np.testing.assert_allclose(parts["loss"], one["loss"], rtol=1e-5)
