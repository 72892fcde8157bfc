"""The ops that a stock TensorFlow server has, by the server's version."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "server_operations"
_FILE = re.compile(r"tensorflow-(\d+\.\d+)\.txt")

_FILES = re.compile(
    r"^(Read|Write)File$|TextFile|MatchingFiles|FixedLengthRecord|TextLine|TFRecord|Reader"
    r"|FileSystem|^Save(Slices)?$|^Restore(Slice)?$|ImmutableConst|Dataset|LoadAndRemap"
)
# Why an op is in no list, where it can be told from its name.
_REASONS = (
    (re.compile(r"PyFunc"), "needs the Python process that made it"),
    (re.compile(r"Xla"), "needs XLA, which a stock server has off"),
    (_FILES, "reads or writes files"),
    (re.compile(r"TPU|Collective|Nccl|Send$|Recv$|Rpc|RemoteCall"), "needs other hosts or devices"),
)


@functools.cache
def server_operations() -> dict[str, dict[str, frozenset[str]]]:
    """For each version of the server its ops, and the names of the attributes that they know.

    Returns:
        A dict such as `{"2.18": {"Abs": frozenset({"T"})}}`, oldest server first.
    """
    found = {}
    for path in _FOLDER.glob("tensorflow-*.txt"):
        lines = path.read_text(encoding="utf-8").split("\n")
        rows = [line.split() for line in lines if line and not line.startswith("#")]
        found[_FILE.fullmatch(path.name).group(1)] = {
            name: frozenset(attributes) for name, *attributes in rows
        }
    return dict(sorted(found.items(), key=lambda item: _numbers(item[0])))


def fault_of(operation: str, attributes: Mapping[str, object]) -> str | None:
    """Why a server cannot load a node, or None.

    Args:
        operation: str. The node's op.
        attributes: its attributes by name. Those that start with an underscore are notes for
            whoever runs the graph, and may stand on any node.
    """
    named = {name for name in attributes if not name.startswith("_")}
    for version, operations in server_operations().items():
        if operation not in operations:
            reason = next(
                (reason for pattern, reason in _REASONS if pattern.search(operation)),
                f"is not on the list for TensorFlow {version}",
            )
            return f"{operation} {reason}"
        if unknown := sorted(named - operations[operation]):
            return f"{operation} has no attribute {', '.join(unknown)} in TensorFlow {version}"
    return None


def is_file_operation(operation: str) -> bool:
    """Whether an op reads or writes files, other than the checkpoint that the loader restores."""
    return _FILES.search(operation) is not None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))
