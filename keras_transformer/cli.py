"""The command line: `keras-transformer COMMAND`. The one file that imports all three packages."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.command_io import (
    check_output,
    print_json,
    print_result,
    print_translations,
    progress_on_stderr,
    refuse,
    say,
    say_cut,
    scores_text,
    translations_text,
    write_lines,
)
from keras_transformer.command_line import command_line
from trainers.commands import average, benchmark, import_marian, prepare, train
from trainers.study_commands import ablate, attention, complexity, doctor, report

if TYPE_CHECKING:  # each command imports what it needs, when it runs
    from export.loaded import ExportedTranslator
    from keras_transformer.translator import Translator
    from trainers.recipe import Recipe

DEMO_RECIPE = "tatoeba-en-de-small.yaml"
_CARD_SCORES = ("bleu", "bleu_signature", "chrf", "sentences")
DEMO_SENTENCES = (
    "I would like a cup of coffee.",
    "Where is the nearest station?",
    "She has never been to Germany.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 on success, 2 on bad input, 1 on failure."""
    parser = command_line(COMMANDS)
    options = parser.parse_args(arguments)
    if threading.current_thread() is threading.main_thread():
        # Ends as Ctrl-C does, with what is half written removed.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    from keras_transformer.errors import InputError

    try:
        return options.command(options) or 0
    except InputError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has closed it; nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130


def evaluate(options: argparse.Namespace) -> int:
    """Translates a test set and scores it."""
    from trainers.corpus import read_parallel_files
    from trainers.evaluation import evaluate as evaluate_translator
    from trainers.splits import read_split

    # What can be wrong with the arguments is found before a model is loaded.
    check_output(options.output, options.source, options.reference)
    recipe = _recipe(options)
    if (options.source is None) != (options.reference is None):
        missing = "--reference" if options.reference is None else "--source"
        refuse("--source and --reference must be given together", f"no {missing}")
    language = options.language or _target_language(options, recipe)
    if options.source:
        corpus = read_parallel_files(options.source, options.reference)
    elif recipe and recipe.data.test:
        corpus = read_split(recipe.data, "test")
    elif recipe:
        refuse("A run without data.test is evaluated on --source and --reference", "neither")
    else:
        refuse("An export is evaluated on --source and --reference", "neither")
    translator = _translator(options, recipe)
    result = evaluate_translator(
        translator,
        corpus.sources,
        corpus.targets,
        language,
        _batch_sentences(recipe),
        on_cut=say_cut("source", translator.maximum_source_length),
    )
    translations = result.pop("translations")
    if options.output:
        write_lines(options.output, translations)
    return print_result(options, result, scores_text(result))


def translate(options: argparse.Namespace) -> int:
    """Translates N lines into N lines, in order."""
    check_output(options.output, options.input)
    recipe = _recipe(options)
    if options.n_best and options.beam_size and options.n_best > options.beam_size:
        refuse(f"--n-best must be at most --beam-size, {options.beam_size}", options.n_best)
    lines = _read_lines(options.input)
    translator = _translator(options, recipe, n_best=options.n_best or 1)
    on_cut = say_cut("source", translator.maximum_source_length)
    results = translator.translate(lines, _batch_sentences(recipe), on_cut)
    return print_translations(options, results, options.n_best)


def score(options: argparse.Namespace) -> int:
    """Prints the log-probability of each pair of lines."""
    from trainers.corpus import read_parallel_files

    recipe = _recipe(options)
    corpus = read_parallel_files(options.source, options.target)
    translator = _translator(options, recipe)
    results = translator.score(
        corpus.sources, corpus.targets, _batch_sentences(recipe), say_cut("source or target")
    )
    if options.json:
        print_json(
            {
                "log_probabilities": [value for value, _ in results],
                "tokens": [count for _, count in results],
            }
        )
    else:
        write_lines(None, [f"{value:.6f}" for value, _ in results])
    return 0


