"""The peak memory of one layer, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_transformer.diagnosis.complexity_layers import Sizes, compiled_layer
from keras_transformer.errors import InputError

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_WARM_UP = 64  # positions
# The process finds every module where this one does, however the package came to be on its path.
_PROCESS = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {__name__} import _measure
print(_measure(*json.loads(sys.argv[2])))
"""


def can_measure_memory() -> bool:
    """Whether the system tells, and forgets, the peak of a process: Linux does."""
    return _RESET.exists() and "VmHWM" in _STATUS.read_text()


def peak_memory(
    name: str, length: int, width: int, sizes: Sizes | None = None, backward: bool = False
) -> int:
    """Peak memory of a layer's call, beyond its weights and its input.

    TensorFlow keeps no statistics of memory on a CPU, so the peak is the system's: how far the
    resident memory of a fresh process rises during a call. TensorFlow keeps what it has once taken,
    so each call needs a process of its own.

    Args:
        name: str. A layer of `LAYER_KINDS`.
        length: int. n.
        width: int. d.
        sizes: `Sizes` or None for the defaults.
        backward: bool. Whether the gradients of the input and all weights are computed too.

    Returns:
        Int, bytes.

    Raises:
        InputError: where the process ended without a result, as it does where memory runs out.

    Example:

    >>> peak_memory("convolution", 4096, 64) >= 4096 * 64 * 4  # the result's float32
    True
    """
    wanted = [name, length, width, list(sizes or Sizes()), backward]
    places = [place for place in sys.path if isinstance(place, str)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROCESS, json.dumps(places), json.dumps(wanted)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = done.stderr.strip().split("\n")[-1]
        raise InputError(
            f"lengths must fit into memory: {name} of width {width} ended with code "
            f"{done.returncode} {reason}. Received: {length}"
        )
    return int(done.stdout.strip().split("\n")[-1])


def _kilobytes(key: str) -> int:
    line = next(line for line in _STATUS.read_text().split("\n") if line.startswith(f"{key}:"))
    return int(line.split()[1])


def _measure(name: str, length: int, width: int, sizes: list[int], backward: bool) -> int:
    call = compiled_layer(name, width, Sizes(*sizes), backward)
    # Made by NumPy: what TensorFlow needs to draw numbers would stay in its hands for the call.
    numbers = np.random.default_rng(1).standard_normal((1, length, width), "float32")
    x = tf.constant(numbers)
    call(x[:, :_WARM_UP])  # What is made once: plans, weights in another order, threads.
    _RESET.write_text("5")  # The peak becomes what is resident now.
    floor = _kilobytes("VmRSS")
    call(x)
    return max(0, _kilobytes("VmHWM") - floor) * 1024
