import os

import pytest

from keras_transformer.folder_lock import folder_lock


def test_a_folder_is_held_by_one_and_let_go(tmp_path):
    with folder_lock(tmp_path), pytest.raises(BlockingIOError), folder_lock(tmp_path):
        pytest.fail("held twice")
    with pytest.raises(ZeroDivisionError), folder_lock(tmp_path):
        raise ZeroDivisionError
    before = len(os.listdir("/proc/self/fd"))
    with folder_lock(tmp_path):
        assert not list(tmp_path.iterdir())  # nothing is written into it
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_folder_cannot_be_held(tmp_path):
    with pytest.raises(FileNotFoundError), folder_lock(tmp_path / "nothing"):
        pytest.fail("held")
