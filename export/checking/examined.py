"""An export while it is examined: what its files say, and its loaders once they work."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from export.checking.contract import SIGNATURES
from export.model_card import MODEL_CARD
from export.saved_model import EXPECTED_TRANSLATIONS
from export.session import ExportSession, Outputs

_RECORDED = ("text", "translation", "score", "log_probability", "tokens", "same_tokens")
# One value for each input of a signature, in the order of the contract.
Row = tuple[str | bytes, ...]


class Tolerance(NamedTuple):
    """By how much numbers may differ that are computed in batches of different shapes.

    Attributes:
        absolute: float.
        relative: float.
        same_texts: bool. Whether the translations must be the same; else another that is as good,
            within these bounds, may win.
    """

    absolute: float
    relative: float
    same_texts: bool


_FULL_PRECISION = Tolerance(1e-4, 1e-4, same_texts=True)
_HALF_PRECISION = Tolerance(0.1, 0.02, same_texts=False)


class GateFailed(Exception):
    """What a gate found wrong."""


class ExaminedExport:
    """An export in a folder where it was not written, so that nothing can depend on that one.

    Args:
        path: path of a version.
        folder: path of an empty folder on the same file system, or on another.

    Attributes:
        path: path of the copy, whose files are links to the version's wherever that is possible.
        python: what `tf.saved_model.load` returned; None until that gate is passed.
        session: `ExportSession`; None until that gate is passed.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = folder / "1"
        shutil.copytree(path, self.path, copy_function=_link, symlinks=True)
        self.python: Any = None
        self.session: ExportSession | None = None

    # What the files say ---------------------------------------------------------------------------

    @cached_property
    def meta_graph(self) -> Any:
        """The MetaGraphDef tagged `serve`."""
        saved_model = saved_model_pb2.SavedModel()
        saved_model.ParseFromString((self.path / "saved_model.pb").read_bytes())
        for meta_graph in saved_model.meta_graphs:
            if list(meta_graph.meta_info_def.tags) == ["serve"]:
                return meta_graph
        raise GateFailed("saved_model.pb has no graph with the tag serve")

    def nodes(self) -> Iterator[tuple[str, Any]]:
        """Each node of the graph and of its functions: where it is, and its NodeDef."""
        graph = self.meta_graph.graph_def
        yield from (("the graph", node) for node in graph.node)
        for function in graph.library.function:
            yield from ((function.signature.name, node) for node in function.node_def)

    @property
    def signatures(self) -> list[str]:
        """Those of the contract that the export has."""
        return [name for name in SIGNATURES if name in self.meta_graph.signature_def]

    @cached_property
    def card(self) -> dict[str, Any]:
        """The model card."""
        return self._read_json(MODEL_CARD)

    @cached_property
    def recorded(self) -> list[dict[str, Any]]:
        """What Python translated when the export was made."""
        entries = self._read_json(EXPECTED_TRANSLATIONS).get("translations")
        if not isinstance(entries, list) or not entries:
            raise GateFailed(f"{EXPECTED_TRANSLATIONS} holds no translations")
        for number, entry in enumerate(entries, 1):
            if missing := [key for key in _RECORDED if key not in entry]:
                raise GateFailed(
                    f"translation {number} of {EXPECTED_TRANSLATIONS} has no {', '.join(missing)}"
                )
        return entries

    def card_number(self, section: str, key: str) -> float:
        """A number that the model card must have."""
        section_of_card = self.card.get(section)
        value = section_of_card.get(key) if isinstance(section_of_card, dict) else None
        if not isinstance(value, int | float):
            raise GateFailed(f"{MODEL_CARD} has no number {section}.{key}")
        return value

    @cached_property
    def is_half_precision(self) -> bool:
        """Whether the graph computes in float16 or bfloat16."""
        halves = {tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum}
        return any(
            attribute.type in halves for _, node in self.nodes() for attribute in node.attr.values()
        )

    @property
    def tolerance(self) -> Tolerance:
        """By how much numbers may differ."""
        return _HALF_PRECISION if self.is_half_precision else _FULL_PRECISION

    def _read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        if not file.is_file():
            raise GateFailed(f"{name} is missing")
        try:
            found = json.loads(file.read_bytes().decode())
        except ValueError as error:
            raise GateFailed(f"{name} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise GateFailed(f"{name} holds no object")
        return found

    # What the loaders do --------------------------------------------------------------------------

    def run(self, signature: str, rows: Sequence[Row], loader: str = "session") -> Outputs:
        """The outputs of a signature for rows of its inputs."""
        if loader == "session":
            return self._need("session").run(signature, **_columns(signature, rows))
        columns = {
            name: tf.constant(values, tf.string, [len(values)])
            for name, values in _columns(signature, rows).items()
        }
        outputs = self._need("python").signatures[signature](**columns)
        return {name: value.numpy() for name, value in outputs.items()}

    def rows(self, signature: str) -> list[Row]:
        """What was recorded, as rows of a signature's inputs."""
        keys = ("text", "translation")[: len(SIGNATURES[signature].inputs)]
        return [tuple(entry[key] for key in keys) for entry in self.recorded]

    def _need(self, loader: str) -> Any:
        if (loaded := getattr(self, loader)) is None:
            raise GateFailed(f"not run: the {loader} loader failed")
        return loaded

    def close(self) -> None:
        """Frees what the loaders hold."""
        if self.session is not None:
            self.session.close()


def row_of(outputs: Outputs, index: int) -> Outputs:
    """The outputs of one row, without what pads it to the length of its batch."""
    row = {name: value[index] for name, value in outputs.items()}
    if "attention" in row:
        source, target = row["source_lengths"], row["target_lengths"]
        row["source_pieces"] = row["source_pieces"][:source]
        row["target_pieces"] = row["target_pieces"][:target]
        row["attention"] = row["attention"][:target, :source]
    return row


def difference(one: Outputs, other: Outputs, tolerance: Tolerance) -> str | None:
    """How two rows differ by more than rounding, or None."""
    for name, value in sorted(one.items()):
        same = other[name]
        if not tolerance.same_texts:
            if name in ("translation", "translations"):
                continue  # the scores say whether the others are as good
            if name == "scores":
                # Below the best one other hypotheses may come in.
                value, same = value[:1], same[:1]
        elif name == "translations" and _same_hypotheses(one, other, tolerance):
            continue
        if not equal(value, same, tolerance):
            return f"{name} {_shown(value)} and {_shown(same)}"
    return None


def equal(one: Any, other: Any, tolerance: Tolerance) -> bool:
    """Texts are equal; numbers with a fraction differ by rounding at most."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return False
    if one.dtype.kind == "f" or other.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=tolerance.relative, atol=tolerance.absolute))
    return bool(np.all(one == other))


def first_dimension(outputs: Outputs, rows: int, where: str) -> None:
    """Every output must have as many rows as went in."""
    for name, value in sorted(outputs.items()):
        if value.ndim == 0 or len(value) != rows:
            raise GateFailed(f"{where}: {rows} rows in, {name} has shape {value.shape}")


def _same_hypotheses(one: Outputs, other: Outputs, tolerance: Tolerance) -> bool:
    """Those as good as one another may come in another order."""
    scores = dict(zip(other["translations"].tolist(), other["scores"], strict=True))
    return all(
        text in scores and equal(score, scores[text], tolerance)
        for text, score in zip(one["translations"].tolist(), one["scores"], strict=True)
    )


def _columns(signature: str, rows: Sequence[Row]) -> dict[str, list[str | bytes]]:
    names = SIGNATURES[signature].inputs
    return {name: [row[column] for row in rows] for column, name in enumerate(names)}


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) < 80 else f"{text[:80]}..."


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target, follow_symlinks=False)
