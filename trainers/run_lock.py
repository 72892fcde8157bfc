"""Keeps two processes from training in one run directory."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.errors import InputError


@contextlib.contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Holds the run directory for this process; the system lets go of it when the process ends.

    Args:
        directory: path of the run.

    Raises:
        InputError: where another process holds it, or nothing can be written there.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run, run_lock(Path(run)):
    ...     sorted(path.name for path in Path(run).iterdir())
    ['.lock']
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((directory / ".lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"A run directory must not be in use. Received: {directory}, in which another "
                "process trains"
            ) from None
        except OSError as error:
            raise InputError(f"A run directory must be writable. Received: {error}") from error
        yield
