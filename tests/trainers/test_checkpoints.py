"""Checkpoints: whole or not there, exact when loaded, and their mean."""

import json

import keras
import numpy as np
import pytest
from small_models import POLICIES, small_batch, small_model
from small_runs import everything_in, largest_difference

from keras_transformer import SmoothedCrossEntropy, TransformerSchedule
from keras_transformer.errors import InputError
from trainers.checkpoints import Checkpoints, load_model, save_model


def compiled(dtype=None, **changes):
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = small_model(dtype, **{**layers, **changes})
    model.compile(
        keras.optimizers.Adam(TransformerSchedule(16, 4), 0.9, 0.98, epsilon=1e-9),
        loss=SmoothedCrossEntropy(0.1),
    )
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def model():
    return compiled(dropout=0.1)


def set_all(model, value):
    for weight in model.trainable_weights:
        weight.assign(np.full(weight.shape, value))


class TestSaving:
    def test_the_last_ones_are_kept_and_others_are_none_of_its_business(self, model, tmp_path):
        checkpoints = Checkpoints(tmp_path / "new" / "checkpoints", keep=2)
        for step in (2, 10, 100_000_000):
            checkpoints.save(model, step, {})
        (checkpoints.directory / "notes").mkdir()
        (checkpoints.directory / "step-12").mkdir()
        (checkpoints.directory / "step-00000012.old").mkdir()
        assert checkpoints.steps() == [10, 100_000_000]
        assert sorted(path.name for path in checkpoints.path(10).iterdir()) == [
            "model.keras",
            "state.json",
        ]

    def test_a_step_that_is_there_is_left_as_it_is(self, model, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        for number in (1, 2):
            checkpoints.save(model, 7, {"number": number})
        assert checkpoints.load_latest()[1] == {"number": 1}

    def test_what_a_killed_process_left_is_ignored_and_then_removed(self, model, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(model, 3, {})
        for step in (4, 9):
            half = tmp_path / f".writing-step-{step:08d}"
            half.mkdir()
            (half / "model.keras").write_bytes(b"half")
        assert checkpoints.steps() == [3]
        assert checkpoints.load_latest() is not None
        assert checkpoints.average(1) is not None
        checkpoints.save(model, 5, {})
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "step-00000003",
            "step-00000005",
        ]

    def test_where_writing_fails_earlier_checkpoints_are_intact(self, model, tmp_path, monkeypatch):
        checkpoints = Checkpoints(tmp_path, keep=1)
        checkpoints.save(model, 3, {"step": 3})

        def save(self, path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(keras.Model, "save", save)
        with pytest.raises(InputError, match="must be writable to .*earlier.*No space left"):
            checkpoints.save(model, 4, {"step": 4})
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
        assert checkpoints.load_latest()[1] == {"step": 3}

    def test_a_file_in_the_place_of_the_folder_is_named(self, model, tmp_path):
        (tmp_path / "checkpoints").touch()
        with pytest.raises(InputError, match="must be writable to .*checkpoints.*Received"):
            Checkpoints(tmp_path / "checkpoints").save(model, 1, {})

    def test_a_model_is_written_aside_and_renamed(self, model, tmp_path, monkeypatch):
        path = tmp_path / "model.keras"
        save_model(model, path)
        whole = path.read_bytes()
        assert list(tmp_path.iterdir()) == [path]

        def save(self, path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(keras.Model, "save_weights", save)
        with pytest.raises(InputError, match="model.keras.*Received.*No space left"):
            save_model(model, path)
        assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == whole


class TestLoading:
    def test_without_a_checkpoint_there_is_nothing(self, tmp_path):
        assert Checkpoints(tmp_path / "missing").load_latest() is None
        assert Checkpoints(tmp_path / "missing").steps() == []

    def test_the_next_update_is_the_one_without_the_break(self, tmp_path):
        model = compiled(dropout=0.3)
        inputs, labels = small_batch()
        for _ in range(2):
            model.train_on_batch(inputs, labels)
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(model, 2, {"seconds": 1.5})
        saved = everything_in(model)
        loaded, state = checkpoints.load_latest()
        assert state == {"seconds": 1.5}
        assert largest_difference(saved, everything_in(loaded)) == 0
        assert int(loaded.optimizer.iterations) == 2
        assert loaded.optimizer.learning_rate == model.optimizer.learning_rate
        for each in (model, loaded):
            each.train_on_batch(inputs, labels)
        assert largest_difference(saved, everything_in(model)) > 1e-3
        assert largest_difference(everything_in(model), everything_in(loaded)) <= 1e-6

    def test_seeds_are_in_the_state_since_keras_does_not_save_them(self, model, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(model, 1, {})
        state = json.loads((checkpoints.path(1) / "state.json").read_text())
        seeds = [v.numpy().tolist() for v in model.non_trainable_variables]
        assert state == {"seeds": seeds} and len(seeds) == 7
        alone = keras.models.load_model(checkpoints.path(1) / "model.keras")
        assert [v.numpy().tolist() for v in alone.non_trainable_variables] != seeds

    @pytest.mark.parametrize("text", ["", "{", "{}", '{"seeds": []}'])
    def test_a_damaged_state_is_named(self, model, tmp_path, text):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(model, 1, {})
        (checkpoints.path(1) / "state.json").write_text(text)
        with pytest.raises(InputError, match=r"state\.json must be .*Received: \S"):
            checkpoints.load_latest()


class TestAveraging:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_the_mean_of_equal_checkpoints_is_the_model_itself(self, tmp_path, policy):
        model = compiled(policy)
        checkpoints = Checkpoints(tmp_path)
        for step in (1, 2, 3):
            checkpoints.save(model, step, {})
        mean = checkpoints.average(3)
        assert mean.policy.name == policy
        for weight, same in zip(model.weights, mean.weights, strict=True):
            assert weight.dtype == same.dtype
            np.testing.assert_array_equal(weight.numpy(), same.numpy())
        assert getattr(mean, "optimizer", None) is None

    def test_it_is_the_float64_mean_of_the_last_ones(self, model, tmp_path):
        random = np.random.default_rng(1)
        checkpoints = Checkpoints(tmp_path)
        saved = []
        for step in range(4):
            for weight in model.trainable_weights:
                weight.assign(random.normal(0, 1, weight.shape))
            saved.append([w.numpy().astype("float64") for w in model.trainable_weights])
            checkpoints.save(model, step, {})
        mean = checkpoints.average(3)
        for number, weight in enumerate(mean.trainable_weights):
            expected = np.mean([weights[number] for weights in saved[1:]], axis=0)
            np.testing.assert_array_equal(weight.numpy(), expected.astype("float32"))

    def test_sums_are_not_rounded_to_float32(self, model, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        for step, value in enumerate((1e8, 1.0, -1e8)):
            set_all(model, value)
            checkpoints.save(model, step, {})
        for weight in checkpoints.average(3).trainable_weights:
            np.testing.assert_allclose(weight.numpy(), 1 / 3, rtol=1e-6)

    def test_seeds_are_not_averaged(self, model, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        for step, value in ((1, 2), (2, 4)):
            for seed in model.non_trainable_variables:
                seed.assign([4_000_000_000, value])
            checkpoints.save(model, step, {})
        found = [seed.numpy().tolist() for seed in checkpoints.average(2).non_trainable_variables]
        assert [4_000_000_000, 3] not in found

    @pytest.mark.parametrize("last", [0, 3, -1])
    def test_a_number_that_there_is_not_is_refused(self, model, tmp_path, last):
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        for step in (1, 2):
            checkpoints.save(model, step, {})
        with pytest.raises(InputError, match=f"has 2 checkpoints.*Received: {last}$"):
            checkpoints.average(last)
        with pytest.raises(InputError, match="must have checkpoints.*which has none$"):
            Checkpoints(tmp_path / "missing").average(last)

    @pytest.mark.parametrize("change", [{"d_ff": 20}, {"num_decoder_layers": 2}])
    def test_models_of_other_shapes_are_refused(self, model, tmp_path, change):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(model, 1, {})
        checkpoints.save(compiled(**change), 2, {})
        with pytest.raises(InputError, match="equal shapes.*Received: others at step 2"):
            checkpoints.average(2)


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_model_file_is_named(tmp_path, damage):
    path = tmp_path / "model.keras"
    if damage is None:
        path.mkdir()
    else:
        path.write_bytes(damage)
    with pytest.raises(InputError, match=r"model\.keras must be a whole model file\. Received: \S"):
        load_model(path)
