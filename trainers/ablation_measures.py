"""What is measured of a trained row: perplexity and BLEU, also on sentences of unseen length."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer import SmoothedCrossEntropy
from keras_transformer.errors import InputError
from trainers.evaluation import evaluate
from trainers.prepared import PreparedCorpus
from trainers.recipe import Recipe
from trainers.recipe_keys import DataSection, Files
from trainers.run import RunDirectory
from trainers.splits import read_split
from trainers.validation import validation_of

# Parts of the test set: pairs as long as those that were trained on, and longer ones.
LENGTHS = ("within", "longer")


def measure(run: RunDirectory, data: DataSection, parts: Mapping[str, Files]) -> dict[str, Any]:
    """Perplexity and BLEU of a run's averaged model on the validation set, as in table 3.

    Perplexity is by subword and without label smoothing, and leaves out pairs with a side above
    `data.maximum_length`, as training does. BLEU is sacreBLEU's, with the beam of the run's
    recipe, on all pairs.

    Args:
        run: `RunDirectory` of a finished run.
        data: the section `data` that all rows are measured by: its `maximum_length` may be above
            the one that the run was trained with.
        parts: further pairs to measure on, by name.

    Returns:
        A dict: `perplexity`, `bleu`, `bleu_signature`, `pairs` (those of BLEU), `parameters`, and
        for each of `parts` a dict of the first four.
    """
    model, tokenizer, recipe = run.load_model(), run.load_tokenizer(), run.load_recipe()
    model.compile(loss=SmoothedCrossEntropy(recipe.training.label_smoothing))
    translator = run.load_translator(model)

    def figures_on(files: Files) -> dict[str, Any]:
        section = dataclasses.replace(data, validation=files)
        corpus = read_split(section, "validation")
        scores = evaluate(
            translator,
            corpus.sources,
            corpus.targets,
            section.target_language,
            recipe.decoding.batch_sentences,
        )
        validation = validation_of(dataclasses.replace(recipe, data=section), model, tokenizer)
        return {
            "perplexity": validation()["val_perplexity"],
            "bleu": scores["bleu"],
            "bleu_signature": scores["bleu_signature"],
            "pairs": len(corpus),
        }

    return {
        **figures_on(data.validation),
        "parameters": model.count_params(),
        **{name: figures_on(files) for name, files in parts.items()},
    }


def median_length(corpus: PreparedCorpus) -> int:
    """Median of the tokens of a training pair's longer side, its begin or end token counted."""
    return 1 + int(np.median(np.maximum(corpus.source.lengths, corpus.target.lengths)))


def write_length_parts(
    recipe: Recipe, corpus: PreparedCorpus, limit: int, directory: Path
) -> dict[str, Files]:
    """Parts `data.test` by length: pairs as long as those trained on, and longer ones.

    Args:
        recipe: `Recipe`.
        corpus: `PreparedCorpus`, for its tokenizer.
        limit: int. Most tokens of a side, the begin or end token counted.
        directory: path of the folder that the text files are written to.

    Returns:
        `Files` of each of `LENGTHS`.

    Raises:
        InputError: where one of them would be empty.
    """
    test, tokenizer = read_split(recipe.data, "test"), corpus.tokenizer
    lengths = [
        1 + max(len(source), len(target))
        for source, target in zip(
            tokenizer.source.encode_batch(test.sources),
            tokenizer.target.encode_batch(test.targets),
            strict=True,
        )
    ]
    files = {}
    for name in LENGTHS:
        rows = [row for row, each in enumerate(lengths) if (each > limit) == (name == "longer")]
        if not rows:
            raise InputError(
                f"data.test must have pairs of at most {limit} tokens a side, the median of "
                f"data.train, and longer ones. Received: {len(lengths)} pairs, none {name}"
            )
        paths = {side: directory / f"test-{name}.{side}" for side in ("source", "target")}
        for side, sentences in (("source", test.sources), ("target", test.targets)):
            paths[side].write_bytes("".join(f"{sentences[row]}\n" for row in rows).encode())
        files[name] = Files(**{side: str(path) for side, path in paths.items()})
    return files
