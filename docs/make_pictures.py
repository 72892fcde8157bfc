"""Draws a trained run: its curves, and what the decoder looks at while it translates a sentence.

python docs/make_pictures.py runs/demo --output docs/images/demo.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from keras_transformer.errors import InputError
from keras_transformer.tokenizer import BOS_ID, EOS_ID
from keras_transformer.translator import Translator
from trainers.run import RunDirectory

# Its German translation has the words in another order.
SENTENCE = "Do you know what he told me yesterday?"
LOSS, BLEU = "#1f5fa8", "#c2571a"


def draw(run: RunDirectory, sentence: str, head: int | None = None) -> Figure:
    """The picture of a run.

    Args:
        run: `RunDirectory` with a `model.keras`.
        sentence: str. Source sentence of the attention map.
        head: int or None. Head of the last layer, from 0. `None` means the mean of all heads.

    Returns:
        A matplotlib `Figure`.
    """
    figure = Figure(figsize=(13, 5.2), layout="constrained")
    curves, attention = figure.subplots(1, 2, width_ratios=(1.2, 1))
    draw_curves(curves, run)
    draw_attention(attention, run.load_translator(), sentence, head)
    return figure


def draw_curves(axes: Axes, run: RunDirectory) -> None:
    """Training loss and validation BLEU by step, from the run's `metrics.jsonl`."""
    recipe, metrics = run.load_recipe(), run.path / "metrics.jsonl"
    text = metrics.read_text() if metrics.exists() else ""
    lines = [json.loads(line) for line in text.split("\n") if line]
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    bleus = [(line["step"], line["val_bleu"]) for line in lines if "val_bleu" in line]
    if not losses:
        raise InputError(f"metrics.jsonl must hold lines of the training. Received: {run.path}")
    title = f"{lines[-1]['step']:,} steps{_minutes(run)}: loss {losses[-1][1]:.2f}"
    axes.plot(*zip(*losses, strict=True), color=LOSS, linewidth=1.6)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (label-smoothed, per token)", color=LOSS)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="y", colors=LOSS)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines["top"].set_visible(False)
    if bleus:
        title += f", validation BLEU {bleus[-1][1]:.1f}"
        sentences = recipe.training.validation_bleu_sentences
        right = axes.twinx()
        right.plot(*zip(*bleus, strict=True), color=BLEU, marker="o", markersize=5, linewidth=1.6)
        right.set_ylabel(f"BLEU of {sentences} validation sentences", color=BLEU)
        right.set_ylim(bottom=0, top=max(1.0, 1.15 * max(bleu for _, bleu in bleus)))
        right.tick_params(axis="y", colors=BLEU)
        right.spines["top"].set_visible(False)
    axes.set_title(title, fontsize=11)


def draw_attention(
    axes: Axes, translator: Translator, sentence: str, head: int | None = None
) -> None:
    """The last layer's encoder-decoder attention for a sentence and its translation."""
    translation = translator.translate([sentence])[0][0].text
    tokenizer, model = translator.tokenizer, translator.model
    source = [*tokenizer.source.encode(sentence), EOS_ID]
    target = tokenizer.target.encode(translation)
    # Row t attends while piece t is predicted: the decoder's input there is the piece before it.
    cross = model.attention_weights(np.array([source]), np.array([[BOS_ID, *target]]))["cross"]
    weights = np.array(cross[-1])[0]  # [h, T, S]
    if head is not None and not 0 <= head < len(weights):
        raise InputError(f"head must be from 0 to {len(weights) - 1}. Received: {head}")
    kind = f"mean of {len(weights)} heads" if head is None else f"head {head}"
    weights = weights.mean(axis=0) if head is None else weights[head]  # [T, S]

    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=weights.max(), aspect="auto")
    axes.set_xticks(range(len(source)), _labels(tokenizer.source.pieces(source)), rotation=55)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(target) + 1), _labels(tokenizer.target.pieces([*target, EOS_ID])))
    axes.set_xticks(np.arange(len(source) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(target) + 2) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("source pieces")
    axes.set_ylabel("pieces of the translation")
    axes.set_title(f"Encoder-decoder attention, layer {len(cross)}, {kind}", fontsize=11)
    axes.figure.colorbar(image, ax=axes, label="attention weight", pad=0.02)


def _labels(pieces: Sequence[str]) -> list[str]:
    """Pieces as text that matplotlib does not take for formulas."""
    return [piece.replace("$", r"\$") for piece in pieces]


def _minutes(run: RunDirectory) -> str:
    """How long the run trained, by its last checkpoint, where there still is one."""
    checkpoints = run.checkpoints()
    if not checkpoints.steps():
        return ""
    state = json.loads((checkpoints.path(checkpoints.steps()[-1]) / "state.json").read_text())
    return f" in {state['seconds'] / 60:.0f} minutes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the picture of a run; exit code 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, required=True, help="such as demo.png or demo.svg")
    parser.add_argument("--sentence", default=SENTENCE, help="source sentence of the attention map")
    parser.add_argument("--head", type=int, help="head of the last layer; default: mean of all")
    options = parser.parse_args(arguments)
    try:
        figure = draw(RunDirectory(options.run), options.sentence, options.head)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(options.output, dpi=110)
    except InputError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
