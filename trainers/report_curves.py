"""The curves of a run, from its log: loss, BLEU, perplexity, learning rate, gradient norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from keras_transformer.diagnosis.pictures import ACCENT, SECOND, THIRD, Series, curves

# Colours by layer: blue for the encoder and orange for the decoder, darker upwards.
_SIDES = {"encoder": ("#a9c6e6", "#0b3468"), "decoder": ("#f3c19d", "#7c2d0c")}


class Chart(NamedTuple):
    """One picture of a report: its id, heading, figure, and what is said below it."""

    name: str
    heading: str
    figure: go.Figure
    note: str


def run_curves(lines: Sequence[dict]) -> list[Chart]:
    """The curves that a run's log has figures for; none for an imported run.

    Args:
        lines: the lines of `metrics.jsonl`, as `RunLog.lines` reads them.

    Example:

    >>> [chart.heading for chart in run_curves([{"step": 1, "loss": 5.0, "gradient_norm": 1.0}])]
    ['Loss', 'Gradient norm']
    """
    charts = (
        (
            "loss",
            "Loss",
            _series(lines, loss="training", val_loss="validation"),
            "nats a token",
            "With label smoothing and, in training, with dropout.",
        ),
        (
            "bleu",
            "BLEU and chrF",
            _series(lines, val_bleu="BLEU", val_chrf="chrF"),
            "points",
            "Of the validation sentences that the recipe has translated.",
        ),
        (
            "perplexity",
            "Validation perplexity",
            _series(lines, val_perplexity="validation"),
            "per subword",
            "Without label smoothing.",
        ),
        ("rate", "Learning rate", _series(lines, learning_rate="rate"), "rate", ""),
        (
            "gradient",
            "Gradient norm",
            _series(lines, gradient_norm="all weights"),
            "norm",
            "Of all weights together, before any clipping.",
        ),
        (
            "layers",
            "Gradient norm by layer",
            _layers(lines),
            "norm",
            "Encoder blue and decoder orange, darker upwards; embeddings dotted. Logarithmic.",
        ),
    )
    return [
        Chart(name, heading, curves(series, unit, logarithmic=name == "layers"), note)
        for name, heading, series, unit, note in charts
        if series
    ]


def _series(lines: Sequence[dict], **names: str) -> list[Series]:
    """A curve for each key that the log has, by the name it shall have."""
    found = []
    for (key, name), colour in zip(names.items(), (ACCENT, SECOND), strict=False):
        points = [(line["step"], line[key]) for line in lines if key in line]
        if points:
            found.append(Series(name, *zip(*points, strict=True), colour))
    return found


def _layers(lines: Sequence[dict]) -> list[Series]:
    """A curve a layer; logs of earlier versions have none."""
    rows = [
        (line["step"], line["layer_gradient_norms"])
        for line in lines
        if line.get("layer_gradient_norms")
    ]
    names = list(dict.fromkeys(name for _, norms in rows for name in norms))
    found = []
    for name in names:
        side = name.split("/")[0]
        beside = [other for other in names if other.split("/")[0] == side]
        colour, dash = THIRD, "dot"
        if side in _SIDES:
            share = beside.index(name) / max(1, len(beside) - 1)
            colour, dash = _between(*_SIDES[side], share), "solid"
        # A logarithmic axis has no place for 0.
        values = [norms.get(name) or None for _, norms in rows]
        found.append(
            Series(name.replace("_", " "), [step for step, _ in rows], values, colour, dash)
        )
    return found


def _between(start: str, end: str, share: float) -> str:
    """A colour between two, as hexadecimal text."""
    channels = [(int(start[i : i + 2], 16), int(end[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(low + share * (high - low)):02x}" for low, high in channels)
