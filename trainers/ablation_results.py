"""The figures of an ablation in one file, a line for each row and seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from trainers.flush import flush


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
            before = line["corpus"]
            names = sorted(before.keys() | self.corpus.keys())
            _ = (line["row"], line["seed"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.path}:{number} must be a JSON object with row, seed and corpus; delete the "
                f"line to measure it again. Received: {text[:80]!r}"
            ) from error
        for name in names:
            if before.get(name) != self.corpus.get(name):
                raise InputError(
                    f"{name} must be what {self.path}:{number} was measured with; put it back, or "
                    f"use another directory. Expected sha256 {before.get(name)}. "
                    f"Received: {self.corpus.get(name)}"
                )
        return line
