"""Gates on what was recorded of an export, and on what its numbers must agree with."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from export.checking.contract import DEFAULT
from export.checking.examined import ExaminedExport, GateFailed, equal, row_of
from export.checking.gates_static import is_absolute, shape_of
from export.model_card import MODEL_CARD
from export.session import signatures_of

_CARD_KEYS = ("recipe", "bleu", "languages", "versions", "decoding", "limits", "signatures")
# An absolute path of two parts or more within a text.
_PATH_INSIDE = re.compile(r"(?:^|[\s\"'=:,(\[])(/[\w.~+-]+){2,}")


def model_card(export: ExaminedExport) -> str:
    """The card is there, says what it must, and nothing of the machine it was made on."""
    card = export.card
    if missing := [key for key in _CARD_KEYS if key not in card]:
        raise GateFailed(f"{MODEL_CARD} has no {', '.join(missing)}")
    for key, text in _texts(card):
        if is_absolute(text) or _PATH_INSIDE.search(text):
            raise GateFailed(f"{MODEL_CARD} holds the path {text!r} in {key}")
    described = {
        name: {
            side: {
                key: f"{dtype} [{', '.join(sizes)}]"
                for key, (dtype, *sizes) in (
                    (key, shape_of(tensor)) for key, tensor in getattr(definition, side).items()
                )
            }
            for side in ("inputs", "outputs")
        }
        for name, definition in signatures_of(export.meta_graph).items()
    }
    if not isinstance(card["signatures"], dict):
        raise GateFailed(f"{MODEL_CARD} must describe the signatures: {card['signatures']!r}")
    if set(card["signatures"]) != set(described):
        raise GateFailed(f"{MODEL_CARD} lists {sorted(card['signatures'])}, not the graph's")
    for name, signature in described.items():
        if card["signatures"][name] != signature:
            raise GateFailed(f"{MODEL_CARD} has {name} otherwise than the graph: {signature}")
    _check_facts(export)
    return f"{', '.join(card['signatures'])} as in the graph, no path"


def _check_facts(export: ExaminedExport) -> None:
    """What the card says of the model is what the graph shows."""
    card, definitions = export.card, export.meta_graph.signature_def
    facts: list[tuple[str, Any, Any]] = [
        ("half precision", card.get("precision") != "float32", export.is_half_precision)
    ]
    if "n_best" in definitions:
        beam_size = definitions["n_best"].outputs["scores"].tensor_shape.dim[1].size
        facts.append(("decoding.beam_size", export.card_number("decoding", "beam_size"), beam_size))
    variables = [
        [dimension.size for dimension in node.attr["shape"].shape.dim]
        for where, node in export.nodes()
        if node.op == "VarHandleOp" and where == "the graph"
    ]
    if variables and "parameters" in card:
        parameters = sum(math.prod(shape) for shape in variables)
        facts.append(("parameters", card.get("parameters"), parameters))
    tokenizers = {
        hashlib.sha256(node.attr["model"].s).hexdigest()
        for where, node in export.nodes()
        if node.op == "SentencepieceOp" and where == "the graph"
    }
    if tokenizers and "tokenizer" in card:
        said = card.get("tokenizer")
        said = set(said.values()) if isinstance(said, dict) else said
        facts.append(("tokenizer", said, tokenizers))
    for name, said, found in facts:
        if said != found:
            raise GateFailed(f"{MODEL_CARD}: {name} is {said}, in the graph {found}")


def python_translator(export: ExaminedExport) -> str:
    """Both loaders give the translations that Python gave when the export was made."""
    for loader in ("python", "session"):
        outputs = export.run(DEFAULT, export.rows(DEFAULT), loader)
        for entry, translation, score in zip(
            export.recorded, outputs["translation"], outputs["score"], strict=True
        ):
            translation = translation.decode()
            is_right = translation == entry["translation"] or not export.tolerance.same_texts
            if not is_right or not equal(score, entry["score"], export.tolerance):
                raise GateFailed(
                    f"{loader}: {entry['text']!r} gave {translation!r} ({score:.5f}), "
                    f"Python {entry['translation']!r} ({entry['score']:.5f})"
                )
    return f"{len(export.recorded)} translations equal"


def score(export: ExaminedExport) -> str:
    """The log-probability of a translation is the search's score without its length penalty."""
    if "score" not in export.signatures:
        return "not exported"
    alpha = export.card_number("decoding", "alpha")
    is_power = export.card["decoding"].get("length_penalty") == "power"
    outputs = export.run("score", export.rows("score"))
    flagged = 0
    for entry, log_probability, tokens in zip(
        export.recorded, outputs["log_probability"], outputs["tokens"], strict=True
    ):
        where = f"{entry['text']!r}"
        if not np.isfinite(log_probability) or tokens < 1:
            raise GateFailed(f"{where}: {log_probability} over {tokens} tokens")
        if tokens != entry["tokens"] or not equal(
            log_probability, entry["log_probability"], export.tolerance
        ):
            raise GateFailed(
                f"{where}: {log_probability:.5f} over {tokens} tokens, Python "
                f"{entry['log_probability']:.5f} over {entry['tokens']}"
            )
        if entry["same_tokens"]:
            flagged += 1
            penalized = log_probability / (tokens if is_power else (5 + tokens) / 6) ** alpha
            if not equal(penalized, entry["score"], export.tolerance):
                raise GateFailed(
                    f"{where}: the search's score is {entry['score']:.5f}, not {penalized:.5f}"
                )
    return f"{len(export.recorded)} as Python, {flagged} as the search"


def align(export: ExaminedExport) -> str:
    """Attention sums to 1 over a source's tokens, and is 0 where there are none."""
    if "align" not in export.signatures:
        return "not exported"
    rows = export.rows("align")
    outputs = export.run("align", rows)
    for index, row in enumerate(rows):
        where = f"{row[0]!r}"
        source = int(outputs["source_lengths"][index])
        target = int(outputs["target_lengths"][index])
        attention = outputs["attention"][index]
        if attention[target:].any() or attention[:, source:].any():
            raise GateFailed(f"{where}: attention beyond {target} by {source} tokens")
        if (attention < 0).any() or np.abs(attention[:target].sum(axis=1) - 1).max() > 1e-3:
            raise GateFailed(f"{where}: attention that does not sum to 1")
        cut = row_of(outputs, index)
        for side, length in (("source_pieces", source), ("target_pieces", target)):
            pieces = outputs[side][index]
            if (pieces[length:] != b"").any() or (cut[side] == b"").any():
                raise GateFailed(f"{where}: {side} are not {length}: {pieces.tolist()}")
            if length < 1 or pieces[length - 1] != b"</s>":
                raise GateFailed(f"{where}: {side} do not end with </s>: {pieces.tolist()}")
    return f"{len(rows)} rows sum to 1"


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts in a JSON value, and the names of where they are."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _texts(each, f"{key}.{name}".lstrip("."))
            yield f"{key} as a name".strip(), name
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key)
    elif isinstance(value, str):
        yield key, value
