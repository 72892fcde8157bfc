"""Table 1 of the paper, measured: what a layer costs, and how far it sees."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.diagnosis.complexity_layers import (
    DILATED_CONVOLUTION,
    LAYER_KINDS,
    LayerKind,
    Sizes,
    check_bounds,
    check_layers,
    compiled_layer,
)
from keras_transformer.diagnosis.complexity_memory import can_measure_memory, peak_memory
from keras_transformer.diagnosis.complexity_paths import maximum_path_length, sequential_operations
from keras_transformer.errors import InputError, check_sizes

# Paths are counted in stacks of many layers, so n and r are small there.
PATH_LENGTHS = (8, 16, 32)
PATH_SIZES = Sizes(window=8, chunk=8, kernel=3)


def fitted_exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The power of `sizes` that `values` grow with, over the larger half of the sizes.

    A least-squares line through the logarithms. The smaller half, where fixed costs outweigh what
    grows, does not count.

    Args:
        sizes: growing sequence of positive numbers, at least two.
        values: sequence of as many numbers.

    Returns:
        Float, or None where a value is not positive.

    Example:

    >>> round(fitted_exponent([1, 2, 4, 8], [9, 9, 4 * 16, 4 * 64]), 3)
    2.0
    """
    count = max(2, (len(sizes) + 1) // 2)
    sizes, values = np.array(sizes[-count:], float), np.array(values[-count:], float)
    if not np.all(values > 0):
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def fastest(
    calls: Mapping[Hashable, Callable[[], Any]], repeats: int, turn: float = 0.03
) -> dict[Hashable, float]:
    """Seconds of each call: the least of several rounds, in each of which every call has its turn.

    Other work of the machine only ever adds time, so the least is the nearest to the truth; and
    what slows a round down slows all calls of it.

    Args:
        calls: dict of functions without arguments.
        repeats: int. Rounds, after one that is not timed.
        turn: float. Seconds for which a short call is made again and again in its turn.

    Returns:
        Dict of float with the keys of `calls`.
    """
    seconds = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(repeats):
        for key, call in calls.items():
            spent = 0.0
            while not spent or spent < turn:
                start = time.perf_counter()
                call()
                took = time.perf_counter() - start
                spent += took
                seconds[key] = min(seconds[key], took)
    return seconds


def measure_times(
    names: Sequence[str],
    places: Sequence[tuple[int, int]],
    sizes: Sizes | None = None,
    repeats: int = 5,
    backward: bool = False,
) -> dict[tuple[str, int, int], float]:
    """Seconds of layers at some (n, d), one sentence at a time, all of them in turn.

    Args:
        names: sequence of layers of `LAYER_KINDS`.
        places: sequence of (n, d).
        sizes: `Sizes` or None for the defaults.
        repeats: int. Rounds of which the least time is taken.
        backward: bool. Whether the gradients of the input and all weights are computed too.

    Returns:
        Dict of (name, n, d) to seconds.

    Raises:
        InputError: for a length or width at which a layer does not fit into memory.
    """
    layers = {}
    for name in names:
        for d in dict.fromkeys(d for _, d in places):
            with _in_memory("widths", d, name):
                layers[name, d] = compiled_layer(name, d, sizes, backward)
    inputs = {}
    for n, d in dict.fromkeys(places):
        with _in_memory("lengths", n, f"an input of width {d}"):
            inputs[n, d] = tf.random.normal([1, n, d])

    def call(name: str, n: int, d: int) -> None:
        with _in_memory("lengths", n, f"{name} of width {d}"):
            layers[name, d](inputs[n, d])

    keys = [(name, n, d) for n, d in inputs for name in names]
    return fastest({key: functools.partial(call, *key) for key in keys}, repeats)


def measure_complexity(
    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096, 8192),
    widths: Sequence[int] = (64, 128, 256, 512, 1024),
    window: int = 128,
    layers: Sequence[str] | None = None,
    *,
    length: int | None = None,
    width: int | None = None,
    chunk: int = 256,
    kernel: int = 3,
    repeats: int = 5,
    backward: bool = False,
    memory: bool = True,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measures table 1 of the paper (section 4) on this machine.

    Each layer maps [1, n, d] to [1, n, d]. Times are those of compiled functions; memory is the
    peak of a process of its own. Exponents are fitted by `fitted_exponent`.

    Args:
        lengths: sequence of int that grows, at least two. n.
        widths: sequence of int that grows, at least two. d.
        window: int. r of restricted self-attention.
        layers: sequence of names in `LAYER_KINDS`; `None` means all.
        length: int or None. n while d varies; `None` means the middle one of `lengths`.
        width: int or None. d while n varies; `None` means the middle one of `widths`.
        chunk: int. Queries at a time of chunked self-attention.
        kernel: int, odd. k of the convolutions.
        repeats: int. Rounds of which the least time is taken.
        backward: bool. Whether time and memory include the gradients of input and weights.
        memory: bool. Whether memory is measured: a process for each layer and length.
        progress: function that is told what comes next, or None.

    Returns:
        Dict that JSON can hold: `settings`, and `layers` with a dict a layer:

        - `seconds_by_length`, `seconds_by_width`, `peak_bytes_by_length`: a list of numbers each
          (the last is None without `memory`, or where the system does not tell),
        - `exponents`: for each of the three, `paper`, `counted` (of the multiplications of the
          whole layer at these sizes; times only) and `measured`,
        - `sequential_operations` and `path_length`: `paper`, `lengths`, `measured`, and of the path
          `expected`.

    Raises:
        InputError: for an unknown layer, or sizes that do not grow or do not fit into memory.

    Example:

    >>> result = measure_complexity(
    ...     [64, 128], [8, 16], layers=["self-attention"], repeats=1, memory=False)
    >>> result["layers"]["self-attention"]["path_length"]["measured"]
    [1, 1, 1]

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """
    names = check_layers(layers)
    sizes = Sizes(window, chunk, kernel).check()
    lengths, widths = _growing("lengths", lengths), _growing("widths", widths)
    check_sizes(length=length, width=width, repeats=repeats)
    check_bounds(length=length, width=width)
    length = length or lengths[len(lengths) // 2]
    width = width or widths[len(widths) // 2]
    tell = progress or (lambda line: None)

    peaks: dict[str, list[int] | None] = dict.fromkeys(names)
    if memory and can_measure_memory():
        for name in names:
            tell(f"peak memory of {name}")
            peaks[name] = [peak_memory(name, n, width, sizes, backward) for n in lengths]
    tell(f"time of {len(names)} layers at {len(lengths)} lengths and {len(widths)} widths")
    places = [*((n, width) for n in lengths), *((length, d) for d in widths)]
    seconds = measure_times(names, places, sizes, repeats, backward)

    measured: dict[str, Any] = {}
    for name in names:
        tell(f"path length of {name}")
        kind = LAYER_KINDS[name]
        by_length = [seconds[name, n, width] for n in lengths]
        by_width = [seconds[name, length, d] for d in widths]
        measured[name] = {
            "time": kind.time,
            "seconds_by_length": by_length,
            "seconds_by_width": by_width,
            "peak_bytes_by_length": peaks[name],
            "exponents": {
                "seconds_by_length": {
                    "paper": kind.time_exponents[0],
                    "counted": fitted_exponent(
                        lengths, [kind.operations(n, width, sizes) for n in lengths]
                    ),
                    "measured": fitted_exponent(lengths, by_length),
                },
                "seconds_by_width": {
                    "paper": kind.time_exponents[1],
                    "counted": fitted_exponent(
                        widths, [kind.operations(length, d, sizes) for d in widths]
                    ),
                    "measured": fitted_exponent(widths, by_width),
                },
                "peak_bytes_by_length": {
                    "expected": kind.memory_exponent,
                    "measured": peaks[name] and fitted_exponent(lengths, peaks[name]),
                },
            },
            "sequential_operations": {
                "paper": kind.sequential,
                "lengths": list(PATH_LENGTHS),
                "measured": [sequential_operations(name, n, PATH_SIZES) for n in PATH_LENGTHS],
            },
            "path_length": _paths(kind),
        }
        if name == "convolution":
            measured[name]["dilated_path_length"] = _paths(DILATED_CONVOLUTION)
    return {
        "settings": {
            "lengths": lengths,
            "widths": widths,
            "length": length,
            "width": width,
            **sizes._asdict(),
            "path_window": PATH_SIZES.window,
            "path_kernel": PATH_SIZES.kernel,
            "repeats": repeats,
            "backward": backward,
            "cores": os.cpu_count(),
            "tensorflow": tf.__version__,
        },
        "layers": measured,
    }


@contextlib.contextmanager
def _in_memory(name: str, size: int, what: str) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError:
        raise InputError(
            f"{name} must fit into memory: {what} does not. Received: {size}"
        ) from None


def _paths(kind: LayerKind) -> dict[str, Any]:
    return {
        "paper": kind.path,
        "lengths": list(PATH_LENGTHS),
        "measured": [maximum_path_length(kind, n, PATH_SIZES) for n in PATH_LENGTHS],
        "expected": [kind.path_length(n, PATH_SIZES) for n in PATH_LENGTHS],
    }


def _growing(name: str, values: Sequence[int]) -> list[int]:
    for value in values:
        check_sizes(**{name: value})
        check_bounds(**{name: value})
    if len(values) < 2 or any(b <= a for a, b in zip(values, values[1:], strict=False)):
        raise InputError(
            f"{name} must be at least two numbers, each larger than the one before. "
            f"Received: {', '.join(map(str, values))}"
        )
    return list(values)
