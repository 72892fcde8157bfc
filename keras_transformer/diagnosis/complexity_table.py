"""What was measured of table 1, beside the paper's table: as text and as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from keras_transformer.command_io import check_output
from keras_transformer.errors import InputError

# Colours that stay apart for most kinds of colour blindness (Okabe and Ito).
_STYLES = {
    "self-attention": ("#d55e00", "o", "-"),
    "chunked-self-attention": ("#e69f00", "s", "--"),
    "restricted-self-attention": ("#009e73", "^", "-"),
    "recurrent": ("#0072b2", "D", "-"),
    "convolution": ("#000000", "v", "-"),
    "separable-convolution": ("#cc79a7", "P", "-"),
}


def complexity_table(result: dict[str, Any]) -> str:
    """The measurements beside the paper's table 1, in tables of Markdown that a terminal shows too.

    Args:
        result: dict of `measure_complexity`.

    Returns:
        Str, several lines.
    """
    settings, layers = result["settings"], result["layers"]
    lengths, widths = settings["lengths"], settings["widths"]
    way = "forward and backward" if settings["backward"] else "forward"
    constants = "r = {window}, c = {chunk}, k = {kernel}".format(**settings)
    cost = [
        [
            name,
            layer["time"],
            *_exponents(layer["exponents"]["seconds_by_length"]),
            *_exponents(layer["exponents"]["seconds_by_width"]),
            str(layer["exponents"]["peak_bytes_by_length"]["expected"]),
            _number(layer["exponents"]["peak_bytes_by_length"]["measured"]),
        ]
        for name, layer in layers.items()
    ]
    reach = []
    for name, layer in layers.items():
        steps = layer["sequential_operations"]
        counts = "a loop" if None in steps["measured"] else _list(steps["measured"])
        reach.append([name, steps["paper"], counts, *_path(layer["path_length"])])
        if "dilated_path_length" in layer:
            reach.append(["  dilated", *reach[-1][1:3], *_path(layer["dilated_path_length"])])
    figures = [
        [f"{n:,}"]
        + [
            f"{layer['seconds_by_length'][i] * 1e3:,.1f} ms"
            + (f", {_mebibytes(peaks[i])}" if (peaks := layer["peak_bytes_by_length"]) else "")
            for layer in layers.values()
        ]
        for i, n in enumerate(lengths)
    ]
    at = _list(next(iter(layers.values()))["path_length"]["lengths"])
    return "\n".join(
        [
            f"Complexity per layer, {way}: exponents of n from {lengths[0]:,} to {lengths[-1]:,} "
            f"(d = {settings['width']:,}),",
            f"and of d from {widths[0]:,} to {widths[-1]:,} (n = {settings['length']:,}); "
            f"{constants}.",
            "counted: of the multiplications of the whole layer at these sizes, attention's",
            "projections included. Memory and the chunked layer are not in the paper's table.",
            "",
            *_markdown(
                [
                    *("layer", "paper", "n: paper", "counted", "measured"),
                    *("d: paper", "counted", "measured", "memory, n: expected", "measured"),
                ],
                cost,
            ),
            "",
            f"Sequential operations and maximum path length at n = {at} "
            f"(r = {settings['path_window']}, k = {settings['path_kernel']}).",
            "",
            *_markdown(
                [
                    *("layer", "sequential: paper", "measured"),
                    *("path: paper", "measured", "expected"),
                ],
                reach,
            ),
            "",
            f"Time and peak memory, {way}, d = {settings['width']:,}, one sentence of length n, "
            f"{settings['cores']} cores.",
            "",
            *_markdown(["n", *layers], figures),
        ]
    )


def check_picture_path(path: str | Path) -> Path:
    """Refuses a place where no picture can be written, or an ending that says no format.

    Called before what takes minutes to measure is measured. It leaves nothing behind: a missing
    folder is made when the picture is drawn.

    Args:
        path: where the picture is to go.

    Returns:
        `Path`.

    Raises:
        InputError: where no picture can be written there.

    Example:

    >>> check_picture_path("complexity.txt")
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: a picture must end in .png, .svg or .pdf.
    Received: complexity.txt
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"a picture must end in .png, .svg or .pdf. Received: {path}")
    if path.parent.exists():
        check_output(path)
        return path
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"a picture needs a folder that can be made. Received: {path}")
    return path


def plot_complexity(result: dict[str, Any], path: str | Path) -> None:
    """Draws time and memory against n, and time against d, on logarithmic axes.

    Args:
        result: dict of `measure_complexity`.
        path: where the picture goes; its ending, .png, .svg or .pdf, says the format.

    Raises:
        InputError: where no picture can be written there.
    """
    path = check_picture_path(path)
    settings, layers = result["settings"], result["layers"]
    has_memory = all(layer["peak_bytes_by_length"] for layer in layers.values())
    figure = Figure(figsize=(14 if has_memory else 9.5, 4.6), layout="constrained")
    by_length, *by_memory, by_width = figure.subplots(1, 2 + has_memory)
    for name, layer in layers.items():
        milliseconds = [1e3 * seconds for seconds in layer["seconds_by_length"]]
        _draw(by_length, name, settings["lengths"], milliseconds)
        milliseconds = [1e3 * seconds for seconds in layer["seconds_by_width"]]
        _draw(by_width, name, settings["widths"], milliseconds)
        for axes in by_memory:
            mebibytes = [peak / 2**20 for peak in layer["peak_bytes_by_length"]]
            _draw(axes, name, settings["lengths"], mebibytes)
    way = "forward and backward" if settings["backward"] else "forward"
    _label(by_length, settings["lengths"], "n", f"time of a layer, d = {settings['width']:,}", "ms")
    for axes in by_memory:
        _label(axes, settings["lengths"], "n", f"peak memory, d = {settings['width']:,}", "MiB")
    _label(by_width, settings["widths"], "d", f"time of a layer, n = {settings['length']:,}", "ms")
    figure.legend(
        *by_length.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=6,
        frameon=False,
        title=f"{way}; r = {settings['window']}, c = {settings['chunk']}, k = {settings['kernel']}",
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)
    except OSError as error:
        raise InputError(
            f"a picture must be a file that can be written. Received: {path} ({error.strerror})"
        ) from None


def _draw(axes: Axes, name: str, x: Sequence[int], y: Sequence[float]) -> None:
    color, marker, line = _STYLES[name]
    axes.plot(x, y, color=color, marker=marker, linestyle=line, linewidth=1.6, label=name)


def _label(axes: Axes, sizes: Sequence[int], letter: str, title: str, unit: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=letter, ylabel=unit, title=title)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return [line(head), line(["-" * width for width in widths]), *map(line, rows)]


def _exponents(exponents: dict[str, Any]) -> list[str]:
    return [_number(exponents[key], key) for key in ("paper", "counted", "measured")]


def _number(value: float | None, key: str = "measured") -> str:
    if value is None:
        return "unknown"
    return str(value) if key == "paper" else f"{value:.2f}"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.{1 if count < 10 * 2**20 else 0}f} MiB"


def _path(path: dict[str, Any]) -> list[str]:
    return [path["paper"], _list(path["measured"]), _list(path["expected"])]


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
