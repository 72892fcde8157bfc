"""Gates on what an export does in the loaders that it is for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from export.c_program import c_program, run_in_c
from export.checking.contract import DEFAULT, SIGNATURES
from export.checking.examined import (
    ExaminedExport,
    GateFailed,
    Outputs,
    Row,
    difference,
    first_dimension,
    row_of,
)
from export.session import ExportSession

_BLANK = ("", "   ", "\u00a0", "\t")
_CHECKPOINT_KEYS = "_CHECKPOINTABLE_OBJECT_GRAPH"


# Loaders ------------------------------------------------------------------------------------------


def python_loader(export: ExaminedExport) -> str:
    """`tf.saved_model.load` runs every signature."""
    export.python = tf.saved_model.load(str(export.path))
    try:
        return _run_each(export, "python")
    except Exception:
        export.python = None
        raise


def session_loader(export: ExaminedExport) -> str:
    """The loader with a session and a restore op, which TF Serving and the C API use."""
    export.session = ExportSession(export.path)
    try:
        return _run_each(export, "session")
    except Exception:
        export.session = None
        raise


def c_loader(export: ExaminedExport) -> str:
    """A C program without Python and without XLA gives the session's results."""
    program = c_program()
    if program is None:
        return "not run: no C compiler"
    rows = {
        signature: [row for row in export.rows(signature) if not _has_control(row)]
        for signature in export.signatures
    }
    with tempfile.TemporaryDirectory() as empty, ThreadPoolExecutor(2) as pool:

        def run(signature: str) -> Outputs:
            (outputs,) = run_in_c(program, export.path, signature, rows[signature], 1000, empty)
            return outputs

        # Most of the time is the loading of TensorFlow, by a process for each signature.
        results = dict(zip(rows, pool.map(run, rows), strict=True))
    for signature, found in results.items():
        outputs = export.run(signature, rows[signature])
        if set(found) != set(outputs):
            raise GateFailed(f"{signature} gave {sorted(found)}, not {sorted(outputs)}")
        first_dimension(found, len(rows[signature]), signature)
        for index, row in enumerate(rows[signature]):
            if differ := difference(row_of(outputs, index), row_of(found, index), export.tolerance):
                raise GateFailed(f"{signature} {row}: session and C gave {differ}")
    return f"{', '.join(rows)}: as in the session"


def _run_each(export: ExaminedExport, loader: str) -> str:
    for signature in export.signatures:
        row = ("a",) * len(SIGNATURES[signature].inputs)
        export.run(signature, [row], loader)
    return f"ran {', '.join(export.signatures) or 'nothing'}"


def _has_control(row: Row) -> bool:
    """Whether a row cannot be a line of the C program's input."""
    return any(set(text) & set("\t\n") for text in row)


# Variables ----------------------------------------------------------------------------------------


def variables(export: ExaminedExport) -> str:
    """What the signatures read is restored, and nothing else is stored."""
    reached = _reached(export.meta_graph)
    handles = [
        node.name
        for node in export.meta_graph.graph_def.node
        if node.op == "VarHandleOp" and node.name in reached
    ]
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(export.path))
        initialized = session.run(
            {
                name: tf.raw_ops.VarIsInitializedOp(resource=graph.get_tensor_by_name(f"{name}:0"))
                for name in handles
            }
        )
    if empty := sorted(name for name in handles if not initialized[name]):
        raise GateFailed(f"{len(empty)} variables without a value, such as {empty[0]}")
    if left := sorted(_stored(export) - _needed(export.meta_graph.object_graph_def)):
        raise GateFailed(f"{len(left)} stored tensors that no signature reads, such as {left[0]}")
    return f"{len(handles)} variables, all restored, and no others stored"


def _reached(meta_graph: Any) -> set[str]:
    """Names of the nodes that the signatures are computed from."""
    inputs = {
        node.name: [name.lstrip("^").split(":")[0] for name in node.input]
        for node in meta_graph.graph_def.node
    }
    left = [
        tensor.name.split(":")[0]
        for definition in meta_graph.signature_def.values()
        for tensor in definition.outputs.values()
    ]
    reached: set[str] = set()
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += inputs.get(name, [])
    return reached


def _stored(export: ExaminedExport) -> set[str]:
    """Names of the variables whose values the checkpoint holds, and of its other tensors."""
    checkpoint = tf.train.load_checkpoint(str(export.path / "variables" / "variables"))
    keys = set(checkpoint.get_variable_to_shape_map()) - {_CHECKPOINT_KEYS}
    objects = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        checkpoint.get_tensor(_CHECKPOINT_KEYS)
    )
    names = {
        attribute.checkpoint_key: attribute.full_name
        for node in objects.nodes
        for attribute in node.attributes
    }
    # A dropout layer's seed is a variable that only training reads; Keras always stores it.
    return {
        name
        for name in (names.get(key) or key for key in keys)
        if not name.endswith("/seed_generator_state")
    }


def _needed(objects: Any) -> set[str]:
    """Names of the variables that any function of the export reads."""
    bound = {
        index for function in objects.concrete_functions.values() for index in function.bound_inputs
    }
    return {
        objects.nodes[index].variable.name
        for index in bound
        if objects.nodes[index].WhichOneof("kind") == "variable"
    }


# Batches ------------------------------------------------------------------------------------------


def empty_batch(export: ExaminedExport) -> str:
    """A batch of no texts gives outputs of no rows."""
    for loader, signature in _loaders_and_signatures(export):
        first_dimension(export.run(signature, [], loader), 0, f"{loader}: {signature}")
    return "0 rows in, 0 rows out"


def empty_text(export: ExaminedExport) -> str:
    """Text without words is translated by empty text with a finite score."""
    for loader in ("python", "session"):
        outputs = export.run(DEFAULT, [(text,) for text in _BLANK], loader)
        for text, translation, score, truncated in zip(
            _BLANK, outputs["translation"], outputs["score"], outputs["truncated"], strict=True
        ):
            if translation != b"" or not np.isfinite(score) or truncated:
                raise GateFailed(f"{loader}: {text!r} gave {translation!r} with score {score}")
    return "no words in, no words out"


def batch_mates(export: ExaminedExport) -> str:
    """Every output has a row for each row, which does not depend on the others."""
    for signature in export.signatures:
        rows = export.rows(signature)
        together = export.run(signature, rows)
        first_dimension(together, len(rows), signature)
        for index, row in enumerate(rows):
            alone = export.run(signature, [row])
            if differ := difference(row_of(alone, 0), row_of(together, index), export.tolerance):
                raise GateFailed(f"{signature} {row}: alone and in a batch gave {differ}")
    return f"{len(export.recorded)} texts alone and together"


def _loaders_and_signatures(export: ExaminedExport) -> Iterator[tuple[str, str]]:
    for loader in ("python", "session"):
        for signature in export.signatures:
            yield loader, signature
