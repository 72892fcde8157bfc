"""Ablations of a few steps: every row trained and measured, resumed, and refused where changed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import ROOT, environment, small_recipe

from keras_transformer import InputError
from keras_transformer.folder_lock import folder_lock
from trainers import ablation
from trainers.ablation import ablate
from trainers.ablation_measures import measure, median_length, write_length_parts
from trainers.ablation_table import render
from trainers.callbacks import TrainingDiverged
from trainers.corpus import read_parallel_files
from trainers.prepare import prepare_corpus
from trainers.recipe import load_recipe
from trainers.run import RunDirectory
from trainers.stop_signal import StopSignal
from trainers.table_3 import rows_of
from trainers.trainer import Trainer

STEPS = {"steps": 2, "checkpoint_every_steps": 1}
ROWS = ("base", "E-learned-positions")
FIGURES = {
    "perplexity": 9.0,
    "bleu": 4.0,
    "bleu_signature": "tok:13a",
    "pairs": 12,
    "parameters": 100,
}


@pytest.fixture(scope="module")
def recipe(recipe_path):
    return small_recipe(recipe_path, **STEPS)


@pytest.fixture(scope="module")
def base_alone(recipe, tmp_path_factory):
    """The base, trained and measured without any other row: the folder and the result."""
    directory = tmp_path_factory.mktemp("base") / "ablation"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "rows_of", lambda *arguments: rows_of(*arguments)[:1])
        return directory, ablate(recipe, ["E"], [1], directory)


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """Two rows with one seed, trained and measured: the folder and the result."""
    directory = tmp_path_factory.mktemp("ablation") / "ablation"
    return directory, ablate(recipe, ["E"], [1], directory)


class NoTrainer:
    """In the place of `Trainer`: leaves a run directory, and ends as `ends` says for its name."""

    ends: dict[str, signal.Signals | Exception] = {}

    def __init__(self, recipe, directory):
        self.recipe, self.path = recipe, Path(directory)

    def train(self):
        (self.path / "checkpoints").mkdir(parents=True)
        self.recipe.save(self.path / "recipe.yaml")
        end = self.ends.get(self.path.name)
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture
def untrained(monkeypatch):
    """Nothing is trained, and all figures are the same; returns how each run ends, to be set."""
    monkeypatch.setattr(NoTrainer, "ends", {})
    monkeypatch.setattr(ablation, "Trainer", NoTrainer)
    monkeypatch.setattr(ablation, "measure", lambda run, data, parts: dict(FIGURES))
    return NoTrainer.ends


@pytest.fixture
def begun(untrained, recipe, tmp_path):
    """An ablation of two rows that has trained nothing: the folder and the result."""
    return tmp_path / "begun", ablate(recipe, ["E"], [1], tmp_path / "begun")


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


def check_rows(directory: Path, result: dict, rows: tuple[str, ...]) -> None:
    """The result is what was measured, and each row's run is as it should be."""
    assert result["finished"] and result["stopped_by"] is None
    assert [row["row"] for row in result["rows"]] == list(rows)
    assert json.loads(json.dumps(result)) == result
    for row, line in zip(result["rows"], results_in(directory), strict=True):
        run = RunDirectory(directory / f"{row['row']}-seed-1")
        assert (line["row"], line["seed"], line["pairs"]) == (row["row"], 1, 12)
        assert row["perplexity"]["mean"] == line["perplexity"] > 1
        assert row["bleu"]["mean"] == line["bleu"]
        assert row["parameters"] == run.load_model().count_params()
        trained = run.load_recipe()
        assert trained.training.seed == 1 and trained.training.steps == STEPS["steps"]
        assert trained.data.prepared_dir == str(directory / "prepared")
        assert not (run.path / "checkpoints").exists() and not (run.path / "prepared").exists()


def test_a_row_is_trained_and_measured(base_alone, recipe):
    directory, result = base_alone
    check_rows(directory, result, ROWS[:1])
    assert load_recipe(directory / "recipe.yaml").training == recipe.training


