"""What a checkpoint holds: another process reads it and goes on as if nothing had happened."""

import json
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from small_models import small_batch, small_model
from small_runs import everything_in, in_new_process, largest_difference

from keras_transformer import SmoothedCrossEntropy, TransformerSchedule
from keras_transformer.errors import InputError
from trainers.checkpoints import Checkpoints

SCRIPT = Path(__file__).with_name("save_and_go_on.py")
KINDS = ("average dropout", "average scale dropout")


def compiled(use_ema=True, scaled=False, momentum=0.7):
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    optimizer = keras.optimizers.Adam(
        TransformerSchedule(16, 4), use_ema=use_ema, ema_momentum=momentum
    )
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, loss=SmoothedCrossEntropy(0.1), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def run_script(role, devices, folder, *kinds):
    done = in_new_process(SCRIPT, role, devices, folder, *kinds)
    assert done.returncode == 0, done.stderr[-3000:]


def arrays(path):
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(scope="module")
def saved_by_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    run_script("save", 1, folder, *KINDS)
    run_script("load", 1, folder, *KINDS)
    return folder


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    run_script("save", 2, folder, *KINDS, "average")
    run_script("load", 2, folder, *KINDS)
    run_script("load", 1, folder, *KINDS, "average")
    return folder


@pytest.mark.slow
class TestInAnotherProcess:
    """Weights, Adam's slots and step, averages, loss scale, seeds; saved after 8 batches of 9."""

    @pytest.mark.parametrize("devices", [1, 2])
    @pytest.mark.parametrize("kind", KINDS)
    def test_everything_is_there_and_the_next_update_is_the_same(self, request, devices, kind):
        number = {1: "one", 2: "two"}[devices]
        folder = request.getfixturevalue(f"saved_by_{number}") / kind
        saved = arrays(folder / "saved.npz")
        names = {name.split(" ")[1].rsplit("_", 1)[-1] for name in saved}
        assert {"iteration", "momentum", "velocity", "average", "state"} <= names
        assert ({"scale", "counter"} <= names) == ("scale" in kind)
        assert largest_difference(saved, arrays(folder / f"loaded-{devices}.npz")) == 0
        after, expected = arrays(folder / f"next-{devices}.npz"), arrays(folder / "next.npz")
        assert largest_difference(saved, expected) > 1e-3
        assert largest_difference(after, expected) <= 1e-6

    def test_the_loss_scale_had_fallen_and_risen(self, saved_by_one):
        saved = arrays(saved_by_one / "average scale dropout" / "saved.npz")
        (scale,) = (value for name, value in saved.items() if name.endswith("dynamic_scale"))
        (counter,) = (value for name, value in saved.items() if name.endswith("step_counter"))
        # The inner optimizer's step, since the outer one has one that stays 0.
        steps = max(value for name, value in saved.items() if name.endswith("iteration"))
        # 3 of 8 batches overflowed; after 3 others the scale was doubled.
        assert (scale, counter, steps) == (2.0**17, 2, 5)

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_two_devices_saved_is_whole_on_one(self, saved_by_two, kind):
        folder = saved_by_two / kind
        assert (
            largest_difference(arrays(folder / "saved.npz"), arrays(folder / "loaded-1.npz")) == 0
        )

    def test_without_dropout_one_device_goes_on_as_the_two_would(self, saved_by_two):
        after, expected = (
            arrays(saved_by_two / "average" / name) for name in ("next-1.npz", "next.npz")
        )
        after = {name: value for name, value in after.items() if "seed" not in name}
        expected = {name: value for name, value in expected.items() if "seed" not in name}
        assert largest_difference(after, expected) <= 1e-3  # Adam divides by what is almost 0

    @pytest.mark.parametrize("number", ["one", "two"])
    def test_averages_are_those_of_the_weights_after_each_update(self, request, number):
        folder = request.getfixturevalue(f"saved_by_{number}") / "average dropout"
        found = [
            value
            for name, value in arrays(folder / "next.npz").items()
            if name.endswith("_average")
        ]
        weights = list(arrays(folder / "history.npz").values())
        assert len(found) == len(weights) == 31
        for average, (first, *others) in zip(found, weights, strict=True):
            for weight in others:
                first = 0.7 * first + 0.3 * weight
            np.testing.assert_allclose(average, first, atol=1e-6)


