"""Runs made of Marian checkpoints: what is in them, and what each command makes of them."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from full_disk import no_file_above
from marian_files import SHAPES, write_hugging_face, write_release
from small_runs import in_new_process, write_corpus

from keras_transformer.cli import main
from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint import read_marian
from trainers import imported
from trainers.imported import import_marian
from trainers.run import RunDirectory

CHECKPOINT = Path(__file__).parent.parent / "data" / "marian-en-de-tiny"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The real checkpoint as a run, which is only read."""
    path = tmp_path_factory.mktemp("imported") / "run"
    import_marian(CHECKPOINT, path)
    return RunDirectory(path)


@pytest.fixture(scope="module")
def unknown(tmp_path_factory):
    """A random checkpoint that does not tell its languages, as a run."""
    folder = tmp_path_factory.mktemp("unknown")
    write_hugging_face(folder / "checkpoint", SHAPES["swish"], seed=1)
    (folder / "checkpoint" / "tokenizer_config.json").unlink()
    import_marian(folder / "checkpoint", folder / "run")
    return folder / "run"


def head(name, lines=8):
    return (CHECKPOINT / name).read_text().split("\n")[:lines]


def refused(capsys, *words):
    """The one line of a command that ends with exit code 2."""
    assert main([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.strip().split("\n")[-1]
    assert "Received: " in line
    return line


class TestTheRun:
    def test_it_holds_a_recipe_a_tokenizer_and_a_model(self, run):
        names = {path.name for path in run.path.iterdir()}
        assert names == {"recipe.yaml", "tokenizer", "model.keras"}
        assert [path.name for path in run.path.parent.iterdir()] == ["run"]

    def test_the_recipe_says_what_the_checkpoint_does(self, run):
        recipe, checkpoint = run.load_recipe(), read_marian(CHECKPOINT)
        assert (recipe.data.source_language, recipe.data.target_language) == ("en", "de")
        assert recipe.data.train is None and recipe.training.steps is None
        assert recipe.tokenizer.kind == "marian" and recipe.tokenizer.shared
        size = recipe.tokenizer.vocabulary_size
        assert size == 4800 and recipe.transformer_config(size) == checkpoint.config
        settings = recipe.to_dict()["decoding"]
        assert settings == settings | checkpoint.decoding | {"suppressed_tokens": ["<pad>"]}

    def test_the_model_has_the_checkpoints_weights_and_loads_without_us(self, run):
        model = keras.models.load_model(run.model_path)
        expected = read_marian(CHECKPOINT).weights
        assert {variable.path for variable in model.trainable_variables} == set(expected)
        for variable in model.trainable_variables:
            np.testing.assert_array_equal(variable.numpy(), expected[variable.path])

    def test_the_command_says_what_it_has_made(self, tmp_path, capsys):
        words = ["import-marian", str(CHECKPOINT), "--run-dir", str(tmp_path / "run")]
        assert main([*words, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result == {
            "run_dir": str(tmp_path / "run"),
            "parameters": 2007744,
            "vocabulary_size": 4800,
            "source_vocabulary_size": None,
            "source_language": "en",
            "target_language": "de",
            "decoding": read_marian(CHECKPOINT).decoding,
        }

    @pytest.mark.parametrize("write", [write_hugging_face, write_release])
    @pytest.mark.parametrize("name", ["swish", "two vocabularies"])
    def test_both_forms_with_one_vocabulary_and_with_two(self, tmp_path, write, name):
        write(tmp_path / "checkpoint", SHAPES[name], seed=2)
        found = import_marian(tmp_path / "checkpoint", tmp_path / "run")
        checkpoint, run = read_marian(tmp_path / "checkpoint"), RunDirectory(tmp_path / "run")
        recipe, tokenizer = run.load_recipe(), run.load_tokenizer()
        assert (found["source_vocabulary_size"] is None) == recipe.tokenizer.shared
        assert recipe.tokenizer.shared == (name == "swish") == tokenizer.shared
        sizes = (found["vocabulary_size"], found["source_vocabulary_size"])
        assert recipe.transformer_config(*sizes) == checkpoint.config == run.load_model().config
        assert tokenizer.fingerprint == checkpoint.tokenizer.fingerprint
        assert len(run.load_translator(beam_size=2).translate(["a b", ""])) == 2

    def test_a_checkpoint_that_suppresses_nothing(self, tmp_path):
        decoding = {"bad_words_ids": None}
        write_hugging_face(tmp_path / "checkpoint", SHAPES["swish"], 2, decoding=decoding)
        import_marian(tmp_path / "checkpoint", tmp_path / "run")
        run = RunDirectory(tmp_path / "run")
        assert run.load_recipe().decoding.suppressed_tokens is None
        assert len(run.load_translator(beam_size=2).translate(["a b"])) == 1

    def test_languages_that_nobody_tells_are_null_and_can_be_given(self, unknown, tmp_path):
        data = RunDirectory(unknown).load_recipe().data
        assert data.source_language is data.target_language is None
        import_marian(unknown.parent / "checkpoint", tmp_path / "run", "sv", "fi")
        data = RunDirectory(tmp_path / "run").load_recipe().data
        assert (data.source_language, data.target_language) == ("sv", "fi")

    def test_punctuation_is_normalised_on_request(self, run, tmp_path):
        words = ["import-marian", str(CHECKPOINT), "--run-dir", str(tmp_path / "run")]
        assert main([*words, "--normalize-punctuation", "--source-language", "xx"]) == 0
        other = RunDirectory(tmp_path / "run")
        assert other.load_recipe().tokenizer.normalize_punctuation
        assert not run.load_recipe().tokenizer.normalize_punctuation
        plain, normalising = run.load_tokenizer(), other.load_tokenizer()
        assert plain.source.encode("„Yes“") != plain.source.encode('"Yes"')
        assert normalising.source.encode("„Yes“") == normalising.source.encode('"Yes"')
        assert (normalising.source.punctuation, normalising.target.punctuation) == ("xx", "de")


class TestNothingIsWrittenOverOrHalf:
    def test_a_run_that_is_there_is_refused_by_name(self, run, tmp_path, capsys):
        copy = shutil.copytree(run.path, tmp_path / "run")
        line = refused(capsys, "import-marian", CHECKPOINT, "--run-dir", copy)
        assert "--run-dir must be a new or an empty folder" in line
        assert line.endswith(f"Received: {copy}, which has model.keras")

    def test_a_file_is_refused(self, tmp_path, capsys):
        (tmp_path / "run").write_text("mine")
        line = refused(capsys, "import-marian", CHECKPOINT, "--run-dir", tmp_path / "run")
        assert line.endswith(f"Received: {tmp_path / 'run'}, a file")

    @pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
    def test_what_names_no_file_is_refused(self, tmp_path, capsys, name):
        line = refused(capsys, "import-marian", CHECKPOINT, "--run-dir", tmp_path / name)
        assert "--run-dir must be a new or an empty folder. Received: " in line

    def test_an_empty_folder_is_taken_and_folders_are_made(self, tmp_path, monkeypatch):
        (tmp_path / "empty").mkdir()
        import_marian(CHECKPOINT, tmp_path / "empty")
        monkeypatch.chdir(tmp_path)
        import_marian(CHECKPOINT, "runs/of/mine")
        assert RunDirectory("runs/of/mine").load_recipe() == RunDirectory("empty").load_recipe()

    def test_what_is_wrong_is_found_before_anything_is_written(self, tmp_path, capsys):
        checkpoint = shutil.copytree(CHECKPOINT, tmp_path / "checkpoint")
        config = json.loads((checkpoint / "config.json").read_text())
        (checkpoint / "config.json").write_text(json.dumps(config | {"normalize_before": True}))
        line = refused(capsys, "import-marian", checkpoint, "--run-dir", tmp_path / "run")
        assert "normalize_before" in line
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

    @pytest.mark.parametrize("most", [10_000, 1_000_000])
    def test_a_full_disk(self, tmp_path, capsys, most):
        with no_file_above(most):
            line = refused(capsys, "import-marian", CHECKPOINT, "--run-dir", tmp_path / "run")
        assert "must be writable to" in line and "File too large" in line
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_without_rights(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="A run must be writable to .*file/run. Received"):
            import_marian(CHECKPOINT, tmp_path / "file" / "run")

    def test_what_a_killed_import_left_is_removed(self, tmp_path, monkeypatch):
        def killed(model, path):
            path.write_bytes(b"half")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(imported, "save_model", killed)
            import_marian(CHECKPOINT, tmp_path / "run")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / ".importing-run").mkdir()
        (tmp_path / ".importing-run" / "half").write_text("")
        import_marian(CHECKPOINT, tmp_path / "run")
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
        assert not (tmp_path / "run" / "half").exists()


class TestTheCommands:
    def test_translate_and_evaluate(self, run, tmp_path, capsys):
        for name in ("source.en", "reference.de"):
            (tmp_path / name).write_text("\n".join(head(name)) + "\n")
        files = [str(tmp_path / name) for name in ("source.en", "reference.de")]
        assert main(["translate", str(run.path), "--input", files[0]]) == 0
        assert capsys.readouterr().out.split("\n")[:-1] == head("beam4.de")
        words = ["evaluate", str(run.path), "--source", files[0], "--reference", files[1], "--json"]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["sentences"] == 8

    def test_score(self, run, tmp_path, capsys):
        for name in ("source.en", "beam4.de"):
            (tmp_path / name).write_text("\n".join(head(name)) + "\n")
        files = ["--source", str(tmp_path / "source.en"), "--target", str(tmp_path / "beam4.de")]
        assert main(["score", str(run.path), *files]) == 0
        assert all(float(line) < 0 for line in capsys.readouterr().out.split("\n")[:-1])

    def test_evaluate_asks_for_what_the_run_does_not_know(self, run, unknown, tmp_path, capsys):
        line = refused(capsys, "evaluate", run.path)
        assert "evaluated on --source and --reference. Received: neither" in line
        (tmp_path / "a").write_text("a\n")
        files = ["--source", tmp_path / "a", "--reference", tmp_path / "a"]
        line = refused(capsys, "evaluate", unknown, *files)
        assert "--language must name the target language, which the imported run does not" in line
        assert main([str(w) for w in ("evaluate", unknown, *files, "--language", "fi")]) == 0

    @pytest.mark.slow
    def test_export_of_a_run_without_languages(self, unknown, tmp_path, capsys):
        words = ["export", str(unknown), "--output", str(tmp_path / "export")]
        assert main(words) == 0
        card = json.loads((tmp_path / "export/1/assets.extra/model_card.json").read_text())
        assert card["languages"] == {"source": None, "target": None} and card["bleu"] is None

    @pytest.mark.parametrize("words", [["average"], ["export", "--weights", "last", "--output"]])
    def test_there_are_no_checkpoints(self, run, tmp_path, capsys, words):
        command, *options = words
        options += [tmp_path / "export"] if options else []
        line = refused(capsys, command, run.path, *options)
        assert "an imported run has its model.keras alone. Received: " in line
        assert not (tmp_path / "export").exists()

    @pytest.mark.parametrize("command", ["train", "prepare"])
    def test_its_recipe_trains_nothing(self, run, tmp_path, capsys, command):
        line = refused(capsys, command, run.recipe_path, "--run-dir", tmp_path / "new")
        assert "data.train must be given, the pairs to learn from" in line
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_fine_tuning(run, tmp_path, capsys):
    write_corpus(tmp_path)
    splits = {"train": "train", "validation": "valid"}
    files = [
        f"data.{split}={{source: {tmp_path}/{name}.en, target: {tmp_path}/{name}.de}}"
        for split, name in splits.items()
    ]
    settings = [f"training.initial_run={run.path}", "training.steps=2", "data.test=null"]
    settings += ["training.validation_bleu_sentences=2", "training.batch_tokens=256"]
    settings += ["training.validate_every_steps=1", "training.learning_rate_factor=1e-6"]
    new = RunDirectory(tmp_path / "new")
    words = ["train", "fine-tune-marian.yaml", "--run-dir", str(new.path), *files, *settings]
    assert main(words) == 0
    recipe, initial = new.load_recipe(), run.load_recipe()
    assert (recipe.model, recipe.tokenizer) == (initial.model, initial.tokenizer)
    assert recipe.decoding == initial.decoding
    assert new.load_tokenizer().fingerprint == run.load_tokenizer().fingerprint
    for ours, theirs in zip(
        new.load_model().trainable_variables, run.load_model().trainable_variables, strict=True
    ):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)
    texts = head("source.en", 3)
    found = [new.load_translator().translate([text])[0][0].text for text in texts]
    assert found == head("beam4.de", 3)


@pytest.mark.slow
def test_a_model_of_75_million_parameters_takes_less_than_twice_its_size(tmp_path):
    shape = dataclasses.replace(SHAPES["base"], vocabulary_size=58_101)
    write_hugging_face(tmp_path / "checkpoint", shape, seed=1)
    size = os.path.getsize(tmp_path / "checkpoint" / "model.safetensors")
    script = """
import re, sys
import keras
import tensorflow as tf
from trainers import imported

def status(name):
    text = open("/proc/self/status").read()
    return int(re.search(name + r":\\s+(\\d+) kB", text)[1]) * 1024

tf.matmul(keras.random.normal((64, 64)), tf.ones((64, 64)))
before = status("VmRSS")
imported.import_marian(sys.argv[1], sys.argv[2])
print(status("VmHWM") - before)
"""
    done = in_new_process("-c", script, tmp_path / "checkpoint", tmp_path / "run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert 0.9 * size < int(done.stdout) < 2 * size
