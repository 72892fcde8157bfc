"""Fixtures of the tests of the command line."""

import functools
import json
import shutil

import pytest
from command_lines import READ_AS
from small_translators import SENTENCES

from export import loaded
from keras_transformer.cli import main
from trainers.run import RunDirectory


@pytest.fixture(scope="module")
def models_are_loaded_once():
    """Or most of the time would go into loading the same models again for each command."""
    load, kept = RunDirectory.load_translator, {}

    def load_once(run, beam_size=None, alpha=None):
        decoding = run.load_recipe().decoding
        beam_size = decoding.beam_size if beam_size is None else beam_size
        alpha = decoding.alpha if alpha is None else alpha
        key = (run.path, beam_size, alpha)
        if key not in kept:
            kept[key] = load(run, beam_size=beam_size, alpha=alpha)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "load_translator", load_once)
        patch.setattr(loaded, "ExportedTranslator", functools.cache(loaded.ExportedTranslator))
        yield


@pytest.fixture
def run_command(capfd):
    """`run_command(*words)`: exit code, stdout and stderr of a command in this process."""

    def run(*words):
        capfd.readouterr()
        code = main([str(word) for word in words])
        return (code, *capfd.readouterr())

    return run


@pytest.fixture
def read_json(run_command):
    """`read_json(*words)`: the one JSON object that a command prints."""

    def run(*words):
        code, output, errors = run_command(*words, "--json")
        assert code == 0, errors
        assert output.endswith("\n") and output.count("\n") == 1
        value = json.loads(output)
        assert isinstance(value, dict)
        return value

    return run


@pytest.fixture
def refuse(run_command):
    """`refuse(*words)`: the one line on stderr of a command that ends with code 2."""

    def run(*words):
        code, output, errors = run_command(*words)
        assert (code, output) == (2, "")
        assert errors.startswith("keras-transformer: ") and errors.count("\n") == 1
        assert "Received: " in errors
        return errors

    return run


@pytest.fixture(scope="module")
def expected(numbers_run):
    """What Python translates, by the run's recipe."""
    texts = [*SENTENCES, *READ_AS]
    return dict(zip(texts, numbers_run.load_translator().translate(texts), strict=True))


@pytest.fixture
def copied_run(numbers_run, tmp_path):
    return RunDirectory(shutil.copytree(numbers_run.path, tmp_path / "run"))
