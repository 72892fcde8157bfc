"""Reading and writing the files of a saved tokenizer: never half a file, never an unnamed one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from keras_transformer.errors import InputError

FORMAT = 1


def read_file(path: Path) -> bytes:
    """Returns the content of `path`. Raises `InputError` if there is none to be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: must be a readable file of a saved tokenizer. Received: {error.strerror}"
        ) from error


def read_unchanged(path: Path, fingerprint: str) -> bytes:
    """Returns the content of `path`. Raises `InputError` if its SHA-256 is another one."""
    content = read_file(path)
    received = hashlib.sha256(content).hexdigest()
    if received != fingerprint:
        raise InputError(
            f"{path}: changed since it was saved; tokenizer.json beside it "
            f"expects SHA-256 {fingerprint}. Received: {received}"
        )
    return content


def write_file(path: Path, content: bytes) -> None:
    """Writes `content` to `path`, aside and then renamed."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.temporary")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict | list) -> None:
    """Writes `value` to `path` as JSON, aside and then renamed."""
    write_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
