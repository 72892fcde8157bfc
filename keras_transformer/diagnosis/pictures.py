"""Interactive pictures by plotly: curves over the steps of a run, and attention as a heat map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

TEXT, MUTED, LINES = "#1c2430", "#5b6675", "#e3e7ed"
ACCENT, SECOND, THIRD = "#1f5fa8", "#c2571a", "#6b7280"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
# From 0 to 1 in every picture, so that heads can be compared; most weights are small, and the
# colours part them better than a straight line would.
COLOURS = (
    (0.0, "#ffffff"),
    (0.05, "#eaf1f9"),
    (0.2, "#b5cee9"),
    (0.5, "#5b90c9"),
    (1.0, "#0b3468"),
)
# Longer pieces are cut in the labels of an axis, and whole where the pointer is.
LABEL_LENGTH = 14


class Series(NamedTuple):
    """One curve: its name in the legend, and a value a step; None leaves a gap."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]
    colour: str | None = None
    dash: str = "solid"


def curves(series: Sequence[Series], unit: str, logarithmic: bool = False) -> go.Figure:
    """Figures of a run over its steps.

    Args:
        series: sequence of `Series`. One with few values shows each of them as a dot;
            two or three have a legend.
        unit: str. What the values are, beside their axis.
        logarithmic: bool. Whether the values' axis is.

    Returns:
        A plotly `Figure`.

    Example:

    >>> figure = curves([Series("loss", [1, 2], [5.0, float("nan")])], "nats a token")
    >>> figure.data[0].y
    (5.0, None)
    """
    figure = go.Figure(layout=_layout())
    colours = [each.colour or default for each, default in zip(series, _palette(), strict=False)]
    for each, colour in zip(series, colours, strict=True):
        figure.add_trace(
            go.Scatter(
                x=list(each.steps),
                y=[_shown(value) for value in each.values],
                name=plain(each.name),
                mode="lines+markers" if len(each.steps) <= 40 else "lines",
                line={"color": colour, "width": 2, "dash": each.dash},
                marker={"size": 5},
                hovertemplate="step %{x:,}: %{y:.4~g}<extra>%{fullData.name}</extra>",
            )
        )
    axis = {"gridcolor": LINES, "zeroline": False, "fixedrange": True, "automargin": True}

    def title(text: str) -> dict:
        return {"text": plain(text), "font": {"size": 13, "color": MUTED}, "standoff": 10}

    steps = {"title": title("step"), "tickformat": ",d", "nticks": 6, "rangemode": "tozero"}
    figure.update_layout(
        xaxis={**axis, **steps},
        yaxis={**axis, "title": title(unit), "type": "log" if logarithmic else "linear"},
        # More would leave no room for the curves; where the pointer is, their names are shown.
        showlegend=1 < len(series) <= 3,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"l": 56, "r": 12, "t": 12, "b": 48},
        hovermode="closest",
    )
    if logarithmic:
        figure.update_yaxes(tickformat="~g", nticks=6)
    return figure


def heat_map(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> go.Figure:
    """One head's attention: a row a query, a column a key, darker where it looks more.

    Args:
        weights: float array [rows, columns].
        rows: the piece of each row.
        columns: the piece of each column.

    Returns:
        A plotly `Figure`; where the pointer is, it shows both pieces and the weight.

    Example:

    >>> figure = heat_map(np.eye(2), ["<s>", "two"], ["one", "two"])
    >>> figure.data[0].z.shape, figure.layout.yaxis.ticktext
    ((2, 2), ('&lt;s&gt;', 'two'))
    """
    text = [[f"{plain(row)} looks at {plain(column)}" for column in columns] for row in rows]
    trace = go.Heatmap(
        z=np.asarray(weights, np.float32),
        text=text,
        hovertemplate="%{text}<br>weight %{z:.3f}<extra></extra>",
        zmin=0,
        zmax=1,
        colorscale=[list(stop) for stop in COLOURS],
        showscale=False,
        xgap=1,
        ygap=1,
    )
    figure = go.Figure(trace, layout=_layout())
    axis = {"showgrid": False, "zeroline": False, "fixedrange": True}
    axis |= {"ticks": "outside", "ticklen": 4, "tickcolor": "#ffffff"}

    def labelled(pieces: Sequence[str], ends: list[float]) -> dict:
        # Places and not the pieces themselves: a piece may come twice.
        labels = [label(piece) for piece in pieces]
        return {**axis, "tickvals": list(range(len(pieces))), "ticktext": labels, "range": ends}

    figure.update_layout(
        xaxis={**labelled(columns, [-0.5, len(columns) - 0.5]), "side": "top", "tickangle": -45},
        yaxis=labelled(rows, [len(rows) - 0.5, -0.5]),
        margin={"l": 110, "r": 40, "t": 90, "b": 12},
        plot_bgcolor=LINES,
    )
    return figure


def label(piece: str) -> str:
    """A piece as the label of an axis."""
    return plain(piece if len(piece) <= LABEL_LENGTH else f"{piece[: LABEL_LENGTH - 1]}…")


def plain(text: str) -> str:
    """Text that plotly shows as it is: it takes tags such as `</s>` for HTML and drops them.

    Example:

    >>> plain("</s>")
    '&lt;/s&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _layout() -> dict:
    return {
        "template": "none",
        "font": {"family": FONT, "size": 13, "color": TEXT},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "dragmode": False,  # A finger on a picture scrolls the page.
        "hoverlabel": {"bgcolor": TEXT, "font": {"color": "#ffffff", "family": FONT, "size": 13}},
    }


def _palette():
    while True:
        yield from (ACCENT, SECOND, THIRD, "#2f855a", "#805ad5", "#b7791f")


def _shown(value: float | None) -> float | None:
    """A value in few digits, which is all that a curve shows; None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")