def export(options: argparse.Namespace) -> int:
    """Writes BASE/N/saved_model.pb."""
    from export.publish import check_publication
    from export.saved_model import export_translator
    from export.signatures import check_signatures
    from trainers.run import RunDirectory, with_policy

    check_publication(options.output, options.version, options.keep)
    signatures = check_signatures(options.signatures)
    run = RunDirectory(options.run)
    recipe = run.load_recipe()
    model = run.load_model() if options.weights == "averaged" else run.load_last_model()
    translator = run.load_translator(
        with_policy(model, options.precision),
        beam_size=options.beam_size,
        alpha=options.alpha,
        length_penalty=options.length_penalty,
        maximum_source_length=options.maximum_source_length,
        maximum_extra_length=options.maximum_extra_length,
    )
    path = export_translator(
        translator,
        options.output,
        options.version,
        _validation_sample(recipe),
        signatures,
        options.keep,
        facts={
            "recipe": recipe.to_dict(),
            "weights": options.weights if recipe.data.train else "imported",
            "bleu": _measure_bleu(translator, recipe, options.bleu_sentences),
        },
    )
    return print_result(options, {"path": str(path), "version": int(path.name)}, f"exported {path}")


def check_export(options: argparse.Namespace) -> int:
    """Runs the gates that an export must pass; exit code 1 where one fails."""
    from export.checking.checks import check_export as check

    def report(name: str, gate: dict[str, Any]) -> None:
        if not options.json:
            write_lines(None, [f"{'ok  ' if gate['ok'] else 'FAIL'} {name}: {gate['detail']}"])

    result = check(options.export, options.fuzz, report)
    if options.json:
        print_json(result)
    return 0 if result["ok"] else 1


def serve_client(options: argparse.Namespace) -> int:
    """Translates N lines into N lines through a TensorFlow Serving server."""
    from export.serving.client import ServingClient
    from export.serving.server_address import ServingError

    check_output(options.output, options.input)
    lines = _read_lines(options.input)
    client = ServingClient(
        options.url,
        model=options.model,
        timeout=options.timeout,
        retry_seconds=options.retry_seconds,
        concurrency=options.concurrency,
    )
    n_best = options.n_best or 1
    try:
        with client:
            results = client.translate(lines, options.batch_size, n_best, say_cut("source"))
    except ServingError as error:
        say(f"keras-transformer: {error}")
        return 1  # the server's fault, and not that of what was typed
    return print_translations(options, results, options.n_best)


def demo(options: argparse.Namespace) -> int:
    """The whole path on the shipped corpus."""
    from export.checking.checks import check_export as check
    from export.loaded import ExportedTranslator
    from export.saved_model import export_translator
    from trainers.evaluation import evaluate as evaluate_translator
    from trainers.recipe import load_recipe
    from trainers.run import RunDirectory
    from trainers.splits import read_split
    from trainers.trainer import Trainer

    overrides = [] if options.minutes is None else [f"training.minutes={options.minutes}"]
    recipe = load_recipe(DEMO_RECIPE, overrides)
    run = RunDirectory(options.run_dir)
    with progress_on_stderr():
        Trainer(recipe, run.path).train()
    say("evaluating the averaged model on the test sentences")
    test = read_split(recipe.data, "test")
    translator = run.load_translator()
    scores = evaluate_translator(
        translator, test.sources, test.targets, recipe.data.target_language
    )
    translations = scores.pop("translations")
    say(f"BLEU {scores['bleu']:.2f} ({scores['bleu_signature']})")
    say("exporting")
    bleu = {key: scores[key] for key in _CARD_SCORES} | {"split": "test"}
    path = export_translator(
        translator,
        run.path / "export",
        sample=_validation_sample(recipe),
        facts={"recipe": recipe.to_dict(), "weights": "averaged", "bleu": bleu},
    )
    gates = check(path)
    failed = [name for name, gate in gates.items() if name != "ok" and not gate["ok"]]
    if failed:
        say(f"the export failed {', '.join(failed)}: keras-transformer check-export {path}")
    served = ExportedTranslator(path).translate(DEMO_SENTENCES)
    examples = [
        {"source": source, "translation": found[0].text}
        for source, found in zip(DEMO_SENTENCES, served, strict=True)
    ]
    rows = [(example["source"], example["translation"], None) for example in examples]
    rows += list(zip(test.sources, translations, test.targets, strict=True))[:5]
    text = (
        f"BLEU {scores['bleu']:.2f} on {scores['sentences']} test sentences of short, everyday "
        f"language; news is far harder\nchecked SavedModel: {path}\n\n{translations_text(rows)}"
    )
    result = {**scores, "export": str(path), "export_ok": gates["ok"], "examples": examples}
    print_result(options, result, text)
    return 0 if gates["ok"] else 1


