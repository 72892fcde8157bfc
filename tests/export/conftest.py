"""What several tests of exports need: the C program, and a host that has no compiler for it."""

import shutil

import numpy as np
import pytest
from planted_exports import save

from export.c_program import c_program
from export.c_program import run_in_c as run_rows_in_c
from export.checking import gates_running
from export.session import ExportSession


@pytest.fixture(scope="session")
def run_in_c():
    """`run_in_c(path, signature, texts, ...)`: the C program's outputs as lists of str and float.

    Each of the signature's inputs has a list of texts; all run in one batch.
    """
    program = c_program()
    assert program is not None, "the tests need a C compiler"

    def run(path, signature, *columns):
        (outputs,) = run_rows_in_c(program, path, signature, list(zip(*columns, strict=True)), 1000)
        return {name: _as_list(value) for name, value in outputs.items()}

    return run


def _as_list(value):
    if value.dtype == object and value.size:
        value = np.vectorize(bytes.decode, [object])(value)
    return value.tolist()


@pytest.fixture
def no_compiler(monkeypatch):
    """Leaves out the C loader, whose processes take longer than all the other gates."""
    monkeypatch.setattr(gates_running, "c_program", lambda: None)


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """Path of a planted export without a fault; tests copy it before they change it."""
    return save(tmp_path_factory.mktemp("good") / "1")


@pytest.fixture
def copy(good, tmp_path):
    """Path of a copy of it."""
    return shutil.copytree(good, tmp_path / "1")


@pytest.fixture(scope="session")
def session(numbers_export):
    """The export of `numbers_export` in a session, as a server has it."""
    session = ExportSession(numbers_export)
    yield session
    session.close()
