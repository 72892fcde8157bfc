"""What is made once for all tests that want it."""

import shutil

import pytest
from small_translators import write_numbers_run

from export.saved_model import export_translator
from trainers.run import RunDirectory


@pytest.fixture(scope="session")
def numbers_run(tmp_path_factory):
    """`RunDirectory` of a small trained model; tests copy it before they change it."""
    return write_numbers_run(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="session")
def numbers_export(numbers_run, tmp_path_factory):
    """Path of version 1 of that run's export, moved away from a run that is no more."""
    folder = tmp_path_factory.mktemp("export")
    run = RunDirectory(shutil.copytree(numbers_run.path, folder / "run"))
    translator = run.load_translator()
    path = export_translator(translator, folder / "before", sample=("one two three", "six"))
    shutil.rmtree(run.path)
    shutil.move(folder / "before", folder / "after")
    return folder / "after" / path.name
