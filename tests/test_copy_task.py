"""A small model learns to copy and to reverse: attention, positions and search all work."""

from pathlib import Path

import numpy as np
import pytest

from trainers.recipe import Recipe
from trainers.run import RunDirectory
from trainers.trainer import Trainer

pytestmark = pytest.mark.slow

TASKS = {"copy": lambda digits: digits, "reverse": lambda digits: digits[::-1]}
HELD_OUT = 500


def sequences(count: int, seed: int) -> list[tuple[int, ...]]:
    """Different sequences of 3 to 10 random digits."""
    random = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        found[tuple(random.integers(0, 10, random.integers(3, 11)).tolist())] = None
    return list(found)


def text(digits: tuple[int, ...]) -> str:
    return " ".join(map(str, digits))


def recipe(folder: Path, seed: int) -> Recipe:
    def files(split):
        return {"source": str(folder / f"{split}.in"), "target": str(folder / f"{split}.out")}

    return Recipe.from_dict(
        {
            "data": {
                "source_language": "in",
                "target_language": "out",
                "train": files("train"),
                "validation": files("validation"),
            },
            # 4 control words, 256 bytes, the space, 10 digits, and 10 digits after a space.
            "tokenizer": {"vocabulary_size": 281},
            "model": {
                "num_encoder_layers": 2,
                "num_decoder_layers": 2,
                "d_model": 64,
                "d_ff": 128,
                "num_heads": 4,
                "dropout": 0.0,
                "norm": "pre",
            },
            "training": {
                "seed": seed,
                "steps": 1000,
                "batch_tokens": 1024,
                "warmup_steps": 200,
                "learning_rate_factor": 0.25,
                "checkpoint_every_steps": 50,
                "average_checkpoints": 5,
                "validate_every_steps": 500,
                "validation_bleu_sentences": 0,
            },
        }
    )


@pytest.fixture(scope="module", params=TASKS)
def task(request, tmp_path_factory):
    """A trained run, and sequences that it has not seen with what should come out."""
    answer = TASKS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    every = sequences(20_000 + HELD_OUT + 100, seed=1)
    held_out = every[:HELD_OUT]
    splits = {"validation": every[HELD_OUT : HELD_OUT + 100], "train": every[HELD_OUT + 100 :]}
    for split, rows in splits.items():
        for side, words in (("in", rows), ("out", [answer(row) for row in rows])):
            (folder / f"{split}.{side}").write_text("".join(f"{text(row)}\n" for row in words))
    Trainer(recipe(folder, seed=1), folder / "run").train()
    sources = [text(row) for row in held_out]
    return RunDirectory(folder / "run"), sources, [text(answer(row)) for row in held_out]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_99_of_100_unseen_sequences_come_out_exactly(task, beam_size):
    run, sources, expected = task
    translator = run.load_translator(beam_size=beam_size)
    found = [best[0].text for best in translator.translate(sources)]
    exact = np.mean([one == other for one, other in zip(found, expected, strict=True)])
    print(f"exact {exact:.1%}")
    assert exact >= 0.99
