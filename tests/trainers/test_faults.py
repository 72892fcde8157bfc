"""Planted faults: each ends the command with its own line and exit code, and nothing is lost.

Every fault is planted twice: with the command run in this process, and, slower, in a new one.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from full_disk import no_file_above
from small_runs import environment, in_new_process, last_checkpoint, read_metrics, train
from small_runs import write_recipe as write_small_recipe

from keras_transformer.cli import main
from keras_transformer.tokenizer import SubwordTokenizer
from keras_transformer.tokenizer_training import parse_model_proto
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.run import RunDirectory
from trainers.run_lock import run_lock

# What a command must leave as it is that cannot train on, and what one that is refused must.
KEPT = ("metrics.jsonl", "checkpoints", "tokenizer", "model.keras")
ALL = (*KEPT, "recipe.yaml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A recipe and its run after 6 of 12 steps, with checkpoints at 3 and 6."""
    folder = tmp_path_factory.mktemp("faults")
    recipe = write_small_recipe(folder / "data")
    train(recipe, folder / "run", steps=6)
    shutil.copytree(folder, folder.with_name("faults-before"))
    return folder


@pytest.fixture
def folder(trained):
    """The folder with recipe, corpus and run; what a test changes in it is put back."""
    yield trained
    shutil.rmtree(trained)
    shutil.copytree(trained.with_name("faults-before"), trained)


@pytest.fixture(params=["here", pytest.param("new process", marks=pytest.mark.slow)])
def command(request, folder, capfd):
    """Runs `train` on the recipe to 12 steps; returns its exit code and its messages."""

    def run(*changes):
        words = ["train", str(folder / "data" / "recipe.yaml"), "--run-dir", str(folder / "run")]
        words += ["training.steps=12", *changes]
        if request.param == "here":
            capfd.readouterr()
            return main(words), capfd.readouterr().err
        done = in_new_process("-m", "keras_transformer", *words)
        return done.returncode, done.stderr

    return run


def contents(run, names=ALL):
    """Path -> hash of all files that must be kept."""
    paths = [path for name in names for path in [run / name, *(run / name).rglob("*")]]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}


def message(errors):
    """The one line that the command ends with, and that there is no traceback."""
    assert "Traceback" not in errors
    (line,) = [line for line in errors.split("\n") if line.startswith("keras-transformer")]
    return line


def run_directory(folder):
    return RunDirectory(folder / "run")


def test_a_loss_that_is_no_number(command, folder):
    checkpoints = run_directory(folder).checkpoints()
    model, state = checkpoints.load_latest()
    model.trainable_weights[-1].assign(model.trainable_weights[-1].numpy() * np.nan)
    shutil.rmtree(checkpoints.path(6))
    checkpoints.save(model, 6, state)
    before = contents(folder / "run", KEPT)
    code, errors = command("training.checkpoint_every_steps=1")
    assert code == 1
    assert re.search(r"loss became nan at step \d+ .*learning_rate_factor", message(errors))
    assert contents(folder / "run", KEPT) == before


def replace_tokenizer(folder, change):
    path = run_directory(folder).tokenizer_path
    before = TranslationTokenizer.load(path)
    tokenizer = change(before, (folder / "data" / "train.en").read_text().split("\n"))
    assert tokenizer.fingerprint != before.fingerprint
    shutil.rmtree(path)
    tokenizer.save(path)


def of_another_size(before, lines):
    return TranslationTokenizer.train(lines, lines, vocabulary_size=280)


def resorted(before, lines):
    """The same words, in another order: every shape fits."""
    proto = parse_model_proto(before.source.model_proto)
    first, second = proto.pieces[270], proto.pieces[280]
    first.piece, second.piece = second.piece, first.piece
    shared = SubwordTokenizer(proto.SerializeToString())
    assert shared.vocabulary_size == before.source.vocabulary_size
    return TranslationTokenizer(shared, shared)


@pytest.mark.parametrize("change", [of_another_size, resorted])
def test_another_vocabulary(command, folder, change):
    replace_tokenizer(folder, change)
    before = contents(folder / "run")
    code, errors = command()
    assert code == 2
    assert re.search("tokenizer.*sha256.*Received: ", message(errors))
    assert contents(folder / "run") == before


@pytest.mark.parametrize("name", ["train.en", "train.de"])
def test_a_corpus_changed_by_one_line(command, folder, name):
    path = folder / "data" / name
    lines = path.read_bytes().split(b"\n")
    lines[40] = lines[40] + b" x"
    path.write_bytes(b"\n".join(lines))
    before = contents(folder / "run")
    code, errors = command()
    assert code == 2
    assert re.search(f"{name}.*sha256.*Received: ", message(errors))
    assert contents(folder / "run") == before


