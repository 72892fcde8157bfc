"""The commands that make runs: `prepare`, `train`, `average`, `import-marian`, `benchmark`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from keras_transformer.command_io import print_result, progress_on_stderr, say


def prepare(options: argparse.Namespace) -> int:
    """Tokenizes a recipe's training corpus into files, once; broken off, it goes on."""
    from trainers.prepare import prepare_corpus
    from trainers.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides, _run_directory(options))
    folder = options.prepared_dir or recipe.data.prepared_dir
    if folder is None:
        folder = _run_directory(options) / "prepared"
    try:
        with progress_on_stderr():
            corpus = prepare_corpus(recipe, folder)
    except SystemExit:
        say("stopped by a signal; the same command goes on")
        raise
    result = {
        "path": str(corpus.folder),
        "pairs": len(corpus),
        "source_tokens": int(corpus.source.lengths.sum(dtype="int64")),
        "target_tokens": int(corpus.target.lengths.sum(dtype="int64")),
    }
    text = "{path}: {pairs} pairs, {source_tokens} source and {target_tokens} target tokens"
    return print_result(options, result, text.format(**result))


def train(options: argparse.Namespace) -> int:
    """Trains a recipe; the same command again resumes."""
    from keras_transformer.errors import InputError
    from trainers.callbacks import TrainingDiverged
    from trainers.launch import launch
    from trainers.recipe import load_recipe
    from trainers.trainer import Trainer
    from trainers.workers import WorkerLost

    run = _run_directory(options)
    recipe = load_recipe(options.recipe, options.overrides, run)
    if options.workers is not None:
        if recipe.training.devices is not None:
            raise InputError(
                "training.devices must be null with --workers, each of which takes all GPUs that "
                f"it sees. Received: {list(recipe.training.devices)}"
            )
        command = [sys.executable, "-m", "keras_transformer", "train", options.recipe]
        command += ["--run-dir", str(run), *(["--json"] if options.json else [])]
        return launch([*command, *options.overrides], options.workers)
    try:
        with progress_on_stderr():
            trainer = Trainer(recipe, run)
            ended_by = trainer.train()
    except (TrainingDiverged, WorkerLost) as error:
        say(f"keras-transformer: {error}")
        return 1
    except SystemExit as end:  # before the first update, or after the last
        if end.code != 128 + signal.SIGTERM:
            raise
        say("stopped by a signal; the same command goes on")
        return 0
    if trainer.workers.is_chief:
        result = {"run_dir": str(run), "finished": ended_by is None}
        print_result(options, result, f"{'stopped' if ended_by else 'trained'} {run}")
    return 0 if ended_by is None else trainer.stop.exit_code


def average(options: argparse.Namespace) -> int:
    """Writes RUN/model.keras from the last N checkpoints."""
    from trainers.run import RunDirectory

    run = RunDirectory(options.run)
    model = run.average(options.last)
    return print_result(
        options,
        {"model": str(run.model_path), "checkpoints": model.checkpoints},
        f"{run.model_path}: {model.what}",
    )


def import_marian(options: argparse.Namespace) -> int:
    """Makes a run directory of an OPUS-MT or Marian checkpoint."""
    from trainers import imported

    result = imported.import_marian(
        options.checkpoint,
        options.run_dir,
        options.source_language,
        options.target_language,
        options.normalize_punctuation,
    )
    sides = ("source", "target")
    for side in sides:
        if result[f"{side}_language"] is None:
            say(f"the checkpoint does not tell its {side} language; --{side}-language does")
    languages = [result[f"{side}_language"] or "?" for side in sides]
    text = (
        f"{result['run_dir']}: {' to '.join(languages)}, {result['parameters']:,} parameters, "
        f"{result['vocabulary_size']:,} words"
    )
    return print_result(options, result, text)


def benchmark(options: argparse.Namespace) -> int:
    """Measures the speed of training or of decoding."""
    from trainers import benchmark as benchmarks

    arguments = {name: value for name, value in vars(options).items() if name in options.settings}
    result = getattr(benchmarks, f"measure_{options.what}")(**arguments)
    return print_result(options, result, json.dumps(result, indent=2))


def _run_directory(options: argparse.Namespace) -> Path:
    return options.run_dir or Path("runs") / Path(options.recipe).stem
