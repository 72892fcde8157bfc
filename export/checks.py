"""Gates that an export must pass before another host is asked to load it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from export.loaded import version_directory
from export.operations import ALLOWED_OPERATIONS
from export.saved_model import EXPECTED_TRANSLATIONS

SIGNATURES = {
    "serving_default": {"translation": (tf.string, 1), "score": (tf.float32, 1)},
    "n_best": {"translations": (tf.string, 2), "scores": (tf.float32, 2)},
}

Outputs = dict[str, np.ndarray]
Run = Callable[[str, list[str]], Outputs]


class GateFailed(Exception):
    """What a gate found wrong."""


def check_export(path: str | Path) -> dict[str, Any]:
    """Runs every gate on an export.

    Args:
        path: path of a version, or of a folder of versions, of which the highest is checked.

    Returns:
        A dict: `ok`, and for each gate a dict of `ok` and `detail`.

    Raises:
        InputError: where there is no export.
    """
    import tensorflow_text  # noqa: F401  registers the tokenizer's ops

    path = version_directory(path)
    runs: dict[str, Run] = {}
    results: dict[str, Any] = {"ok": True}
    for name, gate in GATES.items():
        try:
            detail = gate(path, runs)
            results[name] = {"ok": True, "detail": detail}
        except GateFailed as error:
            results[name] = {"ok": False, "detail": str(error)}
            results["ok"] = False
        except Exception as error:  # whatever a loader raises is this gate's finding
            results[name] = {"ok": False, "detail": f"{type(error).__name__}: {_one_line(error)}"}
            results["ok"] = False
    return results


def _python_loader(path: Path, runs: dict[str, Run]) -> str:
    """`tf.saved_model.load` runs every signature."""
    loaded = tf.saved_model.load(str(path))

    def run(signature: str, texts: list[str]) -> Outputs:
        outputs = loaded.signatures[signature](text=tf.constant(texts, tf.string, [len(texts)]))
        return {name: value.numpy() for name, value in outputs.items()}

    for signature in SIGNATURES:
        run(signature, ["a"])
    runs["python"] = run
    return f"ran {', '.join(SIGNATURES)}"


def _session_loader(path: Path, runs: dict[str, Run]) -> str:
    """The loader with a session and a restore op, which TF Serving and the C API use."""
    graph = tf.Graph()
    with graph.as_default():
        session = tf.compat.v1.Session(graph=graph)
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(path))

    def run(signature: str, texts: list[str]) -> Outputs:
        definition = meta_graph.signature_def[signature]
        fetches = {name: tensor.name for name, tensor in definition.outputs.items()}
        feed = np.array([text.encode() for text in texts], dtype=object)
        return session.run(fetches, {definition.inputs["text"].name: feed})

    for signature in SIGNATURES:
        run(signature, ["a"])
    runs["session"] = run
    return f"ran {', '.join(SIGNATURES)}"


def _signatures(path: Path, runs: dict[str, Run]) -> str:
    """Names, dtypes and ranks of inputs and outputs are those of the contract."""
    definitions = _meta_graph(path).signature_def
    for signature, outputs in SIGNATURES.items():
        if signature not in definitions:
            raise GateFailed(f"signature {signature} is missing")
        definition = definitions[signature]
        found = {
            name: (tf.dtypes.as_dtype(tensor.dtype), len(tensor.tensor_shape.dim))
            for name, tensor in definition.outputs.items()
        }
        if found != outputs:
            raise GateFailed(f"{signature} returns {found}, expected {outputs}")
        inputs = {
            name: (tf.dtypes.as_dtype(tensor.dtype), [dim.size for dim in tensor.tensor_shape.dim])
            for name, tensor in definition.inputs.items()
        }
        if inputs != {"text": (tf.string, [-1])}:
            raise GateFailed(f"{signature} takes {inputs}, expected text: string [N]")
    return f"{', '.join(SIGNATURES)} as agreed"


def _operations(path: Path, runs: dict[str, Run]) -> str:
    """Every op, in the graph and in its functions, is one that a stock server has."""
    meta_graph = _meta_graph(path)
    found = {node.op for node in meta_graph.graph_def.node}
    compiled = []
    for function in meta_graph.graph_def.library.function:
        found |= {node.op for node in function.node_def}
        if function.attr["_XlaMustCompile"].b:
            compiled.append(function.signature.name)
    functions = {function.signature.name for function in meta_graph.graph_def.library.function}
    foreign = sorted(found - ALLOWED_OPERATIONS - functions)
    if foreign:
        raise GateFailed(f"not on the list of allowed ops: {', '.join(foreign)}")
    if compiled:
        raise GateFailed(f"needs XLA, which a stock server has off: {', '.join(compiled)}")
    return f"{len(found)} kinds of ops, all allowed"


def _empty_batch(path: Path, runs: dict[str, Run]) -> str:
    """A batch of no texts gives outputs of no rows."""
    for loader, run in _need(runs).items():
        for signature in SIGNATURES:
            for name, value in run(signature, []).items():
                if value.shape[0] != 0:
                    raise GateFailed(f"{loader}: {signature}/{name} has shape {value.shape}")
    return "0 texts, 0 rows"


def _empty_text(path: Path, runs: dict[str, Run]) -> str:
    """Text without words is translated by empty text with a finite score."""
    texts = ["", "   ", "\u00a0", "\t"]
    for loader, run in _need(runs).items():
        outputs = run("serving_default", texts)
        for text, translation, score in zip(
            texts, outputs["translation"], outputs["score"], strict=True
        ):
            if translation != b"" or not np.isfinite(score):
                raise GateFailed(f"{loader}: {text!r} gave {translation!r} with score {score}")
    return "no words in, no words out"


def _batch_mates(path: Path, runs: dict[str, Run]) -> str:
    """Every output has a row for each text, which does not depend on the other texts."""
    texts = [entry["text"] for entry in _expected(path)]
    run = _need(runs)["session"]
    for signature, outputs in SIGNATURES.items():
        together = run(signature, texts)
        for row, text in enumerate(texts):
            alone = run(signature, [text])
            for name in outputs:
                if len(together[name]) != len(texts):
                    raise GateFailed(f"{signature}/{name} has shape {together[name].shape}")
                if not _equal(alone[name][0], together[name][row]):
                    raise GateFailed(
                        f"{text!r} alone gave {alone[name][0]!r}, in a batch "
                        f"{together[name][row]!r}"
                    )
    return f"{len(texts)} texts alone and together"


def _python_translator(path: Path, runs: dict[str, Run]) -> str:
    """Both loaders give the translations that Python gave when the export was made."""
    entries = _expected(path)
    for loader, run in _need(runs).items():
        outputs = run("serving_default", [entry["text"] for entry in entries])
        for entry, translation, score in zip(
            entries, outputs["translation"], outputs["score"], strict=True
        ):
            if translation.decode() != entry["translation"] or not _equal(score, entry["score"]):
                raise GateFailed(
                    f"{loader}: {entry['text']!r} gave {translation.decode()!r} ({score:.5f}), "
                    f"Python {entry['translation']!r} ({entry['score']:.5f})"
                )
    return f"{len(entries)} translations equal"


GATES: dict[str, Callable[[Path, dict[str, Run]], str]] = {
    "python_loader": _python_loader,
    "session_loader": _session_loader,
    "signatures": _signatures,
    "operations": _operations,
    "empty_batch": _empty_batch,
    "empty_text": _empty_text,
    "batch_mates": _batch_mates,
    "python_translator": _python_translator,
}


def _meta_graph(path: Path) -> Any:
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((path / "saved_model.pb").read_bytes())
    return saved_model.meta_graphs[0]


def _expected(path: Path) -> list[dict[str, Any]]:
    file = path / "assets.extra" / EXPECTED_TRANSLATIONS
    if not file.exists():
        raise GateFailed(f"{file.relative_to(path)} is missing")
    entries = json.loads(file.read_text(encoding="utf-8"))["translations"]
    if not entries:
        raise GateFailed(f"{file.relative_to(path)} holds no translations")
    return entries


def _need(runs: dict[str, Run]) -> dict[str, Run]:
    """The loaders that the first two gates got to work."""
    missing = {"python", "session"} - set(runs)
    if missing:
        raise GateFailed(f"not run: the {' and the '.join(sorted(missing))} loader failed")
    return runs


def _one_line(error: Exception) -> str:
    """What an error says, without TensorFlow's lines about where in the graph it was."""
    lines = [line.strip() for line in str(error).split("\n")]
    where = ("Graph execution error", "Detected at node", "<stack traces", "[[")
    telling = [line for line in lines if line and not line.startswith(where)]
    return telling[0] if telling else "no message"


def _equal(one: Any, other: Any) -> bool:
    """Texts are equal; scores differ by rounding at most."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind == "f" or other.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=1e-4, atol=1e-4))
    return bool(np.all(one == other))
