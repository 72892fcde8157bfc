"""The doctor of a run directory: gathers its facts, and has every probe look at them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer import Transformer
from keras_transformer.diagnosis import (
    decoding_probes,
    memory_probes,
    target_probes,
    text_probes,
    training_probes,
)
from keras_transformer.diagnosis.doctor import diagnose_model, settle
from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.sample import make_sample
from keras_transformer.errors import InputError
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.batching import TokenBatches
from trainers.corpus import ParallelCorpus, read_parallel_files
from trainers.evaluation import bleu_tokenizer, score_translations
from trainers.recipe import Recipe
from trainers.rescoring import Rescoring, find_mean
from trainers.run import RunDirectory
from trainers.run_log import RunLog
from trainers.splits import open_split, read_split

# Pairs that attentions and losses are looked at with, none longer than so many tokens.
_LONGEST = 60
_TRAINING_PAIRS = 2000
# Below, a search's settings make no difference that tells anything.
_LEAST_BLEU = 2.0
_DEMO = "shipped:tatoeba-deu-eng-demo.valid"
_PAPER_SIZES = {"the paper's base": 512, "the paper's big": 1024}


def examine(run_dir: str | Path, sentences: int = 200) -> list[Finding]:
    """Probes a run for the classic faults of a reproduction of the paper.

    Args:
        run_dir: path of a run, trained here or imported.
        sentences: int. Pairs that are looked at, and translated for what settings are worth.

    Returns:
        List of `Finding`, one a probe. Where `ok` is None, `detail` says why it could not be told.

    Raises:
        InputError: where the directory is no run, or has neither a model nor a log.

    Example:

    >>> examine("a/folder/that/is/none")
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: A run directory must hold a recipe.yaml. Received: \
a/folder/that/is/none
    """
    if sentences < 1:
        raise InputError(f"sentences must be at least 1. Received: {sentences}")
    run = RunDirectory(run_dir)
    recipe = run.load_recipe()
    lines = RunLog(run.path).lines()
    checkpoints = run.checkpoints()
    if not (run.model_path.exists() or checkpoints.steps() or lines):
        run.load_model()  # which says what is missing
    findings = _probe_log(recipe, lines)
    splits = _read_splits(recipe)
    if run.model_path.exists() or checkpoints.steps():
        findings += _probe_model(run, recipe, splits, sentences)
    else:
        findings.append(
            Finding(
                "finite_numbers",
                "divergence",
                None,
                {},
                "all weights, outputs and gradients are finite",
                "the run has neither model.keras nor a checkpoint: only its log can be looked at",
            )
        )
    findings += _probe_data(splits)
    return settle(findings)


def _probe_log(recipe: Recipe, lines: list[dict]) -> list[Finding]:
    """Of what the run has logged, and of the memory that its recipe needs."""
    training, config = recipe.training, recipe.transformer_config(4, None)
    sizes = {"d_ff": config.d_ff, "d_k": config.key_size, **_PAPER_SIZES}
    findings = [
        training_probes.learning_rate(
            lines,
            config.d_model,
            training.warmup_steps,
            training.learning_rate_factor,
            sizes,
        ),
        training_probes.loss_curve(lines),
        training_probes.gradient_norms(lines),
    ]
    if recipe.data.train is None:
        return [
            *findings,
            Finding("attention_memory", "memory", None, {}, "", "the run was not trained here"),
        ]
    devices = len(training.devices or ()) or 1
    batch_tokens = max(training.batch_tokens // devices, 1)
    longest = min(recipe.data.maximum_length, batch_tokens)
    return [
        *findings,
        memory_probes.attention_memory(config, batch_tokens, longest, training.accumulate_steps),
    ]


def _read_splits(recipe: Recipe) -> dict[str, ParallelCorpus]:
    """What can be read of the run's data: validation and test, and the start of train."""
    splits = {}
    for split in ("train", "validation", "test"):
        if getattr(recipe.data, split) is None:
            continue
        with contextlib.suppress(InputError):  # the run may have come without its data
            if split == "train":
                stretch = next(iter(open_split(recipe.data, split).stretches(_TRAINING_PAIRS)))
                splits[split] = ParallelCorpus(*stretch, split)
            else:
                splits[split] = read_split(recipe.data, split)
    return splits


