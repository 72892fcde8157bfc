"""A disk that is full, for tests that need no rights for it."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """No file of this process may grow above `size` bytes: a write beyond fails as on a full disk.

    The error is EFBIG where a full disk gives ENOSPC; both are an `OSError` at the same calls.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
