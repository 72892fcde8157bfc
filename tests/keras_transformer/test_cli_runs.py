"""Commands that make runs and exports, and the benchmarks."""

import json
import math
import shutil
from pathlib import Path

import pytest
from command_lines import in_new_process
from small_translators import numbers_recipe_text

from trainers.run import RunDirectory

pytestmark = pytest.mark.usefixtures("models_are_loaded_once")


# train, average, export, check-export, benchmark --------------------------------------------------


def test_train_prints_json_alone_on_stdout(refuse, numbers_run, tmp_path):
    recipe, run = tmp_path / "recipe.yaml", RunDirectory(tmp_path / "trained")
    recipe.write_text(numbers_recipe_text(numbers_run.path.parent / "corpus"))
    # The recipe, options and overrides in the order of the manual.
    words = ("train", recipe, "--run-dir", run.path, "training.validation_bleu_sentences=0")
    done = in_new_process(*words, "--json")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"\n") == 1
    assert json.loads(done.stdout) == {"run_dir": str(run.path), "finished": True}
    assert b"step 3" in done.stderr and b"loss" in done.stderr
    assert run.checkpoints().steps()[-1] == 3 and run.model_path.exists()
    assert run.load_recipe().training.validation_bleu_sentences == 0
    # The same run with another model.
    assert "model.d_model" in refuse(*words, "model.d_model=64")


def test_train_refuses_a_wrong_recipe(refuse, tmp_path):
    assert "does not exist" in refuse("train", tmp_path / "none.yaml")
    words = ("train", "tatoeba-en-de-small.yaml", "--run-dir", tmp_path / "run")
    line = refuse(*words, "training.minuets=1")
    assert "training.minuets" in line and "training.minutes" in line
    assert "KEY.PATH=VALUE" in refuse(*words, "minutes")
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_ends_with_code_1(monkeypatch, run_command, tmp_path):
    from trainers.callbacks import TrainingDiverged
    from trainers.trainer import Trainer

    def diverge(self):
        print("a progress bar")
        raise TrainingDiverged("The loss became nan at step 3")

    monkeypatch.setattr(Trainer, "train", diverge)
    words = ("train", "tatoeba-en-de-small.yaml", "--run-dir", tmp_path / "run")
    code, output, errors = run_command(*words)
    assert (code, output) == (1, "")
    assert errors == "a progress bar\nkeras-transformer: The loss became nan at step 3\n"


def test_average_writes_the_model(read_json, refuse, copied_run):
    copied_run.model_path.unlink()
    for words, count in (((), 2), (("--last", 1), 1)):
        result = read_json("average", copied_run.path, *words)
        assert result == {"model": str(copied_run.model_path), "checkpoints": count}
        assert copied_run.model_path.exists()
    assert "2 checkpoints" in refuse("average", copied_run.path, "--last", 3)


@pytest.fixture(scope="module")
def exported_by_command(numbers_run, tmp_path_factory):
    """A run whose corpus is gone, exported with a search of its own."""
    folder = tmp_path_factory.mktemp("by command")
    run = RunDirectory(shutil.copytree(numbers_run.path, folder / "run"))
    text = run.recipe_path.read_text()
    run.recipe_path.write_text(text.replace("valid.en", "gone.en"))
    words = ("--output", folder / "base", "--version", "4", "--beam-size", "2", "--json")
    words += ("--signatures", "score,serving_default", "--maximum-source-length", "9")
    words += ("--maximum-extra-length", "3", "--precision", "bfloat16", "--weights", "last")
    done = in_new_process("export", run.path, *words)
    return folder / "base", done


def test_export_writes_a_version(exported_by_command):
    base, done = exported_by_command
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {"path": str(base / "4"), "version": 4}
    assert done.stdout.count(b"\n") == 1
    lines = done.stderr.decode().split("\n")[:-1]
    assert ["gone.en" in line for line in lines] == [True, True]
    assert "without validation sentences" in "".join(lines)
    assert "the model card has no BLEU" in "".join(lines)
    assert {path.name for path in base.iterdir()} == {"4"}
    assert (base / "4" / "saved_model.pb").exists()


