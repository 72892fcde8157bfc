"""The one exception for what a user can put right, and checks of values that raise it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class InputError(ValueError):
    """Bad input: a file, line, key or value that the user can correct.

    The message is one line that names the culprit, says what was expected and ends with
    "Received: ...". The command line prints it and exits with code 2.
    """


def check_sizes(**sizes: int | None) -> None:
    """Refuses a size that is no whole number above 0; None is for a size that may be left out.

    Example:

    >>> check_sizes(num_heads=8, d_v=None)
    >>> check_sizes(num_heads=0)
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: num_heads must be an integer of at least 1. Received: 0
    """
    for name, size in sizes.items():
        is_whole = isinstance(size, int) and not isinstance(size, bool)
        if size is not None and not (is_whole and size >= 1):
            raise InputError(f"{name} must be an integer of at least 1. Received: {size!r}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuses a value that is none of the choices.

    Example:

    >>> check_choice("norm", "mid", ("post", "pre"))
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: norm must be 'post' or 'pre'. Received: 'mid'
    """
    if value not in choices:
        expected = " or ".join(f"'{choice}'" for choice in choices)
        raise InputError(f"{name} must be {expected}. Received: {value!r}")
