"""Which numbers a machine computes fastest with."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

_CPU_INFO = Path("/proc/cpuinfo")

# Instructions that multiply bfloat16 matrices; without them it is slower than float32.
_BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}


def resolve_precision(precision: str) -> str:
    """The Keras dtype policy that a recipe's `training.precision` means on this machine.

    Args:
        precision: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or `"auto"`:
            mixed_bfloat16 where all GPUs, or the CPU where there is no GPU, have instructions for
            it, float32 elsewhere.

    Returns:
        The name of a policy.

    Example:

    >>> resolve_precision("float32")
    'float32'
    """
    if precision != "auto":
        return precision
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        has_bfloat16 = all(each.get("compute_capability", (0, 0)) >= (8, 0) for each in details)
    else:
        has_bfloat16 = bool(_BFLOAT16_INSTRUCTIONS & _cpu_features())
    return "mixed_bfloat16" if has_bfloat16 else "float32"


def _cpu_features() -> set[str]:
    """What the CPU can do, where the system says it."""
    if not _CPU_INFO.exists():
        return set()
    features: set[str] = set()
    for line in _CPU_INFO.read_text().split("\n"):
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            features |= set(value.split())
    return features
