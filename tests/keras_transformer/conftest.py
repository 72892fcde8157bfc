"""Fixtures of the tests of the command line and of translators."""

import functools
import json
import shutil

import pytest
from command_lines import READ_AS
from small_translators import MODEL_KINDS, SENTENCES, number_tokenizer, random_model

from export import loaded
from keras_transformer.cli import main
from keras_transformer.translator import Translator
from trainers.run import RunDirectory


@pytest.fixture(scope="module")
def models_are_loaded_once():
    """Or most of the time would go into loading the same models again for each command."""
    load, kept = RunDirectory.load_translator, {}

    def load_once(run, model=None, **decoding):
        if model is not None:
            return load(run, model, **decoding)
        section = run.load_recipe().decoding
        given = {name: value for name, value in decoding.items() if value is not None}
        settings = {"beam_size": section.beam_size, "alpha": section.alpha, **given}
        key = (run.path, *sorted(settings.items()))
        if key not in kept:
            kept[key] = load(run, **settings)
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


@pytest.fixture(scope="module")
def translator(numbers_run):
    return numbers_run.load_translator()


@pytest.fixture(scope="module")
def random_translators():
    """A translator of each kind, and one below float32."""
    shared, separate = number_tokenizer(), number_tokenizer(vocabulary_size=300, shared=False)
    result = {}
    for kind, changes in MODEL_KINDS.items():
        tokenizer = separate if kind == "two vocabularies" else shared
        result[kind] = Translator(random_model(tokenizer, **changes), tokenizer, 3, 0.6, 6)
    model = random_model(shared, dtype="mixed_bfloat16")
    result["mixed_bfloat16"] = Translator(model, shared, 3, 0.6, 6)
    return result