def test_what_export_wrote_passes_check_export(exported_by_command, read_json, run_command):
    base, _ = exported_by_command
    result = read_json("check-export", base)
    assert result.pop("ok") is True and len(result) >= 8
    assert all(gate["ok"] is True and gate["detail"] for gate in result.values())
    code, output, _ = run_command("check-export", base / "4")
    assert code == 0
    lines = output.split("\n")[:-1]
    assert len(lines) == len(result) and all(line.startswith("ok   ") for line in lines)


def test_export_never_overwrites(exported_by_command, numbers_run, refuse):
    base, _ = exported_by_command
    line = refuse("export", numbers_run.path, "--output", base, "--version", 4)
    assert "exports are not overwritten. Received: 4" in line
    line = refuse("export", numbers_run.path, "--output", base, "--signatures", "score")
    assert "must hold serving_default. Received: score" in line
    assert {path.name for path in base.iterdir()} == {"4"}


def test_the_options_of_export_are_in_the_export(exported_by_command):
    base, _ = exported_by_command
    card = json.loads((base / "4" / "assets.extra" / "model_card.json").read_text())
    assert set(card["signatures"]) == {"serving_default", "score"}
    assert card["decoding"]["beam_size"] == 2
    assert card["limits"]["maximum_source_length"] == 9
    assert card["limits"]["maximum_extra_length"] == 3
    assert (card["precision"], card["weights"], card["bleu"]) == ("bfloat16", "last", None)
    assert card["recipe"]["data"]["test"]["source"].endswith("gone.en")
    assert not Path(card["recipe"]["data"]["test"]["source"]).is_absolute()


def test_old_versions_go_and_the_card_holds_bleu(numbers_run, read_json, tmp_path):
    for version in (1, 2):
        (tmp_path / str(version)).mkdir()
        (tmp_path / str(version) / "saved_model.pb").touch()
    words = ("--output", tmp_path, "--keep", 2, "--bleu-sentences", 4)
    words += ("--signatures", "serving_default")
    assert read_json("export", numbers_run.path, *words)["version"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {"2", "3"}
    card = json.loads((tmp_path / "3" / "assets.extra" / "model_card.json").read_text())
    assert card["bleu"]["sentences"] == 4 and card["bleu"]["split"] == "test"
    assert card["bleu"]["bleu"] > 50 and card["bleu"]["bleu_signature"].startswith("nrefs:1")


def test_a_gate_that_fails_ends_check_export_with_code_1(numbers_export, run_command, tmp_path):
    path = tmp_path / "1"
    shutil.copytree(numbers_export, path)
    shutil.rmtree(path / "assets.extra")
    code, output, _ = run_command("check-export", path, "--json")
    result = json.loads(output)
    assert code == 1 and result["ok"] is False and result["python_translator"]["ok"] is False
    assert result["session_loader"]["ok"] is True


def test_check_export_refuses_a_folder_without_one(refuse, tmp_path):
    assert "must hold saved_model.pb" in refuse("check-export", tmp_path)


TINY = {
    "train": "--layers 1 --d-model 16 --d-ff 16 --heads 2 --vocabulary-size 50 --batch 2 "
    "--length 5 --steps 2 --warm-up 1",
    "decode": "--layers 1 --d-model 16 --d-ff 16 --heads 2 --vocabulary-size 50 --batch 2 "
    "--source-length 5 --beam-size 2 --new-tokens 4 --repeats 2",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", TINY)
def test_benchmarks_print_one_json_object(what):
    done = in_new_process("benchmark", what, *TINY[what].split(), "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
    result = json.loads(done.stdout)
    assert result["benchmark"] == what and result["parameters"] > 0
    assert math.isfinite(result["target_tokens_per_second"])
    assert result["target_tokens_per_second"] > 0 and result["versions"]["tensorflow"]


@pytest.mark.slow
def test_impossible_sizes_of_a_benchmark_are_refused():
    words = TINY["train"].replace("--heads 2", "--heads 3").split()
    done = in_new_process("benchmark", "train", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1 and b"d_model must be divisible" in done.stderr