@pytest.mark.slow
def test_every_row_is_trained_and_measured(finished):
    directory, result = finished
    check_rows(directory, result, ROWS)
    assert result["rows"][1]["parameters"] > result["rows"][0]["parameters"]


def test_the_perplexity_is_the_averaged_models_without_pairs_that_are_too_long(base_alone, recipe):
    directory, result = base_alone
    run = RunDirectory(directory / "base-seed-1")
    corpus = read_parallel_files(*(recipe.data.validation.given()[s] for s in ("source", "target")))
    scores = run.load_translator().score(corpus.sources, corpus.targets)

    def perplexity(rows):
        kept = [scores[row] for row in rows]
        return pytest.approx(
            2.718281828 ** -(sum(value for value, _ in kept) / sum(count for _, count in kept)),
            rel=1e-4,
        )

    tokenizer = run.load_tokenizer()
    lengths = [
        1 + max(len(tokenizer.source.encode(source)), len(tokenizer.target.encode(target)))
        for source, target in zip(corpus.sources, corpus.targets, strict=True)
    ]
    limit = sorted(lengths)[len(lengths) // 2]
    short = [row for row, length in enumerate(lengths) if length <= limit]
    assert 0 < len(short) < len(corpus)
    assert result["rows"][0]["perplexity"]["mean"] == perplexity(range(len(corpus)))
    figures = measure(run, dataclasses.replace(recipe.data, maximum_length=limit), {})
    assert figures["perplexity"] == perplexity(short)
    assert (figures["pairs"], figures["bleu"]) == (12, result["rows"][0]["bleu"]["mean"])


def test_the_same_command_again_trains_nothing(begun, recipe, capsys, monkeypatch):
    directory, result = begun
    before = (directory / "results.jsonl").read_bytes()
    monkeypatch.setattr(ablation, "Trainer", None)
    assert ablate(recipe, ["E"], [1], directory) == result
    assert (directory / "results.jsonl").read_bytes() == before
    assert "2 of 2 rows are measured" in capsys.readouterr().err


def test_an_ablation_stopped_between_two_seeds_is_not_finished(untrained, recipe, tmp_path):
    untrained["base-seed-2"] = signal.SIGTERM
    stopped = ablate(recipe, ["E"], [1, 2], tmp_path)
    assert stopped["stopped_by"] == "SIGTERM" and not stopped["finished"]
    assert [row["seeds"] for row in stopped["rows"]] == [[1], [1]]


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
        ({"training.steps": 5}, "training.steps=2; .* Received: training.steps=5$"),
        ({"model.d_ff": 48}, "model.d_ff=32; .* Received: model.d_ff=48$"),
        ({"decoding.beam_size": 3}, "decoding.beam_size=2; .* Received: decoding.beam_size=3$"),
        ({"training.average_checkpoints": 1}, "training.average_checkpoints=2"),
    ],
)
def test_another_recipe_is_refused(begun, recipe_path, changes, message):
    settings = {f"training.{name}": value for name, value in STEPS.items()} | changes
    other = load_recipe(recipe_path, [f"{name}={value}" for name, value in settings.items()])
    with pytest.raises(InputError, match=message):
        ablate(other, ["E"], [1], begun[0])


def test_what_no_figure_depends_on_may_change(begun, recipe_path):
    other = small_recipe(recipe_path, **STEPS, seed=9, log_every_steps=1, keep_checkpoints=2)
    assert ablate(other, ["E"], [1], begun[0]) == begun[1]


@pytest.mark.parametrize("name", ["model.keras", "checkpoints", "metrics.jsonl", "tokenizer"])
def test_a_training_run_is_left_as_it_is(untrained, recipe, tmp_path, name):
    recipe.save(tmp_path / "recipe.yaml")
    (tmp_path / name).mkdir()
    before = (tmp_path / "recipe.yaml").read_bytes()
    with pytest.raises(InputError, match=f"--run-dir .* Received: .*training run with {name}$"):
        ablate(recipe, ["E"], [1], tmp_path)
    assert (tmp_path / "recipe.yaml").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", name}


