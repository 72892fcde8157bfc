"""Trainings that several tests look at: each is run once a session, and only read."""

import json
import shutil

import pytest
from small_runs import train, write_recipe
from small_translators import number_tokenizer, numbers, numbers_recipe_text, random_model

from trainers.checkpoints import save_model
from trainers.run import RunDirectory


@pytest.fixture(scope="session")
def recipe_path(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def finished_run(recipe_path, tmp_path_factory):
    """8 steps without a break, with BLEU at each validation."""
    run = tmp_path_factory.mktemp("finished") / "run"
    return train(recipe_path, run, validation_bleu_sentences=5)


@pytest.fixture(scope="session")
def resumed_run(recipe_path, tmp_path_factory):
    """The same 8 steps, stopped after 5 in the middle of an interval, with a line at each step."""
    run = tmp_path_factory.mktemp("resumed") / "run"
    train(recipe_path, run, steps=5, log_every_steps=1)
    return train(recipe_path, run, steps=8, log_every_steps=1)


@pytest.fixture(scope="session")
def untrained_run(tmp_path_factory):
    """A run with corpus, log and a model of random weights, for tests of what shows a run."""
    folder = tmp_path_factory.mktemp("untrained")
    for split, count, seed in (("train", 9, 5), ("valid", 9, 6)):
        for language, lines in zip(("en", "de"), numbers(count, seed), strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    run = RunDirectory(folder / "run")
    run.path.mkdir()
    run.recipe_path.write_text(numbers_recipe_text(folder))
    tokenizer = number_tokenizer()
    tokenizer.save(run.tokenizer_path)
    save_model(random_model(tokenizer, num_decoder_layers=1), run.model_path)
    lines = [
        {"step": 8, "loss": 4.0, "learning_rate": 0.001, "gradient_norm": 1.0},
        {"step": 8, "val_loss": 3.0, "val_perplexity": 9.0, "val_bleu": 5.0, "val_chrf": 20.0},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.path / "metrics.jsonl").write_text(text)
    return run


@pytest.fixture
def copied_run(finished_run, tmp_path):
    """A copy of the finished run, to be changed."""
    return RunDirectory(shutil.copytree(finished_run.path, tmp_path / "run"))
