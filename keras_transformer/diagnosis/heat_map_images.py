"""Attention as still pictures by matplotlib: all heads in a grid, for TensorBoard and PNG files."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence

import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from keras_transformer.diagnosis.pictures import COLOURS, LABEL_LENGTH

# matplotlib's own font has Latin, Greek, Cyrillic, Hebrew and Arabic letters. The others are found
# where one of these is installed, and are boxes elsewhere.
_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans", "Hiragino Sans", "Microsoft YaHei")
# Inches of an axis that one label takes, and of a picture as it is and as it may grow: all heads
# and layers of the paper's base model then still are one file of some megabytes.
_LABEL_INCHES = 0.1
_INCHES, _MOST_INCHES = 2.6, 5.2
_COLOURS = LinearSegmentedColormap.from_list("attention", list(COLOURS))


def heat_map_grid(
    layers: Sequence[np.ndarray],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    first_layer: int = 0,
    inches: float = _INCHES,
) -> Figure:
    """The heads of some layers: a row of pictures a layer, a picture a head.

    Nothing of matplotlib's global state is touched: it may be called in any thread.

    Args:
        layers: sequence of float arrays [h, rows, columns].
        rows: the piece of each row, a query.
        columns: the piece of each column, a key.
        title: str. What is above the grid.
        first_layer: int. Number of the first of the layers.
        inches: float. Width and height of one picture. Where it has no room for the labels of all
            pieces, every second or third one is labelled, and so on.

    Returns:
        A matplotlib `Figure`, for `image_of` or its own `savefig`.

    Example:

    >>> figure = heat_map_grid([np.full((2, 1, 3), 1 / 3)], ["eins"], ["one", "two", "</s>"])
    >>> len(figure.axes), figure.axes[1].get_title()
    (2, 'layer 0, head 1')
    """
    heads = max(len(layer) for layer in layers)
    labels = [_label(piece) for piece in columns], [_label(piece) for piece in rows]
    # In inches. matplotlib's own layouts draw everything several times to find such sizes.
    right, gap, header = 0.15, 0.3, 0.65 if title else 0.35
    below, left = (0.15 + 0.075 * max(map(len, side)) for side in labels)
    width = left + heads * (inches + gap) - gap + right
    height = header + len(layers) * (inches + gap) - gap + below
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    for number, layer in enumerate(layers):
        for head, weights in enumerate(layer):
            x = left + head * (inches + gap)
            y = below + (len(layers) - 1 - number) * (inches + gap)
            axes = figure.add_axes((x / width, y / height, inches / width, inches / height))
            axes.imshow(weights, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"layer {first_layer + number}, head {head}", fontsize=9)
            # Only the pictures at the left and at the bottom are labelled.
            is_last = number == len(layers) - 1
            for set_ticks, names, has_labels in (
                (axes.set_xticks, labels[0], is_last),
                (axes.set_yticks, labels[1], head == 0),
            ):
                names = names if has_labels else []
                every = max(1, math.ceil(len(names) * _LABEL_INCHES / inches))
                places = range(0, len(names), every)
                set_ticks(places, names[::every], fontfamily=_installed_fonts())
            axes.tick_params(length=0, labelsize=7)
            axes.tick_params(axis="x", rotation=90)
    if title:
        figure.text(left / width, 1 - 0.25 / height, _label(title, 120), fontsize=11)
    return figure


def readable_inches(pieces: int) -> float:
    """The width of one picture in which so many pieces can be told apart, as far as is sensible.

    Args:
        pieces: int.

    Example:

    >>> readable_inches(10), readable_inches(40), readable_inches(100)
    (2.6, 4.0, 5.2)
    """
    return min(max(_INCHES, pieces * _LABEL_INCHES), _MOST_INCHES)


def image_of(figure: Figure, dpi: int = 90) -> np.ndarray:
    """A figure as pixels: uint8 [height, width, 3].

    Args:
        figure: matplotlib `Figure`.
        dpi: int. Pixels an inch.

    Example:

    >>> image_of(heat_map_grid([np.ones((1, 1, 1))], ["a"], ["b"]), dpi=50).shape[2]
    3
    """
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


@functools.cache
def _installed_fonts() -> list[str]:
    """Those of the fonts that matplotlib finds, which looks for a letter in one after the other."""
    names = set(font_manager.get_font_names())
    return [font for font in _FONTS if font in names]


def _label(text: str, length: int = LABEL_LENGTH) -> str:
    """Text that matplotlib does not take for a formula, cut where it is long."""
    text = text if len(text) <= length else f"{text[: length - 1]}…"
    return text.replace("$", r"\$")
