"""Gates on what the files of an export say, before anything is run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from export.checking.contract import DEFAULT, SIGNATURES
from export.checking.examined import ExaminedExport, GateFailed
from export.checking.operations import fault_of, is_file_operation, server_operations
from export.session import signatures_of

# The whole of a text is a path or an address: /data/a.txt, C:\data\a.txt, \\host\a.txt, gs://a/b.
_ABSOLUTE = re.compile(
    r"(/[^/\0\n]+)+/?|[A-Za-z]:[\\/][^\0\n]*|\\\\[^\0\n]+|[A-Za-z][A-Za-z0-9+.-]*://[^\0\n]*"
)
# No device, or the first CPU of the process that loads the graph.
_LOCAL_CPU = re.compile(
    r"(/job:localhost)?(/replica:0)?(/task:0)?(/(device:)?CPU:[0*])?", re.IGNORECASE
)


def signatures(export: ExaminedExport) -> str:
    """Names, dtypes and ranks of inputs and outputs are those of the contract; all are dense."""
    definitions = signatures_of(export.meta_graph)
    if DEFAULT not in definitions:
        raise GateFailed(f"signature {DEFAULT} is missing")
    for signature, definition in sorted(definitions.items()):
        for name, tensor in [*definition.inputs.items(), *definition.outputs.items()]:
            if tensor.WhichOneof("encoding") != "name":
                raise GateFailed(f"{signature}/{name} is no dense tensor")
        for name in definition.outputs:
            if name.endswith("_bytes"):
                raise GateFailed(f"{signature}/{name}: the server returns _bytes as base64")
        if signature not in SIGNATURES:
            raise GateFailed(f"{signature} is no signature that clients know")
        expected = SIGNATURES[signature]
        takes = {name: shape_of(tensor) for name, tensor in definition.inputs.items()}
        if takes != {name: ("string", "N") for name in expected.inputs}:
            names = ", ".join(expected.inputs)
            raise GateFailed(f"{signature} takes {_shown(takes)}, expected {names}: string [N]")
        returns = {name: shape_of(tensor) for name, tensor in definition.outputs.items()}
        ranks = {
            name: (dtype, len(sizes))
            for name, (dtype, *sizes) in returns.items()
            if sizes[:1] == ["N"]
        }
        if ranks != {name: (dtype.name, rank) for name, (dtype, rank) in expected.outputs.items()}:
            wanted = ", ".join(
                f"{name}: {dtype.name} [{', '.join(['N', '?', '?'][:rank])}]"
                for name, (dtype, rank) in sorted(expected.outputs.items())
            )
            raise GateFailed(f"{signature} returns {_shown(returns)}, expected {wanted}")
    return f"{', '.join(export.signatures)} as agreed"


def operations(export: ExaminedExport) -> str:
    """Every op, in the graph and in its functions, is one that the servers have, attributes too."""
    functions = {
        function.signature.name for function in export.meta_graph.graph_def.library.function
    }
    found, faults = set(), set()
    for _, node in export.nodes():
        if node.op in functions:
            continue
        found.add(node.op)
        if fault := fault_of(node.op, node.attr):
            faults.add(fault)
    if faults:
        raise GateFailed("; ".join(sorted(faults)))
    return f"{len(found)} kinds of ops, all in TensorFlow {' and '.join(server_operations())}"


def no_xla(export: ExaminedExport) -> str:
    """Nothing must be compiled by XLA, which a stock server has off; the C loader runs without."""
    compiled = {
        function.signature.name
        for function in export.meta_graph.graph_def.library.function
        if function.attr["_XlaMustCompile"].b
    }
    compiled |= {node.name for _, node in export.nodes() if node.attr["_XlaMustCompile"].b}
    compiled |= {node.name for _, node in export.nodes() if "Xla" in node.op}
    if compiled:
        raise GateFailed(f"needs XLA, which a stock server has off: {', '.join(sorted(compiled))}")
    return "nothing must be compiled"


def self_contained(export: ExaminedExport) -> str:
    """No path or address leads out of the folder, and no file is missing in it."""
    for where, text in _texts(export):
        if is_absolute(text):
            raise GateFailed(f"{where} holds the path {text!r}")
    for where, node in export.nodes():
        if is_file_operation(node.op):
            raise GateFailed(f"{node.op} {node.name} in {where} reads or writes files")
        if node.op == "SentencepieceOp" and not node.attr["model"].s:
            raise GateFailed(f"{node.name} in {where} holds no tokenizer")
    root = export.path / "assets"
    for asset in export.meta_graph.asset_file_def:
        file = (root / asset.filename).resolve()
        if not (file.is_relative_to(root.resolve()) and file.is_file()):
            raise GateFailed(f"the asset {asset.filename!r} is not in assets")
    for file in export.path.rglob("*"):
        if file.is_symlink():
            raise GateFailed(f"{file.relative_to(export.path)} is a link to another place")
    return "no path or address in it, and no file outside"


def one_device(export: ExaminedExport) -> str:
    """Nothing is pinned to a device other than the one CPU that every host has."""
    pinned = Counter(node.device for _, node in export.nodes())
    pinned.update(
        node.variable.device
        for node in export.meta_graph.object_graph_def.nodes
        if node.WhichOneof("kind") == "variable"
    )
    foreign = [device for device in pinned if not _LOCAL_CPU.fullmatch(device)]
    if foreign:
        count = sum(pinned[device] for device in foreign)
        raise GateFailed(f"{count} nodes and variables are pinned to {', '.join(sorted(foreign))}")
    return "no device but the first CPU"


def is_absolute(text: str) -> bool:
    """Whether the whole of a text is an absolute path or an address."""
    return _ABSOLUTE.fullmatch(text) is not None


def _texts(export: ExaminedExport) -> Iterator[tuple[str, str]]:
    """The texts of all constants and attributes, and where they are."""
    for where, node in export.nodes():
        for name, attribute in node.attr.items():
            values = [attribute.s, *attribute.list.s, *attribute.tensor.string_val]
            for value in values:
                # Half a megabyte of tokenizer is no path.
                if value and len(value) < 4096:
                    yield f"{node.name}/{name} in {where}", value.decode(errors="replace")


def shape_of(tensor: Any) -> tuple[str, ...]:
    """The dtype of a TensorInfo and its sizes, of which an open first one is `N`."""
    dtype = tf.dtypes.as_dtype(tensor.dtype).name
    if tensor.tensor_shape.unknown_rank:
        return (dtype, "any rank")
    sizes = [dimension.size for dimension in tensor.tensor_shape.dim]
    first = ["N" if size == -1 else str(size) for size in sizes[:1]]
    return (dtype, *first, *("?" if size == -1 else str(size) for size in sizes[1:]))


def _shown(tensors: dict[str, tuple[str, ...]]) -> str:
    return ", ".join(
        f"{name}: {dtype} [{', '.join(sizes)}]" for name, (dtype, *sizes) in sorted(tensors.items())
    )
