"""Small corpora, recipes and trainings that several tests use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from keras_transformer import Transformer
from trainers.recipe import Recipe, load_recipe
from trainers.run import RunDirectory
from trainers.trainer import Trainer

ROOT = Path(__file__).parent.parent
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}

TRAINING_KEYS = {
    "step",
    "loss",
    "learning_rate",
    "gradient_norm",
    "layer_gradient_norms",
    "target_tokens_per_second",
    "padding",
}
VALIDATION_KEYS = {
    "step",
    "val_loss",
    "val_perplexity",
    "val_token_accuracy",
    "val_bleu",
    "val_chrf",
}

# No BLEU, which takes most of the time of so small a run; dropout is on.
RECIPE = """
data:
  source_language: en
  target_language: de
  train: {{source: {folder}/train.en, target: {folder}/train.de}}
  validation: {{source: {folder}/valid.en, target: {folder}/valid.de}}
  test: {{source: {folder}/valid.en, target: {folder}/valid.de}}
  maximum_length: 40
tokenizer: {{vocabulary_size: 290}}
model:
  num_encoder_layers: 1
  num_decoder_layers: 1
  d_model: 16
  d_ff: 32
  num_heads: 2
  dropout: 0.1
training:
  seed: 3
  steps: 8
  batch_tokens: 120
  warmup_steps: 5
  checkpoint_every_steps: 3
  keep_checkpoints: 3
  average_checkpoints: 2
  validate_every_steps: 4
  validation_bleu_sentences: 0
  log_every_steps: 3
decoding: {{beam_size: 2, maximum_extra_length: 5}}
"""


def write_corpus(folder: Path, seed: int = 0) -> None:
    """Numbers in English and German: 100 pairs to train on and 12 to validate by."""
    random = np.random.default_rng(seed)
    for split, pairs in (("train", 100), ("valid", 12)):
        rows = [random.choice(list(WORDS), random.integers(2, 9)) for _ in range(pairs)]
        sides = {
            "en": [" ".join(row) for row in rows],
            "de": [" ".join(WORDS[word] for word in row) for row in rows],
        }
        for language, lines in sides.items():
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_bytes(text.encode())


def write_recipe(folder: Path) -> Path:
    """A folder with a corpus and its `recipe.yaml`, whose path is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder)
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder))
    return path


def small_recipe(path: Path, **training) -> Recipe:
    """The recipe with changes to its section `training`."""
    return load_recipe(path, [f"training.{name}={value}" for name, value in training.items()])


def train(recipe_path: Path, run: Path, **training) -> RunDirectory:
    """Trains in this process."""
    ended_by = Trainer(small_recipe(recipe_path, **training), run).train()
    assert ended_by is None, "a signal has ended this training"
    return RunDirectory(run)


def in_new_process(*arguments, **options) -> subprocess.CompletedProcess:
    """Runs `python ARGUMENTS` to its end, with this tree's packages and these helpers."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        **options,
    )


def environment() -> dict[str, str]:
    """The environment of a new process that finds this tree's packages and these helpers."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}


def read_metrics(run: RunDirectory) -> list[dict]:
    text = (run.path / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def last_checkpoint(run: RunDirectory) -> tuple[Transformer, dict]:
    found = run.checkpoints().load_latest()
    assert found is not None
    return found


def everything_in(model: Transformer) -> dict[str, np.ndarray]:
    """Weights, random seeds, and the optimizer's slots and step, under names that never vary."""
    arrays = {}
    for number, variable in enumerate(model.variables):
        is_seed = variable.name == "seed_generator_state"
        arrays[f"seed {number}" if is_seed else variable.path] = variable.numpy()
    for variable in model.optimizer.variables:
        # The optimizer's own name is numbered within the process: adam, adam_1 ...
        arrays["optimizer/" + variable.path.split("/", 1)[1]] = variable.numpy()
    return arrays


def largest_difference(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """Largest absolute difference of two sets of arrays of the same names."""
    assert first.keys() == second.keys()
    return max(
        float(np.abs(first[name].astype("float64") - second[name]).max(initial=0.0))
        for name in first
    )
