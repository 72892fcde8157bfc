"""Trainings that several tests look at: each is run once a session, and only read."""

import shutil

import pytest
from small_runs import train, write_recipe

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


@pytest.fixture
def copied_run(finished_run, tmp_path):
    """A copy of the finished run, to be changed."""
    return RunDirectory(shutil.copytree(finished_run.path, tmp_path / "run"))
