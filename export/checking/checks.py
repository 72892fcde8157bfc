"""Runs the gates of `check-export`, and reports."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from export.checking import gates_recorded, gates_running, gates_static
from export.checking.examined import ExaminedExport, GateFailed
from export.checking.fuzz import fuzz
from export.checking.odd_texts import any_bytes
from export.checking.rest_api import rest_columns, rest_rows
from export.checking.server_batching import server_batching
from export.checking.warm_up_requests import warm_up
from export.loaded import version_directory

# In this order: what a later gate runs, the first two have loaded.
_GATES = (
    gates_running.python_loader,
    gates_running.session_loader,
    gates_running.c_loader,
    gates_static.signatures,
    gates_static.operations,
    gates_static.no_xla,
    gates_static.self_contained,
    gates_static.one_device,
    gates_running.variables,
    any_bytes,
    gates_running.empty_batch,
    gates_running.empty_text,
    gates_running.batch_mates,
    server_batching,
    rest_rows,
    rest_columns,
    warm_up,
    gates_recorded.model_card,
    gates_recorded.python_translator,
    gates_recorded.score,
    gates_recorded.align,
)
_FUNCTION_NODE = re.compile(r"^\{\{function_node [^}]*\}\}\s*")
GATES: dict[str, Callable[[ExaminedExport], str]] = {gate.__name__: gate for gate in _GATES}


def check_export(
    path: str | Path,
    fuzz_strings: int = 0,
    report: Callable[[str, dict[str, Any]], None] = lambda name, result: None,
) -> dict[str, Any]:
    """Runs every gate on an export.

    Args:
        path: path of a version, or of a folder of versions, of which the highest is checked.
        fuzz_strings: int. Random byte strings that the gate `fuzz` sends; without any there is no
            such gate.
        report: called with each gate's name and result when it is done.

    Returns:
        A dict: `ok`, and for each gate a dict of `ok` and `detail`.

    Raises:
        InputError: where there is no export.
    """
    import tensorflow_text  # noqa: F401  registers the tokenizer's ops

    gates = dict(GATES)
    if fuzz_strings:
        gates["fuzz"] = functools.partial(_fuzz, strings=fuzz_strings)
    results: dict[str, Any] = {"ok": True}
    with tempfile.TemporaryDirectory(prefix="check-export-") as folder:
        version = version_directory(path)
        export = ExaminedExport(version, Path(folder))
        for name, gate in gates.items():
            try:
                results[name] = {"ok": True, "detail": gate(export)}
            except GateFailed as error:
                results[name] = {"ok": False, "detail": _one_line(error)}
            except Exception as error:  # whatever a loader raises is this gate's finding
                detail = f"{type(error).__name__}: {_one_line(error)}"
                results[name] = {"ok": False, "detail": detail}
            # The copy that was examined is gone when somebody reads this.
            result = results[name]
            result["detail"] = result["detail"].replace(str(export.path), str(version))
            results["ok"] &= result["ok"]
            report(name, result)
        export.close()
    return results


def _fuzz(export: ExaminedExport, strings: int) -> str:
    """Random bytes raise no error; what comes out is valid text and finite numbers."""
    if export.session is None:
        raise GateFailed("not run: the session loader failed")
    result = fuzz(export.session, strings)
    return (
        f"{result['strings']} random strings in {result['batches']} batches, "
        f"{result['truncated']} cut; {result['memory_megabytes']:.0f} MB at most"
    )


def _one_line(error: Exception) -> str:
    """What an error says, without TensorFlow's lines about where in the graph it was."""
    lines = [line.strip() for line in str(error).split("\n")]
    where = ("Graph execution error", "Detected at node", "<stack traces", "[[")
    lines = [_FUNCTION_NODE.sub("", line) for line in lines]
    telling = [line for line in lines if line and not line.startswith(where)]
    return telling[0] if telling else "no message"
