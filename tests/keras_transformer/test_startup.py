"""What happens before TensorFlow is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer import startup

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argv", "orig_argv", "expected"),
    [
        (["/usr/bin/keras-transformer", "translate"], ["python", "keras-transformer"], True),
        (["-m", "translate"], ["python", "-m", "keras_transformer", "translate"], True),
        (["-m", "translate"], ["python", "-X", "dev", "-m", "keras_transformer"], True),
        (["/some/where/export/beam.py", "--input"], ["python", "-m", "export.beam"], True),
        (["-m"], ["python", "-m", "pytest"], False),
        (["train.py", "keras-transformer"], ["python", "train.py", "keras_transformer"], False),
        ([""], ["python"], False),
        (["-c"], ["python", "-c", "import keras_transformer"], False),
    ],
)
def test_which_process_is_the_command_line(monkeypatch, argv, orig_argv, expected):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert startup.is_command_line() is expected


def forget_level(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # so that it is put back as it was
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")


def test_a_level_that_is_set_is_left_alone(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup2", lambda *arguments: pytest.fail("stderr was redirected"))
        startup.import_tensorflow_quietly()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


def test_stderr_is_back_after_the_import(monkeypatch, capfd):
    forget_level(monkeypatch)
    before = len(os.listdir("/proc/self/fd"))
    startup.import_tensorflow_quietly()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
    os.write(2, b"written past Python")
    assert capfd.readouterr().err == "written past Python"
    assert len(os.listdir("/proc/self/fd")) == before


def test_stderr_is_back_where_the_import_fails(monkeypatch, capfd):
    forget_level(monkeypatch)
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError):
        startup.import_tensorflow_quietly()
    os.write(2, b"written past Python")
    assert capfd.readouterr().err == "written past Python"


def test_the_command_line_says_nothing_of_tensorflow():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer", "--help"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: keras-transformer")
