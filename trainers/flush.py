"""Has the system write to disk what a crash of the machine must not undo."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Writes a file or folder to disk before what comes next; a folder has the names in it.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flush(Path(folder))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
