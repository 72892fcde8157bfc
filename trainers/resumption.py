"""What may differ when a run is started again, and what may not."""

from __future__ import annotations

import json
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.recipe import Recipe
from trainers.run import RunDirectory
from trainers.splits import open_split

# How fast a run trains, when it ends, and what it logs and keeps, may change from one start to the
# next: what it learns from an update does not depend on them.
CHANGEABLE = (
    {
        ("training", name)
        for name in (
            "steps",
            "minutes",
            "devices",
            "accumulate_steps",
            "checkpoint_every_steps",
            "checkpoint_every_minutes",
            "keep_checkpoints",
            "average_checkpoints",
            "validate_every_steps",
            "validation_bleu_sentences",
            "log_every_steps",
        )
    }
    | {
        ("decoding", name)
        for name in (
            "beam_size",
            "alpha",
            "length_penalty",
            "early_stopping",
            "ends_within",
            "forced_end",
            "suppressed_tokens",
            "batch_sentences",
        )
    }
    | {("data", "prepared_dir")}
)


def check_same_recipe(before: Recipe, now: Recipe, run: Path) -> None:
    """Refuses to go on by a recipe that would train another model, or on other data.

    Args:
        before: `Recipe` that the run was started with.
        now: `Recipe` it is to go on with.
        run: path of the run directory, for the message.

    Raises:
        InputError: naming the first key that differs.
    """
    if before.data.train is None:
        raise InputError(
            "--run-dir must be a directory of its own; training.initial_run goes on from an "
            f"imported run. Received: {run}, which holds an imported run"
        )
    difference = first_difference(before, now, CHANGEABLE)
    if difference is not None:
        name, old, new = difference
        raise InputError(
            f"{run} holds a run with {name}={old!r}; resume it with the same recipe or train in "
            f"another directory. Received: {name}={new!r}"
        )


def first_difference(
    one: Recipe, two: Recipe, except_for: set[tuple[str, str]] = frozenset()
) -> tuple[str, object, object] | None:
    """The first key in which two recipes differ, with both values; None where there is none."""
    values, others = one.to_dict(), two.to_dict()
    for section in others:
        for name, other in others[section].items():
            value = values[section].get(name)
            if (section, name) not in except_for and value != other:
                return f"{section}.{name}", value, other
    return None


def check_fingerprints(run: RunDirectory, recipe: Recipe, tokenizer: TranslationTokenizer) -> None:
    """Refuses to go on with another corpus or vocabulary than the run was trained with.

    Args:
        run: `RunDirectory`. Its last checkpoint knows what it was trained with.
        recipe: `Recipe`, whose training and validation splits there are now.
        tokenizer: the run's `TranslationTokenizer`.

    Raises:
        InputError: naming the file, or the tokenizer.
    """
    steps = run.checkpoints().steps()
    if not steps:
        return
    try:
        state = json.loads((run.checkpoints().path(steps[-1]) / "state.json").read_text())
        expected = {**state["corpus"], str(run.tokenizer_path): state["tokenizer"]}
    except (OSError, ValueError, KeyError, TypeError):
        return  # Damaged: whoever loads it says so.
    found = {str(run.tokenizer_path): tokenizer.fingerprint}
    for split in ("train", "validation"):
        found |= open_split(recipe.data, split).fingerprints()
    for name in dict.fromkeys([*expected, *found]):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{name} must be what the run was trained with: put it back, or train in another "
                f"directory than {run.path}. Expected sha256 {expected.get(name)}. "
                f"Received: {found.get(name)}"
            )
