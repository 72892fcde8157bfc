"""One page about a run: its figures, curves, attention, translations, findings and recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keras_transformer.command_io import check_output
from keras_transformer.diagnosis.attention_maps import AttentionMaps, attention_maps
from keras_transformer.diagnosis.finding import Finding
from keras_transformer.diagnosis.page import Page, escape, table, text_block
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator
from trainers.attention_page import MOST_PIECES, check_source, load_translator, write_file
from trainers.examination import examine
from trainers.recipe import Recipe
from trainers.report_curves import run_curves
from trainers.report_facts import (
    Sample,
    Translated,
    best_and_worst,
    steps_and_minutes,
    translate_sample,
    versions,
)
from trainers.run import RunDirectory
from trainers.run_log import RunLog

# Sentences of the explorer: some of all lengths that are easy to look at, and the worst two.
_BY_LENGTH, _WORST = 6, 2
_FEWEST_PIECES, _EASY_PIECES = 4, 30


def write_report(
    run_dir: str | Path,
    output: str | Path | None = None,
    sentences: int = 200,
    sources: Sequence[str] = (),
) -> Path:
    """Writes one HTML page about a run, which needs no other file and no network.

    It has the run's figures, its curves, an attention explorer, the best and worst translations of
    the test set, the doctor's findings, the recipe and the versions. What a run does not have,
    such as the log of an imported one, is left out.

    Args:
        run_dir: path of a run with a `model.keras`, or with checkpoints.
        output: path or None. `None` means `report.html` in the run directory.
        sentences: int. Test sentences that are translated.
        sources: sequence of str. Sentences of yours, which come first in the explorer.

    Returns:
        The path that was written.

    Raises:
        InputError: where the directory is no run, a number is not possible, a source has no words
            or more than 128 pieces, or the file cannot be written.

    Example:

    >>> write_report("runs/none")
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: A run directory must hold a recipe.yaml. Received: ...
    """
    if sentences < 1:
        raise InputError(f"--sentences must be at least 1. Received: {sentences}")
    run = RunDirectory(run_dir)
    recipe = run.load_recipe()
    path = Path(output) if output is not None else run.path / "report.html"
    check_output(path)
    translator = load_translator(run)
    for source in sources:
        check_source(source, translator)
    translated = translate_sample(recipe, translator, sentences)
    page = Page(
        f"Report of {run.path.resolve().name}",
        _subtitle(recipe, translator),
        _figures(run, translator, translated),
    )
    _add_curves(page, run)
    _add_attention(page, translator, translated, sources)
    _add_translations(page, translated)
    _add_findings(page, *_examined(run, sentences))
    page.add(
        "recipe",
        "Recipe and versions",
        f"{table(versions())}<details><summary>recipe.yaml, with every key</summary>"
        f"<pre>{escape(run.recipe_path.read_text(encoding='utf-8'))}</pre></details>",
    )
    return write_file(path, page.html().encode("utf-8", "replace"))


def findings_html(findings: Sequence[Finding]) -> str:
    """Findings as HTML: faults first, what is healthy behind a click.

    Args:
        findings: sequence of `Finding`.

    Example:

    >>> findings_html([Finding("beam", "bleu", True, {}, "at least 2", "beam 4")])
    "<p>Nothing was found wrong...
    """
    faults = [finding for finding in findings if finding.ok is False]
    unknown = [finding for finding in findings if finding.ok is None]
    healthy = [finding for finding in findings if finding.ok]
    if faults:
        said = f"{_counted(len(faults), 'fault')} in {_counted(len(findings), 'probe')}."
    else:
        said = f"Nothing was found wrong in {_counted(len(healthy), 'probe')}."
    parts = [f"<p>{said}</p>", *map(_finding_card, faults)]
    for title, kind in (("could not tell", unknown), ("healthy", healthy)):
        if kind:
            cards = "".join(map(_finding_card, kind))
            summary = f"{_counted(len(kind), 'probe')}: {title}"
            parts.append(f"<details><summary>{summary}</summary>{cards}</details>")
    return "".join(parts)


def _subtitle(recipe: Recipe, translator: Translator) -> str:
    config = translator.model.config
    model = (
        f"Transformer of {config.num_encoder_layers} + {config.num_decoder_layers} layers, "
        f"d_model {config.d_model}, {_counted(config.num_heads, 'head')}"
    )
    return f"{model}, {recipe.data.languages}" if recipe.data.languages else model


def _figures(
    run: RunDirectory, translator: Translator, translated: Translated
) -> list[tuple[str, str]]:
    figures, lines = [], RunLog(run.path).lines()
    if translated.scores:
        figures.append((f"{translated.scores['bleu']:.1f}", f"BLEU of {translated.what}"))
        figures.append((f"{translated.scores['chrf']:.1f}", "chrF of the same"))
    perplexities = [line["val_perplexity"] for line in lines if line.get("val_perplexity")]
    if perplexities:
        figures.append((f"{perplexities[-1]:.2f}", "validation perplexity"))
    step, minutes = steps_and_minutes(run)
    if step is not None:
        figures.append((f"{step:,}", "steps"))
    if minutes is not None:
        figures.append((f"{minutes:.1f}", "minutes of training"))
    parameters = translator.model.count_params()
    shown = f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters:,}"
    return [*figures, (shown, "parameters")]


def _add_curves(page: Page, run: RunDirectory) -> None:
    html = "".join(page.chart(*chart) for chart in run_curves(RunLog(run.path).lines()))
    if html:
        page.add("curves", "Curves", f"<div class='charts'>{html}</div>")


def _add_attention(
    page: Page, translator: Translator, translated: Translated, sources: Sequence[str]
) -> None:
    found = translator.translate(sources) if sources else []
    samples = [
        Sample(text, hypotheses[0].text, None, None)
        for text, hypotheses in zip(sources, found, strict=True)
    ]
    samples += _chosen(translated.samples, translator)
    sentences: list[tuple[dict[str, str], AttentionMaps]] = []
    for sample in dict.fromkeys(samples):
        texts = {"source": sample.source, "translation": sample.translation}
        if sample.reference is not None:
            texts["reference"] = sample.reference
        maps = attention_maps(
            translator.model, translator.tokenizer, sample.source, sample.translation
        )
        sentences.append((texts, maps))
    if sentences:
        body = (
            "<p>A row shows where one piece looks: the darker a cell, the more of it is taken from "
            "that column's piece. Each row adds up to 1. In the decoder a row is named by the "
            "piece that is predicted there. Layers and heads are numbered from 0.</p>"
        )
        page.add("attention", "Attention", body + page.explorer(sentences))


def _chosen(samples: Sequence[Sample], translator: Translator) -> list[Sample]:
    """Sentences for the explorer: of all easy lengths, then the worst two of these."""
    tokenizer = translator.tokenizer
    lengths = {}
    for sample in dict.fromkeys(samples):
        length = len(tokenizer.source.encode(sample.source))
        translated = len(tokenizer.target.encode(sample.translation))
        if length and max(length, translated) <= MOST_PIECES:
            lengths[sample] = length
    easy = [sample for sample in lengths if _FEWEST_PIECES <= lengths[sample] <= _EASY_PIECES]
    easy = sorted(easy or lengths, key=lengths.get)
    last = len(easy) - 1
    places = {round(last * place / (_BY_LENGTH - 1)) for place in range(_BY_LENGTH)}
    spread = [easy[place] for place in sorted(places) if easy]
    # The first is what the page opens with: one of middle length.
    middle = len(spread) // 2
    return [*spread[middle:], *spread[:middle], *best_and_worst(easy, _WORST)[1]]


def _add_translations(page: Page, translated: Translated) -> None:
    best, worst = best_and_worst(translated.samples)
    if not translated.samples:
        return
    if not best:
        body = f"<p>Of {escape(translated.what)}.</p>" + "".join(
            map(_translation_card, translated.samples)
        )
    else:
        columns = "".join(
            f"<div><h3>{title}</h3>{''.join(map(_translation_card, few))}</div>"
            for title, few in (("Best", best), ("Worst", worst))
        )
        body = (
            f"<p>Of {escape(translated.what)}, by chrF against the reference, from 0 to 100. "
            f"BLEU's signature: {escape(translated.scores['bleu_signature'])}.</p>"
            f"<div class='columns'>{columns}</div>"
        )
    page.add("translations", "Translations", body)


def _translation_card(sample: Sample) -> str:
    score = "" if sample.chrf is None else f"<span class='score'>chrF {sample.chrf:.0f}</span>"
    texts = text_block(sample.source, "source") + text_block(sample.translation, "translation")
    if sample.reference is not None:
        texts += text_block(sample.reference, "reference")
    return f"<div class='card'>{score}{texts}</div>"


def _examined(run: RunDirectory, sentences: int) -> tuple[list[Finding], str]:
    """The doctor's findings, or the reason why there are none."""
    try:
        return examine(run.path, sentences=sentences), ""
    except InputError as error:
        return [], str(error)
    except Exception as error:  # noqa: BLE001  all else of the report is worth having
        message = str(error).partition("\n")[0]
        return [], f"the doctor met {type(error).__name__}: {message}"


def _add_findings(page: Page, findings: Sequence[Finding], reason: str) -> None:
    body = f"<p>The run could not be examined: {escape(reason)}</p>"
    page.add("findings", "The doctor's findings", body if reason else findings_html(findings))


def _finding_card(finding: Finding) -> str:
    remedy = f"<p><b>What to do:</b> {escape(finding.remedy)}</p>" if finding.remedy else ""
    return (
        f"<div class='card {finding.state}'><h3><span class='badge'>{finding.state}</span> "
        f"{escape(finding.name)}</h3><p>{escape(finding.detail)}</p>{remedy}"
        f"<p class='note'>Bound: {escape(finding.bound)}. Leads to: {escape(finding.trouble)}.</p>"
        "</div>"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
