"""What the values of command-line options must be: argparse's `type` of each."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number, at least 0. Received: {text}")
    return value


def positive(text: str) -> float:
    """A finite number above 0."""
    value = not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"must be above 0. Received: {text}")
    return value


def language(text: str) -> str:
    """The code of a language."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a code such as de. Received: nothing")
    return text


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(minimum: int) -> Callable[[str], tuple[int, ...]]:
    """Whole numbers of at least `minimum`, with commas between them."""
    parse = at_least(minimum)

    def parse_all(text: str) -> tuple[int, ...]:
        return tuple(parse(part.strip()) for part in text.split(","))

    return parse_all


def at_least(minimum: int) -> Callable[[str], int]:
    """A whole number of at least `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(
                f"must be a whole number, at least {minimum}. Received: {text}"
            )
        return value

    return parse