def _probe_model(
    run: RunDirectory, recipe: Recipe, splits: dict[str, ParallelCorpus], sentences: int
) -> list[Finding]:
    """Of the model, of what it learns from, and of its translations."""
    tokenizer = run.load_tokenizer()
    latest = run.checkpoints().load_latest()
    model = run.load_model() if run.model_path.exists() else run.load_last_model()
    corpus = splits.get("validation") or splits.get("test")
    is_own = corpus is not None and len(corpus) > 0
    if not is_own:
        corpus = _demo_corpus(recipe)
    rows = _rows(corpus, tokenizer, sentences)
    sample = make_sample(*rows)
    batch = _training_batch(rows, recipe) if is_own else None
    trained, loss = (latest[0], latest[0].loss) if latest else (None, None)
    is_finite = all(np.isfinite(weight).all() for weight in model.get_weights())
    perplexity = target_probes.perplexity(model, sample) if is_finite else float("inf")
    is_trained = perplexity <= text_probes.TRAINED_PERPLEXITY
    findings = diagnose_model(model, sample, loss, trained, batch, is_trained)
    if not is_finite:
        return findings + _without_translations("the model has weights that are not finite")
    scored = splits.get("test") or splits.get("validation")
    speaks = recipe.data.target_language is not None
    if (scored is None or not len(scored)) and speaks and _has_demo_languages(recipe):
        scored = _demo_corpus(recipe)
    if scored is None or not len(scored) or not speaks:
        return findings + _without_translations("the run has no sentences to translate")
    end = target_probes.end_probability(model, sample)
    return findings + _probe_translations(run, recipe, model, scored, sentences, perplexity, end)


def _probe_translations(
    run: RunDirectory,
    recipe: Recipe,
    model: Transformer,
    corpus: ParallelCorpus,
    sentences: int,
    perplexity: float,
    end: float,
) -> list[Finding]:
    """Of a sample's translations, and what each setting is worth by translating it again."""
    decoding, language = recipe.decoding, recipe.data.target_language
    sources, references = corpus.sources[:sentences], corpus.targets[:sentences]
    rescoring = Rescoring(recipe, model, run.load_tokenizer(), sources, references)
    translations = rescoring.translations()
    scores = score_translations(translations, references, language)
    bleu = scores["bleu"]
    is_worth_it = bleu >= _LEAST_BLEU
    cut = rescoring.share_at_limit(translations)
    ample = decoding_probes.is_ample(decoding.maximum_extra_length, decoding.maximum_length)
    findings = [
        text_probes.repeated_words(translations, references, perplexity),
        text_probes.translation_length(translations, references, perplexity),
        text_probes.end_token(1 - cut if ample else None, end, perplexity),
        decoding_probes.length_limit(cut, decoding.maximum_extra_length, decoding.maximum_length),
        decoding_probes.beam(
            decoding.beam_size,
            {
                str(size): rescoring.bleu(beam_size=size)
                for size in (1, 4)
                if is_worth_it or size == decoding.beam_size
            },
        ),
        decoding_probes.length_penalty(
            decoding.alpha,
            decoding.length_penalty,
            {
                f"{alpha:g}": rescoring.bleu(alpha=alpha)
                for alpha in (0.0, 0.6)
                if is_worth_it or alpha == decoding.alpha
            },
        ),
        _averaging(run, recipe, model, rescoring, is_worth_it),
        decoding_probes.bleu_signature(
            scores["bleu_signature"],
            bleu_tokenizer(language),
            language,
        ),
    ]
    plain = [text_probes.detokenized(text) for text in references]
    detokenized = score_translations(
        [text_probes.detokenized(text) for text in translations], plain, language
    )
    findings.append(
        text_probes.tokenized_text(
            {"references": references, "translations": translations},
            {"as_it_is": bleu, "detokenized": detokenized["bleu"]},
        )
    )
    return findings