@pytest.mark.parametrize(
    ("overrides", "rows", "seeds", "message"),
    [
        (["training.minutes=1"], "E", [1], "training.minutes must be null.* Received: minutes 1"),
        (["training.steps=null", "training.minutes=1"], "E", [1], "steps None$"),
        (["data.test=null"], "length", [1], "data.test must be given for the rows of length"),
        ([], "E", [], r"--seeds must be different integers.* Received: \[\]$"),
        ([], "E", [2, 2], r"Received: \[2, 2\]$"),
        ([], "E", [1, 2**31], r"--seeds .* from 0 to 2147483647.* Received: \[1, 2147483648\]$"),
        ([], "E", [-1], r"--seeds must be .* Received: \[-1\]$"),
        ([], "", [1], r"--rows must have some of A, B, C, D, E, comp.*, length. Received: \[\]$"),
        ([], "A", [1], "A-4-heads must differ from every other"),
    ],
)
def test_what_cannot_be_compared_is_refused_first(
    recipe_path, tmp_path, overrides, rows, seeds, message
):
    with pytest.raises(InputError, match=message) as error:
        ablate(
            load_recipe(recipe_path, overrides),
            [rows] if rows else [],
            seeds,
            tmp_path / "ablation",
        )
    assert "Received: " in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "ablation").exists()


def test_a_folder_that_cannot_be_or_is_in_use_is_refused(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--run-dir must be a folder that can be made. Received"):
        ablate(recipe, ["E"], [1], tmp_path / "file" / "ablation")
    with folder_lock(tmp_path), pytest.raises(InputError, match="must not be in use"):
        ablate(recipe, ["E"], [1], tmp_path)


def test_results_of_another_corpus_are_refused(begun, recipe):
    path = begun[0] / "results.jsonl"
    path.write_text(path.read_text().replace('.en": "', '.en": "0'))
    with pytest.raises(InputError, match=r"\.en must be what .*results.jsonl:1 was measured with"):
        ablate(recipe, ["E"], [1], begun[0])


def test_a_row_that_diverges_is_told_and_the_others_go_on(untrained, recipe, tmp_path, capsys):
    untrained["base-seed-1"] = TrainingDiverged("the loss is nan at step 1")
    result = ablate(recipe, ["E"], [1], tmp_path)
    assert result["finished"] and [row["diverged"] for row in result["rows"]] == [[1], []]
    assert results_in(tmp_path)[0]["diverged"] == "the loss is nan at step 1"
    assert "base, seed 1: the loss is nan at step 1" in capsys.readouterr().err
    assert not (tmp_path / "base-seed-1" / "checkpoints").exists()


def test_figures_that_are_not_finite_have_diverged(untrained, recipe, tmp_path, monkeypatch):
    figures = {"base": FIGURES, "E-learned-positions": FIGURES | {"perplexity": math.inf}}
    monkeypatch.setattr(
        ablation, "measure", lambda run, data, parts: figures[run.path.name.split("-seed-")[0]]
    )
    result = ablate(recipe, ["E"], [1, 2], tmp_path)
    assert result["finished"] and [row["diverged"] for row in result["rows"]] == [[], [1, 2]]
    assert [line.get("diverged") for line in results_in(tmp_path)] == 2 * [
        None,
        "perplexity is inf",
    ]
    assert "Infinity" not in (tmp_path / "results.jsonl").read_text()
    assert "none, 2 diverged" in render(result)
    assert ablate(recipe, ["E"], [1, 2], tmp_path) == result


@pytest.mark.slow
def test_a_training_that_diverges_is_told(recipe_path, tmp_path):
    wild = small_recipe(recipe_path, **STEPS | {"steps": 4}, learning_rate_factor=1e30)
    result = ablate(wild, ["E"], [1], tmp_path)
    assert result["finished"] and result["rows"][0]["diverged"] == [1]
    assert "at step" in results_in(tmp_path)[0]["diverged"]


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
