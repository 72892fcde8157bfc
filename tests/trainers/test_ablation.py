"""Ablations of a few steps: every row trained and measured, resumed, and refused where changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import ROOT, environment, small_recipe, write_corpus

from keras_transformer import InputError
from keras_transformer.folder_lock import folder_lock
from trainers import ablation
from trainers.ablation import ablate
from trainers.ablation_measures import median_length, write_length_parts
from trainers.corpus import read_parallel_files
from trainers.prepare import prepare_corpus
from trainers.recipe import load_recipe
from trainers.run import RunDirectory
from trainers.stop_signal import StopSignal
from trainers.trainer import Trainer

STEPS = {"steps": 4, "checkpoint_every_steps": 2}
ROWS = ("base", "E-learned-positions")


@pytest.fixture(scope="module")
def recipe(recipe_path):
    return small_recipe(recipe_path, **STEPS)


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """Two rows with one seed: the folder and the result."""
    directory = tmp_path_factory.mktemp("ablation") / "ablation"
    return directory, ablate(recipe, ["E"], [1], directory)


def results_in(directory: Path) -> list[dict]:
    text = (directory / "results.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def figures_in(directory: Path) -> dict:
    """All results but for the time they took."""
    return {
        (line["row"], line["seed"]): {
            name: value for name, value in line.items() if name != "seconds"
        }
        for line in results_in(directory)
    }


def test_every_row_is_trained_and_measured(finished, recipe):
    directory, result = finished
    assert result["finished"] and result["stopped_by"] is None
    assert [row["row"] for row in result["rows"]] == list(ROWS)
    assert json.loads(json.dumps(result)) == result
    for row, line in zip(result["rows"], results_in(directory), strict=True):
        run = RunDirectory(directory / f"{row['row']}-seed-1")
        assert (line["row"], line["seed"], line["pairs"]) == (row["row"], 1, 12)
        assert row["perplexity"]["mean"] == line["perplexity"] > 1
        assert row["bleu"]["mean"] == line["bleu"]
        assert row["parameters"] == run.load_model().count_params()
        trained = run.load_recipe()
        assert trained.training.seed == 1 and trained.training.steps == 4
        assert trained.data.prepared_dir == str(directory / "prepared")
        assert not (run.path / "checkpoints").exists() and not (run.path / "prepared").exists()
    assert load_recipe(directory / "recipe.yaml").training == recipe.training
    assert result["rows"][1]["parameters"] > result["rows"][0]["parameters"]


def test_the_perplexity_is_the_averaged_models_on_all_of_the_validation_set(finished, recipe):
    directory, result = finished
    run = RunDirectory(directory / "base-seed-1")
    corpus = read_parallel_files(*(recipe.data.validation.given()[s] for s in ("source", "target")))
    scores = run.load_translator().score(corpus.sources, corpus.targets)
    log_probability = sum(value for value, _ in scores) / sum(count for _, count in scores)
    expected = pytest.approx(2.718281828**-log_probability, rel=1e-4)
    assert result["rows"][0]["perplexity"]["mean"] == expected


def test_the_same_command_again_trains_nothing(finished, recipe, capsys, monkeypatch):
    directory, result = finished
    before = (directory / "results.jsonl").read_bytes()
    monkeypatch.setattr(ablation, "Trainer", None)
    assert ablate(recipe, ["E"], [1], directory) == result
    assert (directory / "results.jsonl").read_bytes() == before
    assert "2 of 2 rows are measured" in capsys.readouterr().err


@pytest.mark.slow
def test_a_broken_off_ablation_goes_on_where_it_was(
    finished, recipe, tmp_path, capsys, monkeypatch
):
    trained = []

    class StopsAtOnce(StopSignal):
        """Gets a signal as soon as it can be told: the run stops after its first update."""

        def __enter__(self):
            super().__enter__()
            signal.raise_signal(signal.SIGTERM)
            return self

    class StopsInTheSecondRow(Trainer):
        def __init__(self, recipe, directory):
            super().__init__(recipe, directory)
            trained.append(Path(directory).name)
            if len(trained) == 2:
                self.stop = StopsAtOnce()

    directory = tmp_path / "ablation"
    monkeypatch.setattr(ablation, "Trainer", StopsInTheSecondRow)
    stopped = ablate(recipe, ["E"], [1], directory)
    assert stopped["stopped_by"] == "SIGTERM" and not stopped["finished"]
    assert [row["row"] for row in stopped["rows"]] == ["base"]
    assert RunDirectory(directory / "E-learned-positions-seed-1").checkpoints().steps() == [1]
    # A crash in the middle of a line, and before the checkpoints of a row were removed.
    with (directory / "results.jsonl").open("ab") as file:
        file.write(b'{"row": "E-learned')
    (directory / "base-seed-1" / "checkpoints").mkdir()
    capsys.readouterr()
    result = ablate(recipe, ["E"], [1], directory)
    assert trained == ["base-seed-1", *2 * ["E-learned-positions-seed-1"]]
    told = capsys.readouterr().err
    assert "1 of 2 rows are measured" in told and "row 2 of 2: E-learned-positions, seed 1" in told
    assert "resuming at step 1" in told
    assert not (directory / "base-seed-1" / "checkpoints").exists()
    assert figures_in(directory) == figures_in(finished[0])
    assert result == finished[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.steps": 5}, "training.steps=4; .* Received: training.steps=5$"),
        ({"model.d_ff": 48}, "model.d_ff=32; .* Received: model.d_ff=48$"),
        ({"decoding.beam_size": 3}, "decoding.beam_size=2; .* Received: decoding.beam_size=3$"),
        ({"training.average_checkpoints": 1}, "training.average_checkpoints=2"),
    ],
)
def test_another_recipe_is_refused(finished, recipe_path, changes, message):
    settings = {f"training.{name}": value for name, value in STEPS.items()} | changes
    other = load_recipe(recipe_path, [f"{name}={value}" for name, value in settings.items()])
    with pytest.raises(InputError, match=message):
        ablate(other, ["E"], [1], finished[0])


def test_what_no_figure_depends_on_may_change(finished, recipe_path):
    other = small_recipe(recipe_path, **STEPS, seed=9, log_every_steps=1, keep_checkpoints=2)
    assert ablate(other, ["E"], [1], finished[0]) == finished[1]


@pytest.mark.parametrize(
    ("overrides", "rows", "seeds", "message"),
    [
        (["training.minutes=1"], "E", [1], "training.minutes must be null.* Received: minutes 1"),
        (["training.steps=null", "training.minutes=1"], "E", [1], "steps None$"),
        (["data.test=null"], "length", [1], "data.test must be given for the rows of length"),
        ([], "E", [], r"--seeds must be different integers.* Received: \[\]$"),
        ([], "E", [2, 2], r"Received: \[2, 2\]$"),
        ([], "A", [1], "A-4-heads must differ from every other"),
    ],
)
def test_what_cannot_be_compared_is_refused_first(
    recipe_path, tmp_path, overrides, rows, seeds, message
):
    with pytest.raises(InputError, match=message) as error:
        ablate(load_recipe(recipe_path, overrides), [rows], seeds, tmp_path / "ablation")
    assert "Received: " in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "ablation").exists()


def test_a_folder_that_cannot_be_or_is_in_use_is_refused(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--run-dir must be a folder that can be made. Received"):
        ablate(recipe, ["E"], [1], tmp_path / "file" / "ablation")
    with folder_lock(tmp_path), pytest.raises(InputError, match="must not be in use"):
        ablate(recipe, ["E"], [1], tmp_path)


def test_results_of_another_corpus_are_refused(finished, recipe, tmp_path):
    write_corpus(tmp_path, seed=5)
    directory = tmp_path / "ablation"
    directory.mkdir()
    lines = (finished[0] / "results.jsonl").read_text().replace('.en": "', '.en": "0')
    (directory / "results.jsonl").write_text(lines)
    with pytest.raises(InputError, match=r"\.en must be what .*results.jsonl:1 was measured with"):
        ablate(recipe, ["E"], [1], directory)


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"row": "base", "seed": 1}'])
def test_a_damaged_line_is_named(recipe, tmp_path, text):
    (tmp_path / "results.jsonl").write_text(f"{text}\n")
    with pytest.raises(InputError, match=r"results.jsonl:1 must be a JSON object.* Received"):
        ablate(recipe, ["E"], [1], tmp_path)


def test_a_row_that_diverges_is_told_and_the_others_go_on(recipe_path, tmp_path):
    wild = small_recipe(recipe_path, **STEPS, learning_rate_factor=1e30)
    result = ablate(wild, [], [1], tmp_path)
    assert result["finished"] and result["rows"][0]["diverged"] == [1]
    assert "at step" in results_in(tmp_path)[0]["diverged"]
    assert not (tmp_path / "base-seed-1" / "checkpoints").exists()


def test_the_test_set_is_parted_by_the_median_length(recipe, tmp_path):
    corpus = prepare_corpus(recipe, tmp_path, progress=False)
    limit = median_length(corpus)
    lengths = [
        1 + max(len(source), len(target))
        for source, target in zip(corpus.source, corpus.target, strict=True)
    ]
    assert sorted(lengths)[len(lengths) // 2 - 1] <= limit <= sorted(lengths)[len(lengths) // 2]
    files = write_length_parts(recipe, corpus, limit, tmp_path)
    parts = {name: read_parallel_files(each.source, each.target) for name, each in files.items()}
    given = recipe.data.test.given()
    test = read_parallel_files(given["source"], given["target"])
    pairs = list(zip(test.sources, test.targets, strict=True))
    tokenizer = corpus.tokenizer
    for name, part in parts.items():
        found = list(zip(part.sources, part.targets, strict=True))
        assert found and found == [pair for pair in pairs if pair in found]
        for source, target in found:
            length = 1 + max(
                len(tokenizer.source.encode(source)), len(tokenizer.target.encode(target))
            )
            assert (length > limit) == (name == "longer")
    assert sum(map(len, parts.values())) == len(pairs)
    with pytest.raises(InputError, match="12 pairs, none longer$"):
        write_length_parts(recipe, corpus, 1000, tmp_path)


@pytest.mark.slow
def test_lengths_never_seen_are_measured_apart(recipe, tmp_path):
    result = ablate(recipe, ["length"], [1], tmp_path)
    assert [row["row"] for row in result["length"]] == ["length-sinusoidal", "length-learned"]
    for row in result["length"]:
        trained = RunDirectory(tmp_path / f"{row['row']}-seed-1").load_recipe()
        assert trained.data.maximum_length == result["length_limit"] < recipe.data.maximum_length
        assert row["within"]["pairs"] + row["longer"]["pairs"] == 12
        assert all(row[part]["perplexity"]["mean"] > 1 for part in ("within", "longer"))
    base = RunDirectory(tmp_path / "base-seed-1").load_recipe()
    assert base.data.maximum_length == recipe.data.maximum_length


@pytest.mark.slow
def test_a_killed_ablation_ends_with_the_same_figures(finished, recipe, recipe_path, tmp_path):
    program = (
        "import sys, pathlib; from small_runs import small_recipe; "
        "from trainers.ablation import ablate; "
        f"recipe = small_recipe(pathlib.Path(sys.argv[1]), **{STEPS!r}); "
        "ablate(recipe, ['E'], [1], pathlib.Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(recipe_path), str(tmp_path)],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    results = tmp_path / "results.jsonl"
    deadline = time.monotonic() + 300
    while not (results.exists() and results.read_bytes().endswith(b"\n")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(results_in(tmp_path)) == 1
    ablate(recipe, ["E"], [1], tmp_path)
    assert figures_in(tmp_path) == figures_in(finished[0])