def _averaging(
    run: RunDirectory,
    recipe: Recipe,
    model: Transformer,
    rescoring: Rescoring,
    is_worth_it: bool,
) -> Finding:
    """Of how many checkpoints model.keras is the mean, and what that is worth."""
    training, steps = recipe.training, run.checkpoints().steps()
    bound = "the mean of at least 2 checkpoints, or a moving average"
    if not run.model_path.exists():
        reason = "the run has no model.keras yet"
    elif len(steps) < 2:
        reason = f"the run has {len(steps)} checkpoints"
    else:
        mean_of, last, mean = find_mean(
            run.checkpoints(), model, training.average_checkpoints, training.ema_decay is not None
        )
        bleu = {}
        if is_worth_it:
            bleu = {"model": rescoring.bleu(), "last": rescoring.bleu_of_weights(last)}
            if mean_of == 1:
                bleu["averaged"] = rescoring.bleu_of_weights(mean)
        return decoding_probes.averaging(mean_of, training.average_checkpoints, bleu)
    return Finding("averaging", "bleu", None, {}, bound, reason)


def _without_translations(reason: str) -> list[Finding]:
    names = {
        **dict.fromkeys(("repeated_words", "translation_length", "end_token"), "repetition"),
        **dict.fromkeys(("length_limit", "beam", "length_penalty", "averaging"), "bleu"),
        "bleu_signature": "bleu",
        "tokenized_text": "bleu",
    }
    return [Finding(name, trouble, None, {}, "", reason) for name, trouble in names.items()]


def _probe_data(splits: dict[str, ParallelCorpus]) -> list[Finding]:
    return [
        text_probes.pairing({name: (each.sources, each.targets) for name, each in splits.items()})
    ]


def _has_demo_languages(recipe: Recipe) -> bool:
    data = recipe.data
    return {data.source_language, data.target_language} == {"en", "de"}


def _demo_corpus(recipe: Recipe) -> ParallelCorpus:
    """Real sentences for a run that came without any, in its languages where they fit."""
    corpus = read_parallel_files(f"{_DEMO}.en.xz", f"{_DEMO}.de.xz")
    if recipe.data.source_language == "de":
        corpus = dataclasses.replace(corpus, sources=corpus.targets, targets=corpus.sources)
    return corpus


def _rows(
    corpus: ParallelCorpus, tokenizer: TranslationTokenizer, sentences: int
) -> tuple[Sequence[list[int]], Sequence[list[int]]]:
    """Ids of the first pairs that are neither empty nor long."""
    targets = corpus.targets[: 2 * sentences]
    if text_probes.tokenized_text({"references": targets}, None).ok is False:
        # Which is a fault of its own, and no measure of the model.
        targets = [text_probes.detokenized(text) for text in targets]
    sides = (
        tokenizer.source.encode_batch(corpus.sources[: 2 * sentences]),
        tokenizer.target.encode_batch(targets),
    )
    kept = [
        pair for pair in zip(*sides, strict=True) if all(0 < len(ids) <= _LONGEST for ids in pair)
    ]
    if not kept:
        raise InputError(
            f"{corpus.name} must have a pair of at most {_LONGEST} tokens to look at. Received: "
            "none"
        )
    sources, targets = zip(*kept[:sentences], strict=True)
    return sources, targets


def _training_batch(rows: Any, recipe: Recipe) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs and labels of some pairs, by the code that training gets its batches from."""
    sources, targets = (side[:16] for side in rows)
    batches = TokenBatches(sources, targets, batch_tokens=16 * (_LONGEST + 1), seed=0)
    return batches.batch(np.arange(len(sources)))
