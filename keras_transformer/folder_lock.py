"""Holds a folder for one process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds a folder for this process; the system lets go of it when the process ends.

    The folder itself is locked, so that no file for it lies in there.

    Args:
        folder: path of the folder.

    Raises:
        BlockingIOError: where another process holds it. An `OSError`, as what is raised where it
            is no folder.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, folder_lock(Path(folder)):
    ...     print("no other process holds it")
    no other process holds it
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
