"""Table 3 of the paper, run again: trains and measures every row with every seed, and resumes."""

from __future__ import annotations

import dataclasses
import gc
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_transformer.command_io import say
from keras_transformer.errors import InputError
from trainers.ablation_measures import measure, median_length, write_length_parts
from trainers.ablation_results import AblationResults, not_finite
from trainers.ablation_table import summarize
from trainers.callbacks import TrainingDiverged
from trainers.precision import resolve_precision
from trainers.prepare import prepare_corpus
from trainers.recipe import Recipe
from trainers.recipe_keys import Files
from trainers.resumption import first_difference
from trainers.run import RunDirectory
from trainers.run_lock import run_lock
from trainers.splits import open_split
from trainers.table_3 import GROUPS, LENGTH, rows_of
from trainers.trainer import Trainer

# What may change from one start to the next: no figure of the table depends on it. The seed of the
# recipe is not used.
_CHANGEABLE = {
    ("training", "seed"),
    ("training", "devices"),
    ("training", "keep_checkpoints"),
    ("training", "validate_every_steps"),
    ("training", "validation_bleu_sentences"),
    ("training", "log_every_steps"),
    ("data", "prepared_dir"),
}

# A recipe's training.seed is below it too.
_SEEDS = 2**31

# What an ordinary training run has, and an ablation has in the folders of its rows alone.
_FILES_OF_A_RUN = ("model.keras", "checkpoints", "metrics.jsonl", "tokenizer")


class _Job(NamedTuple):
    """One row with one seed, and the recipe that is trained for it."""

    row: str
    seed: int
    recipe: Recipe
    run: RunDirectory
    parts: Mapping[str, Files]


def ablate(recipe: Recipe, rows: Sequence[str], seeds: Sequence[int], directory: Path) -> dict:
    """Trains the rows of the paper's table 3 around a recipe's model, and measures each.

    Every row is trained with every seed in a run directory `ROW-seed-N` of its own, all on one
    tokenized corpus, the first seed of all rows before the second. Then perplexity and BLEU of the
    averaged model are measured on `data.validation`, as in the paper, and appended to
    `results.jsonl`. The same call again skips what is measured and resumes what was broken off.

    The rows of `length` are trained on pairs of at most the median length, sinusoidal and learned
    positions alike, and measured on the pairs of `data.test` of that length and on longer ones.

    Args:
        recipe: `Recipe` of the base, which ends by `training.steps`. Its `training.seed` is not
            used.
        rows: groups of rows, at least one of `trainers.table_3.GROUPS`. The base is always
            trained.
        seeds: integers from 0 to 2^31 - 1, each of which all rows are trained with.
        directory: path of the folder of all runs and results.

    Returns:
        A dict as of `trainers.ablation_table.summarize`, with `stopped_by`: the name of the signal
        that has ended it early, or None.

    Raises:
        InputError: where the recipe cannot have a row, would not end by steps, or is another than
            the one that the folder was begun with, or where the folder is an ordinary training
            run; before anything is trained.

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762),
          section 6.2
    """
    directory = Path(directory)
    recipe = _checked(recipe, rows, seeds)
    planned = rows_of(recipe, rows)
    _check_no_run(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--run-dir must be a folder that can be made. Received: {error}"
        ) from error
    with run_lock(directory):
        _check_same(recipe, directory)
        recipe = dataclasses.replace(
            recipe,
            data=dataclasses.replace(
                recipe.data, prepared_dir=recipe.data.prepared_dir or str(directory / "prepared")
            ),
        )
        corpus = prepare_corpus(recipe, recipe.data.prepared_dir)
        limit, parts = None, {}
        if LENGTH in rows:
            limit = median_length(corpus)
            parts = write_length_parts(recipe, corpus, limit, directory)
        results = AblationResults(directory / "results.jsonl", _fingerprints(recipe))
        recipe.save(directory / "recipe.yaml")
        jobs = []
        for seed in seeds:
            for row in planned:
                run = RunDirectory(directory / f"{row.name}-seed-{seed}")
                is_length = row.group == LENGTH
                trained = _trained(row.recipe, recipe, seed, limit if is_length else None)
                jobs.append(_Job(row.name, seed, trained, run, parts if is_length else {}))
        stopped_by = _run_all(jobs, recipe, results)
    lines = [results.get(job.row, job.seed) for job in jobs]
    summary = summarize(planned, seeds, [line for line in lines if line is not None], limit)
    return {**summary, "stopped_by": stopped_by and stopped_by.name}