def test_a_recipe_typo(command, folder):
    before = contents(folder / "run")
    for typo, right in {
        "training.warmup_step=9": "warmup_steps",
        "model.dmodel=16": "d_model",
    }.items():
        code, errors = command(typo)
        assert code == 2
        assert typo.split("=")[0] in message(errors) and right in message(errors)
    recipe = folder / "data" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("batch_tokens", "batch_token"))
    code, errors = command()
    assert code == 2
    assert re.search(r"recipe.yaml.*training.batch_token\b.*batch_tokens", message(errors))
    assert contents(folder / "run") == before


def test_a_damaged_newest_checkpoint(command, folder):
    newest = folder / "run" / "checkpoints" / "step-00000006"
    path = newest / "model.keras"
    path.write_bytes(path.read_bytes()[:-1000])
    before = contents(folder / "run", KEPT)
    code, errors = command()
    assert code == 2
    assert re.search(
        f"Delete the folder {newest} to go on from step 3. .*Received: ", message(errors)
    )
    assert contents(folder / "run", KEPT) == before
    shutil.rmtree(newest)  # the advice
    code, errors = command()
    assert code == 0 and "resuming at step 3," in errors
    assert run_directory(folder).checkpoints().steps() == [6, 9, 12]


def test_two_trainings_at_a_time(command, folder):
    before = contents(folder / "run")
    with run_lock(folder / "run"):
        code, errors = command()
    assert code == 2
    assert "another process" in message(errors)
    assert contents(folder / "run") == before


class TestFullDisk:
    def test_files_that_cannot_grow(self, folder, capfd):
        """Stands for a full disk where there are no rights to make one."""
        words = ["train", str(folder / "data" / "recipe.yaml"), "--run-dir", str(folder / "run")]
        words.append("training.steps=12")
        before = contents(folder / "run", ["checkpoints"])
        with no_file_above(20_000):
            code = main(words)
        assert code == 2
        line = message(capfd.readouterr().err)
        assert re.search("run/checkpoints; .*the earlier ones are intact. Received: .Errno", line)
        names = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
        assert names == ["step-00000003", "step-00000006"]
        assert contents(folder / "run", ["checkpoints"]) == before
        assert main(words) == 0
        assert last_checkpoint(run_directory(folder))[1]["step"] == 12

    @pytest.mark.slow
    def test_a_small_file_system(self, folder):
        """Needs the right to mount a tmpfs: root's, or a name space of the user's own."""
        run, saved = folder / "run", folder / "saved"
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        checkpoint = run / "checkpoints" / "step-00000006" / "model.keras"
        # Room for one more checkpoint and a half.
        kilobytes = (size + checkpoint.stat().st_size * 3 // 2) // 1024 + 100
        training = "training.steps=60 training.keep_checkpoints=20"
        script = f"""
            set -e
            mkdir {saved}
            cp -r {run} {saved}/before
            mount -t tmpfs -o size={kilobytes}k none {run}
            cp -r {saved}/before/. {run}
            set +e
            {sys.executable} -m keras_transformer train {folder}/data/recipe.yaml \\
                --run-dir {run} {training} 2> {saved}/errors
            code=$?
            cp -r {run} {saved}/run
            exit $code
        """
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-Urm"]
        done = subprocess.run(
            [*unshare, "sh", "-c", script], env=environment(), capture_output=True, text=True
        )
        assert (saved / "errors").exists(), f"no tmpfs could be mounted: {done.stderr}"
        errors = (saved / "errors").read_text()
        assert done.returncode == 2, errors
        assert re.search("intact. Received: .*No space left on device", message(errors))
        shutil.rmtree(run)
        shutil.move(saved / "run", run)
        last = run_directory(folder).checkpoints().steps()[-1]
        assert last >= 9
        _, state = last_checkpoint(run_directory(folder))
        assert state["step"] == last
        assert not list((run / "checkpoints").glob(".*"))
        # With room again, the same command goes on.
        recipe = folder / "data" / "recipe.yaml"
        done = in_new_process(
            "-m", "keras_transformer", "train", recipe, "--run-dir", run, *training.split()
        )
        assert done.returncode == 0, done.stderr
        assert f"resuming at step {last}," in done.stderr
        steps = [line["step"] for line in read_metrics(run_directory(folder)) if "loss" in line]
        assert steps == list(range(3, 61, 3))
