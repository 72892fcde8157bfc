"""What a report shows of a run: its log, its translations, its versions, as far as it has them."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

import sacrebleu

from keras_transformer import __version__
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator
from trainers.evaluation import score_translations
from trainers.recipe import Recipe
from trainers.run import RunDirectory
from trainers.run_log import RunLog
from trainers.splits import read_split

# For the explorer of a run without a corpus at hand that translates from English.
ENGLISH = (
    "I would like a cup of coffee.",
    "Where is the nearest station?",
    "She has never been to Germany.",
    "The book that I bought yesterday is on the table.",
)
_PACKAGES = ("tensorflow", "keras", "tensorflow-text", "sentencepiece", "sacrebleu", "numpy")


class Sample(NamedTuple):
    """A test sentence, the model's translation, its reference and how well the two agree."""

    source: str
    translation: str
    reference: str | None
    chrf: float | None


class Translated(NamedTuple):
    """Test sentences that the model has translated.

    Args:
        samples: list of `Sample`, in the corpus' order.
        scores: dict as of `score_translations`, or None where there are no references.
        what: str. Where the sentences are from, such as `"the first 200 test sentences"`.
    """

    samples: list[Sample]
    scores: dict[str, Any] | None
    what: str


def translate_sample(recipe: Recipe, translator: Translator, sentences: int) -> Translated:
    """Translates the first sentences of the run's test set.

    Where it has none at hand, those of its validation set; and where that is missing too, some
    English ones if English is what it translates from. Nothing is downloaded.

    Args:
        recipe: `Recipe` of the run.
        translator: `Translator` of the run.
        sentences: int. At most so many are translated.

    Returns:
        `Translated`, with no samples where there is nothing to translate.
    """
    for split in ("test", "validation"):
        files = getattr(recipe.data, split)
        if files is None or files.tfds is not None:
            continue  # reading it could start a download
        try:
            corpus = read_split(recipe.data, split)
        except InputError:
            continue  # the run has come here without its corpus
        pairs = list(zip(corpus.sources[:sentences], corpus.targets[:sentences], strict=True))
        pairs = [(source, target) for source, target in pairs if source.strip()]
        if not pairs:
            continue
        sources, references = map(list, zip(*pairs, strict=True))
        translations = _translate(translator, sources, recipe)
        samples = [
            Sample(*row, round(sacrebleu.sentence_chrf(row[1], [row[2]]).score, 1))
            for row in zip(sources, translations, references, strict=True)
        ]
        scores = score_translations(translations, references, recipe.data.target_language)
        return Translated(samples, scores, f"the first {len(samples)} {split} sentences")
    if (recipe.data.source_language or "").lower().split("-")[0] not in ("en", "eng"):
        return Translated([], None, "")
    translations = _translate(translator, ENGLISH, recipe)
    samples = [Sample(*row, None, None) for row in zip(ENGLISH, translations, strict=True)]
    return Translated(samples, None, "sentences that come with the package")


def best_and_worst(samples: Sequence[Sample], count: int = 5) -> tuple[list[Sample], list[Sample]]:
    """The translations that agree most and least with their references, by chrF.

    Of equally good ones the longer come first, which are harder.

    Args:
        samples: sequence of `Sample`.
        count: int. How many of each, at most; none is both.

    Example:

    >>> samples = [Sample("a", "x", "y", 10.0), Sample("b", "z", "z", 100.0)]
    >>> [[sample.source for sample in few] for few in best_and_worst(samples)]
    [['b'], ['a']]
    """
    scored = list(dict.fromkeys(sample for sample in samples if sample.chrf is not None))
    ranked = sorted(scored, key=lambda sample: (-sample.chrf, -len(sample.source)))
    count = min(count, (len(ranked) + 1) // 2)
    worst = ranked[max(count, len(ranked) - count) :]
    return ranked[:count], worst[::-1]


def steps_and_minutes(run: RunDirectory) -> tuple[int | None, float | None]:
    """How far the run was trained, by its last checkpoint or else by its log."""
    step = max((line["step"] for line in RunLog(run.path).lines()), default=None)
    seconds = None
    checkpoints = run.checkpoints()
    if checkpoints.steps():
        last = checkpoints.steps()[-1]
        try:
            state = json.loads((checkpoints.path(last) / "state.json").read_bytes())
            step, seconds = last, state.get("seconds")
        except (OSError, ValueError):
            pass  # the log has to do
    return step, None if seconds is None else seconds / 60


def versions() -> list[tuple[str, str]]:
    """The program that writes the report: names and versions.

    Example:

    >>> dict(versions())["keras_transformer"] == __version__
    True
    """
    found = [("keras_transformer", __version__), ("python", platform.python_version())]
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    found.append(("machine", f"{platform.system()} {platform.machine()}"))
    found.append(("report written", f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"))
    return found


def _translate(translator: Translator, sources: Sequence[str], recipe: Recipe) -> list[str]:
    found = translator.translate(sources, recipe.decoding.batch_sentences)
    return [hypotheses[0].text for hypotheses in found]
