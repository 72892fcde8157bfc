"""Keeps two processes from training in one run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.folder_lock import folder_lock


@contextlib.contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Holds the run directory for this process; the system lets go of it when the process ends.

    Args:
        directory: path of the run.

    Raises:
        InputError: where another process holds it, or it is no folder.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run, run_lock(Path(run)):
    ...     print("no other process trains here")
    no other process trains here
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(directory))
        except BlockingIOError:
            raise InputError(
                f"A run directory must not be in use. Received: {directory}, in which another "
                "process trains"
            ) from None
        except OSError as error:
            raise InputError(f"A run directory must be a folder. Received: {error}") from error
        yield
