"""Runs the command line in a new process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Lines end with LF or CRLF; all else is white space within a line. The last line has no end.
ODD_LINES = (
    "one two\n\nsix\r\n   \nfive\rseven\nthree\u2028four\ntwo\u0085one\x0b\x0csix\x1c\n\r\n\u00a0\n"
    "eight\ttwo\nlast six"
).encode()
READ_AS = ["one two", "", "six", "", "five seven", "three four", "two one six", "", "", "eight two"]
READ_AS += ["last six"]


def environment(**changes) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def in_new_process(*words, input=b"", **changes) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "keras_transformer", *map(str, words)],
        input=input,
        env=environment(**changes),
        cwd="/",
        capture_output=True,
    )


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path
