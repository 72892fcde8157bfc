"""Every example in a docstring of the three packages runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import keras
import pytest

import keras_transformer

ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("keras_transformer", "trainers", "export")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__main__.py"  # Importing it would run the command line.
]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(1)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    report = []
    for example in doctest.DocTestFinder().find(importlib.import_module(name), name):
        runner.run(example, out=report.append)
    assert not runner.failures, "".join(report)


def test_the_public_names_have_examples():
    finder = doctest.DocTestFinder(recurse=False)
    without = [
        name
        for name in keras_transformer.__all__
        if name != "InputError"
        and not any(test.examples for test in finder.find(getattr(keras_transformer, name)))
    ]
    assert without == []