def _recipe(options: argparse.Namespace) -> Recipe | None:
    """The recipe of a run directory; None where `options.model` is an export."""
    from export.loaded import version_directory
    from keras_transformer.errors import InputError
    from trainers.run import RunDirectory

    run = RunDirectory(options.model)
    if run.recipe_path.exists():
        return run.load_recipe()
    try:
        version_directory(options.model)
    except InputError:
        refuse(
            "RUN_OR_EXPORT must be a run directory, with a recipe.yaml, or an export, with a "
            "saved_model.pb; import-marian makes a run directory of a checkpoint",
            options.model,
        )
    if (options.beam_size, options.alpha, options.length_penalty) != (None, None, None):
        refuse(
            "--beam-size, --alpha and --length-penalty are part of an export; set them when "
            "exporting",
            f"{options.model}, which is no run directory",
        )
    return None


def _translator(
    options: argparse.Namespace, recipe: Recipe | None, n_best: int = 1
) -> Translator | ExportedTranslator:
    """The translator of a run or of an export, which gives `n_best` hypotheses."""
    from export.loaded import ExportedTranslator
    from trainers.run import RunDirectory

    if recipe is not None:
        beam_size = options.beam_size or max(n_best, recipe.decoding.beam_size)
        run = RunDirectory(options.model)
        return run.load_translator(
            beam_size=beam_size, alpha=options.alpha, length_penalty=options.length_penalty
        )
    translator = ExportedTranslator(options.model)
    if n_best > translator.beam_size:
        refuse(f"--n-best must be at most the export's {translator.beam_size}", n_best)
    return translator


def _target_language(options: argparse.Namespace, recipe: Recipe | None) -> str:
    """The language of translations, by the recipe or by the export's model card."""
    from export.loaded import version_directory
    from export.model_card import read_model_card

    if recipe is not None:
        if recipe.data.target_language is None:
            refuse(
                "--language must name the target language, which the imported run does not know",
                "nothing",
            )
        return recipe.data.target_language
    card = read_model_card(version_directory(options.model))
    language = card.get("languages", {}).get("target")
    if language is None:
        refuse("--language must name the target language of an export without a card", "nothing")
    return language


def _batch_sentences(recipe: Recipe | None) -> int:
    return recipe.decoding.batch_sentences if recipe else 64


def _validation_sample(recipe: Recipe) -> tuple[str, ...]:
    """Some sentences for the export's checks; none where the corpus is not at hand."""
    from keras_transformer.errors import InputError
    from trainers.splits import read_split

    files = recipe.data.validation
    if files is None or files.tfds is not None:
        return ()  # there are none, or reading them could start a download
    try:
        return tuple(read_split(recipe.data, "validation").sources[:20])
    except InputError as error:
        say(f"checked without validation sentences: {error}")
        return ()


def _measure_bleu(translator: Translator, recipe: Recipe, sentences: int) -> dict[str, Any] | None:
    """The scores of a model card, on the first test sentences; None where they are not at hand."""
    from keras_transformer.errors import InputError
    from trainers.evaluation import evaluate as evaluate_translator
    from trainers.splits import read_split

    files, language = recipe.data.test, recipe.data.target_language
    if sentences == 0 or (files and files.tfds is not None):
        return None  # reading it could start a download
    if files is None or language is None:
        say("the model card has no BLEU: the run has no test set, or does not know its language")
        return None
    try:
        test = read_split(recipe.data, "test")
    except InputError as error:
        say(f"the model card has no BLEU: {error}")
        return None
    scores = evaluate_translator(
        translator,
        test.sources[:sentences],
        test.targets[:sentences],
        language,
        recipe.decoding.batch_sentences,
    )
    return {key: scores[key] for key in _CARD_SCORES} | {"split": "test"}


def _read_lines(path: Path | None) -> list[str]:
    from trainers.text_files import read_lines, split_lines

    if path is not None:
        return read_lines(path)
    return split_lines(sys.stdin.buffer.read(), "stdin")


COMMANDS = {
    "demo": demo,
    "prepare": prepare,
    "train": train,
    "average": average,
    "import-marian": import_marian,
    "evaluate": evaluate,
    "translate": translate,
    "score": score,
    "export": export,
    "check-export": check_export,
    "serve-client": serve_client,
    "benchmark": benchmark,
    "doctor": doctor,
    "attention": attention,
    "report": report,
    "ablate": ablate,
    "complexity": complexity,
}