def test_the_optimizer_is_what_it_was(tmp_path):
    model = compiled(scaled=True)
    model.optimizer.inner_optimizer.global_clipnorm = 0.5
    Checkpoints(tmp_path).save(model, 1, {})
    loaded, _ = Checkpoints(tmp_path).load_latest()
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.optimizer.inner_optimizer.global_clipnorm == 0.5
    assert loaded.optimizer.inner_optimizer.use_ema


class TestExponentialAverage:
    @pytest.mark.parametrize("scaled", [False, True])
    def test_it_has_the_averages_in_the_place_of_the_weights(self, tmp_path, scaled):
        model = compiled(scaled=scaled)
        inputs, labels = small_batch()
        averages = None
        for _ in range(3):
            model.train_on_batch(inputs, labels)
            now = [weight.numpy() for weight in model.trainable_weights]
            averages = averages or now
            averages = [0.7 * a + 0.3 * w for a, w in zip(averages, now, strict=True)]
        Checkpoints(tmp_path).save(model, 3, {})
        mean = Checkpoints(tmp_path).exponential_average()
        assert getattr(mean, "optimizer", None) is None
        for found, expected in zip(mean.trainable_weights, averages, strict=True):
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
        differences = [np.abs(a - w).max() for a, w in zip(averages, now, strict=True)]
        assert max(differences) > 1e-3
        # The checkpoint itself has the weights that training goes on from.
        loaded, _ = Checkpoints(tmp_path).load_latest()
        assert largest_difference(everything_in(loaded), everything_in(model)) == 0

    def test_it_is_that_of_the_last_checkpoint_and_before_the_first_update_the_weights(
        self, tmp_path
    ):
        model = compiled()
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(model, 0, {})
        for found, expected in zip(
            checkpoints.exponential_average().get_weights(), model.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        model.train_on_batch(*small_batch())
        checkpoints.save(model, 1, {})
        # After one update the average is the weights after it.
        for found, expected in zip(
            checkpoints.exponential_average().get_weights(), model.get_weights(), strict=True
        ):
            np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_a_run_without_averages_is_refused(self, tmp_path):
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        with pytest.raises(InputError, match="from a checkpoint. Received: .*has none$"):
            checkpoints.exponential_average()
        checkpoints.save(compiled(use_ema=False), 1, {})
        with pytest.raises(InputError, match="must hold a moving average.*Received: one without$"):
            checkpoints.exponential_average()


@pytest.fixture(scope="module")
def model():
    return compiled(use_ema=False)


@pytest.fixture
def checkpoints(model, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (20, 40):
        checkpoints.save(model, step, {"step": step})
    return checkpoints


def cut(path: Path):
    path.write_bytes(path.read_bytes()[:-5000])


def flip(path: Path):
    """One bit of the weights, which HDF5 would read without a word."""
    with zipfile.ZipFile(path) as archive:
        inside = archive.getinfo("model.weights.h5").header_offset + 100_000
    content = bytearray(path.read_bytes())
    content[inside] ^= 64
    path.write_bytes(content)


class TestDamage:
    @pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"")])
    def test_the_file_is_named_and_what_to_do(self, checkpoints, damage):
        newest = checkpoints.path(40)
        damage(newest / "model.keras")
        with pytest.raises(InputError) as caught:
            checkpoints.load_latest()
        message = str(caught.value)
        assert message.startswith(f"Delete the folder {newest} to go on from step 20. ")
        assert f"{newest / 'model.keras'} must be a whole model file. Received: " in message
        assert "\n" not in message

    def test_the_advice_works(self, checkpoints):
        newest = checkpoints.path(40)
        (newest / "state.json").write_text('{"step"')
        with pytest.raises(InputError, match=f"Delete the folder {newest} .*state.json must be"):
            checkpoints.load_latest()
        for file in newest.iterdir():
            file.unlink()
        newest.rmdir()
        assert checkpoints.load_latest()[1] == {"step": 20}
        (checkpoints.path(20) / "state.json").write_text("[]")
        with pytest.raises(InputError, match="step-00000020 to begin anew. .*Received"):
            checkpoints.load_latest()

    def test_half_a_folder_is_no_checkpoint(self, checkpoints, model):
        (checkpoints.path(40) / "model.keras").unlink()
        assert checkpoints.steps() == [20]
        assert checkpoints.load_latest()[1] == {"step": 20}
        checkpoints.save(model, 40, {"step": 41})
        assert checkpoints.load_latest()[1] == {"step": 41}
        state = json.loads((checkpoints.path(40) / "state.json").read_text())
        assert state["step"] == 41
