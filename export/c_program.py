"""Compiles the C program that runs an export without Python, and runs it."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

Outputs = dict[str, np.ndarray]

SOURCE = Path(__file__).parent / "run_saved_model.c"
_DTYPES = {"string": object, "float32": np.float32, "int32": np.int32, "bool": np.bool_}
# TensorFlow's own lines, which come before the program's.
_LOG_LINE = re.compile(r"[IWEF]\d{4} |\d{4}-\d\d-\d\d |WARNING: All log messages")
# What was compiled; removed when the process ends.
_FOLDERS: list[tempfile.TemporaryDirectory] = []


@functools.cache
def c_program() -> Path | None:
    """Path of the program, compiled once a process; None where no C compiler is found.

    Raises:
        RuntimeError: where the compiler does not compile it; the message is the compiler's.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder = tempfile.TemporaryDirectory(prefix="run_saved_model-")
    _FOLDERS.append(folder)
    tensorflow = Path(tf.__file__).parent
    program = Path(folder.name) / "run_saved_model"
    command = [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", SOURCE]
    command += ["-isystem", tensorflow / "include", f"-L{tensorflow}", f"-Wl,-rpath,{tensorflow}"]
    # The program names no symbol of the library with the kernels, which must be linked even so.
    command += ["-Wl,--no-as-needed", "-l:libtensorflow_cc.so.2"]
    command += ["-l:libtensorflow_framework.so.2", "-o", program]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    return program


def ops_library() -> Path:
    """The shared library that holds the ops of SentencePiece."""
    import tensorflow_text

    return Path(tensorflow_text.__file__).parent / "python/ops/_sentencepiece_tokenizer.so"


def run_in_c(
    program: Path,
    path: str | Path,
    signature: str,
    rows: Sequence[Sequence[str | bytes]],
    batch_size: int = 64,
    folder: str | Path = "/",
) -> list[Outputs]:
    """What the C program makes of rows of a signature's inputs.

    Args:
        program: path of the compiled program.
        path: path of the version, the folder of `saved_model.pb`.
        signature: str. A signature's name.
        rows: for each row the texts of the signature's inputs, in the order of their names. None
            holds a line feed, and none but the last of its row a tab.
        batch_size: int. Rows that run together.
        folder: path of the program's working directory.

    Returns:
        For each batch a dict of each output's name and array. No rows are one batch.

    Raises:
        RuntimeError: where the program fails; the message is the program's.
    """
    lines = [b"\t".join(map(_bytes, row)) + b"\n" for row in rows]
    done = subprocess.run(
        [program, ops_library(), Path(path).absolute(), signature, str(batch_size)],
        input=b"".join(lines),
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=folder,
        capture_output=True,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().split("\n")
        raise RuntimeError("\n".join(line for line in lines if not _LOG_LINE.match(line)))
    return _read_batches(done.stdout.split(b"\n")[:-1])


def _read_batches(lines: list[bytes]) -> list[Outputs]:
    batches: list[Outputs] = [{}]
    at = 0
    while at < len(lines):
        name, dtype, *sizes = lines[at].decode().split(" ")
        shape = [int(size) for size in sizes]
        values = lines[at + 1 : at + 1 + int(np.prod(shape))]
        at += 1 + len(values)
        if name in batches[-1]:  # the outputs of the next batch begin
            batches.append({})
        if dtype == "bool":
            values = [value == b"true" for value in values]
        batches[-1][name] = np.array(values, dtype=_DTYPES[dtype]).reshape(shape)
    return batches


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