def _checked(recipe: Recipe, rows: Sequence[str], seeds: Sequence[int]) -> Recipe:
    """The recipe with this machine's precision; refuses what cannot be compared."""
    if not rows:
        raise InputError(f"--rows must have some of {', '.join(GROUPS)}. Received: {list(rows)}")
    if (
        not seeds
        or len(set(seeds)) != len(seeds)
        or not all(isinstance(seed, int) and 0 <= seed < _SEEDS for seed in seeds)
    ):
        raise InputError(
            f"--seeds must be different integers from 0 to {_SEEDS - 1}, such as 1,2,3. Received: "
            f"{list(seeds)}"
        )
    recipe.check_trains()
    training = recipe.training
    if training.minutes is not None or training.steps is None:
        raise InputError(
            "training.minutes must be null and training.steps an integer, so that all rows learn "
            f"as long, however fast they are. Received: minutes {training.minutes}, steps "
            f"{training.steps}"
        )
    if training.initial_run is not None:
        raise InputError(
            "training.initial_run must be null: each row has another model. Received: "
            f"{training.initial_run!r}"
        )
    if LENGTH in rows and recipe.data.test is None:
        raise InputError("data.test must be given for the rows of length. Received: null")
    precision = resolve_precision(training.precision)
    return dataclasses.replace(recipe, training=dataclasses.replace(training, precision=precision))


def _check_no_run(directory: Path) -> None:
    """Refuses a training run's folder, whose recipe.yaml would become the ablation's."""
    found = [name for name in _FILES_OF_A_RUN if (directory / name).exists()]
    if found:
        raise InputError(
            f"--run-dir must be a folder of an ablation, or a new one. Received: {directory}, a "
            f"training run with {', '.join(found)}"
        )


def _check_same(recipe: Recipe, directory: Path) -> None:
    begun = RunDirectory(directory)
    if not begun.recipe_path.exists():
        return
    difference = first_difference(begun.load_recipe(), recipe, _CHANGEABLE)
    if difference is not None:
        name, old, new = difference
        raise InputError(
            f"{directory} holds an ablation with {name}={old!r}; go on with the same recipe or "
            f"use another directory. Received: {name}={new!r}"
        )


def _trained(row: Recipe, base: Recipe, seed: int, maximum_length: int | None) -> Recipe:
    """A row as it is trained: with a seed, the common corpus, and no BLEU on the way."""
    data = base.data
    if maximum_length is not None:
        data = dataclasses.replace(data, maximum_length=maximum_length)
    training = dataclasses.replace(
        row.training,
        seed=seed,
        validate_every_steps=row.training.steps,
        validation_bleu_sentences=0,
    )
    return dataclasses.replace(row, data=data, training=training)


def _run_all(jobs: Sequence[_Job], base: Recipe, results: AblationResults) -> signal.Signals | None:
    """Trains and measures what has no results yet; returns the signal that has ended it early."""
    waiting = []
    for job in jobs:
        if results.get(job.row, job.seed) is None:
            waiting.append(job)
        else:
            _remove_checkpoints(job)
    done, start = len(jobs) - len(waiting), time.monotonic()
    if done:
        say(f"{done} of {len(jobs)} rows are measured")
    for number, job in enumerate(waiting):
        began, left = time.monotonic(), ""
        if number:
            minutes = (began - start) / number * (len(waiting) - number) / 60
            left = f"; about {minutes:.0f} minutes left"
        say(f"row {done + number + 1} of {len(jobs)}: {job.row}, seed {job.seed}{left}")
        # What the last row has left in Keras would stay until the end.
        keras.backend.clear_session()
        gc.collect()
        try:
            stopped_by = Trainer(job.recipe, job.run.path).train()
            if stopped_by is not None:
                return stopped_by
            figures: dict[str, Any] = measure(job.run, base.data, job.parts)
            diverged = not_finite(figures)
        except TrainingDiverged as error:
            diverged = str(error)
        if diverged is not None:
            figures, told = {"diverged": diverged}, diverged
        else:
            told = f"perplexity {figures['perplexity']:.3f}, BLEU {figures['bleu']:.2f}"
        say(f"{job.row}, seed {job.seed}: {told}")
        seconds = round(time.monotonic() - began, 1)
        results.add(job.row, job.seed, {**figures, "seconds": seconds})
        _remove_checkpoints(job)
    return None


def _remove_checkpoints(job: _Job) -> None:
    """Of a measured row; its averaged model stays."""
    shutil.rmtree(job.run.checkpoints().directory, ignore_errors=True)


def _fingerprints(recipe: Recipe) -> dict[str, str]:
    """SHA-256 of the files that are trained on and measured by."""
    splits = [name for name in ("train", "validation", "test") if getattr(recipe.data, name)]
    return {
        name: value
        for split in splits
        for name, value in open_split(recipe.data, split).fingerprints().items()
    }
