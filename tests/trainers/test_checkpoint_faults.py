"""Checkpoints where the process dies or the disk is full: the earlier ones are always intact."""

import contextlib
import json
import os
import shutil
import signal
import zipfile
from pathlib import Path

import keras
import pytest
from full_disk import no_file_above
from small_models import small_model

from keras_transformer import SmoothedCrossEntropy
from keras_transformer.errors import InputError
from trainers.checkpoints import Checkpoints, save_model


@pytest.fixture(scope="module")
def model():
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    model.compile(keras.optimizers.Adam(0.001), loss=SmoothedCrossEntropy(0.1))
    model.optimizer.build(model.trainable_variables)
    return model


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the code under test runs after it."""


# Each call that changes what is on the disk, as `Checkpoints` makes them.
CHANGES = [
    (os, "posix_fallocate"),
    (os, "fsync"),
    (shutil, "rmtree"),
    (os, "unlink"),
    (os, "rmdir"),
    (os, "mkdir"),
    (os, "rename"),
]


class KilledAt:
    """Dies before the change number `last` that is made to the disk."""

    def __init__(self, monkeypatch, last: int):
        self.made, self.last = 0, last
        for module, name in CHANGES:
            monkeypatch.setattr(module, name, self.counted(getattr(module, name)))

    def counted(self, function):
        def call(*arguments, **options):
            if self.made == self.last:
                raise Killed
            self.made += 1
            return function(*arguments, **options)

        return call


class TestKills:
    def test_at_no_moment_is_a_checkpoint_lost_or_half(self, model, tmp_path, monkeypatch):
        """The third of two that are kept: it is written, and the first is removed."""
        for step in (1, 2):
            Checkpoints(tmp_path / "before", keep=2).save(model, step, {"step": step})
        states = set()
        for last in range(200):
            folder = shutil.copytree(tmp_path / "before", tmp_path / str(last))
            checkpoints = Checkpoints(folder, keep=2)
            with monkeypatch.context() as patched:
                killer = KilledAt(patched, last)
                with contextlib.suppress(Killed):
                    checkpoints.save(model, 3, {"step": 3})
            steps = checkpoints.steps()
            assert steps in ([1, 2], [1, 2, 3], [2, 3]), killer.made
            for step in steps:
                with zipfile.ZipFile(checkpoints.path(step) / "model.keras") as archive:
                    assert archive.testzip() is None
                state = json.loads((checkpoints.path(step) / "state.json").read_text())
                assert state["step"] == step
            states.add(tuple(steps))
            if killer.made < killer.last:  # it was done before
                break
            checkpoints.save(model, 4, {"step": 4})
            left = [*steps, 4][-2:]
            assert names(folder) == [f"step-{step:08d}" for step in left]
        assert last >= 10 and states == {(1, 2), (1, 2, 3), (2, 3)}

    def test_half_of_a_removed_one_counts_for_nothing(self, model, tmp_path, monkeypatch):
        checkpoints = Checkpoints(tmp_path, keep=1)
        checkpoints.save(model, 1, {})
        remove = shutil.rmtree

        def half(path, **options):
            if tmp_path not in Path(path).parents:
                return remove(path, **options)
            (path / "model.keras").unlink()
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", half)
            with pytest.raises(Killed):
                checkpoints.save(model, 2, {})
        assert names(tmp_path) == [".removing-step-00000001", "step-00000002"]
        assert checkpoints.steps() == [2]


class TestFullDisk:
    @pytest.mark.parametrize("size", [0, 100, 30_000, 150_000])
    @pytest.mark.parametrize("into_memory", [True, False])
    def test_earlier_ones_are_intact(self, model, tmp_path, monkeypatch, size, into_memory):
        # Where memory is short, Keras has HDF5 write straight to the disk.
        monkeypatch.setattr(
            keras.src.saving.saving_lib, "is_memory_sufficient", lambda model: into_memory
        )
        checkpoints = Checkpoints(tmp_path, keep=1)
        checkpoints.save(model, 1, {"step": 1})
        message = f"writable to {tmp_path}; .*the earlier ones are intact. Received: .Errno"
        with no_file_above(size), pytest.raises(InputError, match=message):
            checkpoints.save(model, 2, {"step": 2})
        assert names(tmp_path) == ["step-00000001"]
        assert checkpoints.load_latest()[1] == {"step": 1}
        checkpoints.save(model, 2, {"step": 2})
        assert checkpoints.load_latest()[1] == {"step": 2}

    def test_the_disk_fills_up_while_keras_writes(self, model, tmp_path, monkeypatch):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(model, 1, {})
        monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: None)
        with no_file_above(30_000), pytest.raises(InputError, match="intact. Received: .Errno"):
            checkpoints.save(model, 2, {})
        assert names(tmp_path) == ["step-00000001"]

    def test_what_hdf5_raises_is_one_line(self, model, tmp_path, monkeypatch):
        def save(self, path):
            path.write_bytes(b"half")
            raise RuntimeError("Unable to flush file (file write failed: time = now\n, more)")

        monkeypatch.setattr(keras.Model, "save", save)
        monkeypatch.setattr(keras.Model, "save_weights", save)
        with pytest.raises(InputError, match="Received: Unable to flush .* time = now$"):
            Checkpoints(tmp_path / "checkpoints").save(model, 2, {})
        with pytest.raises(InputError, match="model.keras. Received: Unable to flush"):
            save_model(model, tmp_path / "model.keras")
        assert names(tmp_path) == ["checkpoints"] and names(tmp_path / "checkpoints") == []

    def test_the_averaged_model_is_kept(self, model, tmp_path):
        path = tmp_path / "model.keras"
        save_model(model, path)
        whole = path.read_bytes()
        with no_file_above(1000), pytest.raises(InputError, match=f"writable to {path}. Received"):
            save_model(model, path)
        assert names(tmp_path) == ["model.keras"] and path.read_bytes() == whole


def test_a_limit_of_file_sizes_does_not_end_the_process():
    """What the tests above rest on: Python leaves it at an error."""
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
