"""The figures of an ablation in one file, a line for each row and seed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from trainers.ablation_measures import LENGTHS
from trainers.flush import flush
from trainers.table_3 import LENGTH


class AblationResults:
    """`results.jsonl`: a line for each row and seed, written as soon as it is measured.

    A last line that a crash has cut short is dropped, to be measured again.

    Args:
        path: path of the file, which need not exist.
        corpus: what is trained on and measured by: SHA-256 of the corpus' files by name.

    Raises:
        InputError: where a line is damaged, or is of another corpus.

    Example:

    >>> AblationResults("a/new/ablation/results.jsonl", {}).get("base", 1) is None
    True
    """

    def __init__(self, path: str | Path, corpus: dict[str, str]) -> None:
        self.path, self.corpus = Path(path), corpus
        self._lines: dict[tuple[str, int], dict[str, Any]] = {}
        text = self.path.read_bytes() if self.path.exists() else b""
        whole, end, cut = text.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
            figures = self._parse(number, line)
            self._lines[figures["row"], figures["seed"]] = figures
        if cut:
            self.path.write_bytes(whole + end)

    def get(self, row: str, seed: int) -> dict[str, Any] | None:
        """The line of a row and seed, or None."""
        return self._lines.get((row, seed))

    def add(self, row: str, seed: int, figures: dict[str, Any]) -> None:
        """Appends the figures of a row and seed.

        Raises:
            InputError: where the file cannot be written to.
        """
        line = {"row": row, "seed": seed, **figures, "corpus": self.corpus}
        try:
            with self.path.open("ab") as file:
                file.write((json.dumps(line) + "\n").encode())
            flush(self.path)
        except OSError as error:
            raise InputError(f"{self.path} must be writable. Received: {error}") from error
        self._lines[row, seed] = line

    def _parse(self, number: int, text: bytes) -> dict[str, Any]:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not _is_result(line):
            raise InputError(
                f"{self.path}:{number} must be a JSON object with row, seed, corpus, and finite "
                "figures or what has diverged; delete the line to measure it again. Received: "
                f"{text[:80]!r}"
            )
        before = line["corpus"]
        for name in sorted(before.keys() | self.corpus.keys()):
            if before.get(name) != self.corpus.get(name):
                raise InputError(
                    f"{name} must be what {self.path}:{number} was measured with; put it back, or "
                    f"use another directory. Expected sha256 {before.get(name)}. "
                    f"Received: {self.corpus.get(name)}"
                )
        return line


def not_finite(figures: dict[str, Any]) -> str | None:
    """What of a row's figures is not a finite number, in words; None where all are.

    Args:
        figures: dict as of `trainers.ablation_measures.measure`.

    Example:

    >>> not_finite({"perplexity": float("inf"), "bleu": 0.0})
    'perplexity is inf'
    """
    parts = {f" of test-{part}": figures[part] for part in LENGTHS if part in figures}
    for where, part in {"": figures, **parts}.items():
        for name in ("perplexity", "bleu"):
            if not _is_finite(part[name]):
                return f"{name}{where} is {part[name]}"
    return None


def _is_result(line: Any) -> bool:
    """Whether a line has all that the table is made of, in the types that it is made with."""
    if not isinstance(line, dict):
        return False
    row, seed, corpus = (line.get(name) for name in ("row", "seed", "corpus"))
    if not (isinstance(row, str) and _is_whole(seed) and isinstance(corpus, dict)):
        return False
    if "diverged" in line:
        return isinstance(line["diverged"], str)
    parts = [line.get(part) for part in LENGTHS] if row.startswith(f"{LENGTH}-") else []
    return _is_whole(line.get("parameters")) and all(map(_has_figures, [line, *parts]))


def _has_figures(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and all(_is_finite(part.get(name)) for name in ("perplexity", "bleu"))
        and part["perplexity"] > 0  # its logarithm is compared
        and isinstance(part.get("bleu_signature"), str)
        and _is_whole(part.get("pairs"))
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float can hold; JSON also has longer ones, and Infinity."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max
