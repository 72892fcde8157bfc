import subprocess
import sys

import pytest

from keras_transformer.errors import InputError
from trainers.run_lock import run_lock

HOLDER = """
import sys, pathlib
from trainers.run_lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        message = "must not be in use. Received: .*another process"
        with pytest.raises(InputError, match=message), run_lock(tmp_path):
            pass
    finally:
        holder.kill()  # as hard as a process can end
        holder.wait()
    with run_lock(tmp_path):
        pass


def test_a_run_that_has_ended_can_be_started_again(tmp_path):
    for _ in range(2):
        with run_lock(tmp_path):
            pass


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    message = "must be a folder. Received: .*missing"
    with pytest.raises(InputError, match=message), run_lock(tmp_path / "missing"):
        pass
