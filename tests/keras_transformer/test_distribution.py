"""One replica and two, on the same global batches: the same weights, the same figures shown."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy_reference import mean_loss

import keras_transformer

HERE = Path(__file__).parent
# Number of batches of each case of `train_on_replicas.py`.
CASES = {"odd": 1, "ragged": 1, "empty replica": 1, "three steps": 3}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    output = tmp_path_factory.mktemp("replicas") / "results.npz"
    root = Path(keras_transformer.__file__).parents[1]
    path = os.pathsep.join([str(root), str(HERE.parent)])
    done = subprocess.run(
        [sys.executable, str(HERE / "train_on_replicas.py"), str(output)],
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(output)


@pytest.mark.parametrize("case", CASES)
def test_two_replicas_train_to_the_weights_of_one(trained, case):
    one, two = (trained[f"{case}/{replicas}/weights"] for replicas in (1, 2))
    assert np.abs(one - trained["start"]).max() > 1e-2
    np.testing.assert_allclose(two, one, atol=1e-5)


def test_clipping_is_of_the_sum_of_the_replicas(trained):
    one, two = (trained[f"clipped/{replicas}/weights"] for replicas in (1, 2))
    # A gradient of norm 0.1 at rate 0.5.
    assert np.linalg.norm(one - trained["start"]) == pytest.approx(0.05, rel=1e-3)
    np.testing.assert_allclose(two, one, atol=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_shown_is_the_mean_over_all_tokens_of_all_replicas(trained, case, replicas):
    total = plain_total = tokens = 0
    for i in range(CASES[case]):
        logits = trained[f"{case}/logits_{i}"]
        labels = trained[f"{case}/labels_{i}"]
        number = np.count_nonzero(labels)
        total += number * mean_loss(logits, labels, 0.1)
        plain_total += number * mean_loss(logits, labels, 0.0)
        tokens += number
    expected = {"val_loss": total / tokens, "val_perplexity": np.exp(plain_total / tokens)}
    if CASES[case] == 1:  # the only training step, from the same weights
        expected.update(loss=expected["val_loss"], perplexity=expected["val_perplexity"])
    for name, value in expected.items():
        shown = trained[f"{case}/{replicas}/{name}"]
        np.testing.assert_allclose(shown, value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["loss", "perplexity", "gradient_norm"])
@pytest.mark.parametrize("case", CASES)
def test_two_replicas_show_the_figures_of_one(trained, case, name):
    one, two = (trained[f"{case}/{replicas}/{name}"] for replicas in (1, 2))
    np.testing.assert_allclose(two, one, rtol=1e-5)
