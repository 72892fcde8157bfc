"""Folders of numbered versions, which servers watch: whole versions only, none overwritten."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.folder_lock import folder_lock

# TensorFlow Serving's versions are int64.
_HIGHEST_VERSION = 2**63 - 1
# What an export that was killed leaves; another name, however like it, is somebody's own.
_LEFT_OVER = re.compile(r"(writing|removing)-[0-9]+-[0-9]+")


class Publication:
    """A version that is being written.

    Attributes:
        partial: path of the folder to write into, whose name no server takes for a version.
        path: path of the version, once it is published.
    """

    def __init__(self, base: Path, version: int | None) -> None:
        self._base = base
        self._version = version
        name = next_version(base) if version is None else version
        self.partial = base / f"writing-{name}-{os.getpid()}"
        self.path = base / str(name)

    def rename(self) -> None:
        """Makes the version visible; the next free number, where none was asked for."""
        if self._version is None:
            self.path = self._base / str(next_version(self._base))
        _refuse_existing(self.path)
        self.partial.rename(self.path)


@contextlib.contextmanager
def publish(
    base: str | Path, version: int | None = None, keep: int | None = None
) -> Iterator[Publication]:
    """Publishes what is written into `partial` when the block ends, and nothing where it raises.

    Args:
        base: path of the folder of versions.
        version: int or None. `None` means one more than the highest in `base`, or 1.
        keep: int or None. Of the versions in `base` this many stay, the highest; `None` keeps
            all. Folders that are no exports are left alone.

    Raises:
        InputError: where the version is no number of a version, exists, or is not among those
            that stay; or where `base` cannot be written to.
    """
    base = Path(base)
    check_publication(base, version, keep)
    publication = Publication(base, version)
    with contextlib.ExitStack() as stack:
        try:
            base.mkdir(parents=True, exist_ok=True)
            _remove_left_over(base)
            publication.partial.mkdir()
            stack.callback(shutil.rmtree, publication.partial, ignore_errors=True)
            stack.enter_context(folder_lock(publication.partial))
            yield publication
            publication.rename()
        except OSError as error:
            raise InputError(f"An export must fit into {base}. Received: {error}") from error
    if keep is not None:
        _prune(base, publication.path, keep)


def check_publication(base: Path, version: int | None, keep: int | None) -> None:
    """Refuses what `publish` would refuse, before any work. Raises `InputError`."""
    for name, value in (("version", version), ("keep", keep)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1. Received: {value}")
    path = Publication(base, version).path
    if int(path.name) > _HIGHEST_VERSION:
        raise InputError(f"version must be at most {_HIGHEST_VERSION}. Received: {path.name}")
    _refuse_existing(path)
    higher = [each for each in versions_in(base) if int(each.name) > int(path.name)]
    if keep is not None and len(higher) >= keep:
        raise InputError(
            f"version must be among the {keep} highest in {base}, which are kept. "
            f"Received: {path.name}, below {higher[-1].name}"
        )
    existing = next(folder for folder in (base, *base.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(
            f"An export must go to a folder that can be written to. Received: {existing}"
        )


def version_of(name: str) -> int | None:
    """The version that a folder's name is, as TF Serving reads it, or None."""
    version = int(name) if name.isascii() and name.isdecimal() else None
    return None if version is None or version > _HIGHEST_VERSION else version


def versions_in(base: str | Path) -> list[Path]:
    """The versions in a folder that hold a `saved_model.pb`, the highest first."""
    base = Path(base)
    found = [
        path
        for path in (base.iterdir() if base.is_dir() else ())
        if version_of(path.name) is not None and (path / "saved_model.pb").exists()
    ]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def next_version(base: str | Path) -> int:
    """One more than the highest version in a folder of versions, or 1."""
    versions = [version_of(path.name) for path in Path(base).glob("*")]
    return max((version for version in versions if version is not None), default=0) + 1


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise InputError(
            f"version must be new in {path.parent}; exports are not overwritten. "
            f"Received: {path.name}"
        )


def _remove_left_over(base: Path) -> None:
    """Removes what killed exports left in `base`: folders that no process holds."""
    for path in base.iterdir():
        if _LEFT_OVER.fullmatch(path.name):
            with contextlib.suppress(OSError), folder_lock(path):
                shutil.rmtree(path)


def _prune(base: Path, new: Path, keep: int) -> None:
    # Another export may have published a higher one in the meantime: none above the new one goes.
    below = [path for path in versions_in(base)[keep:] if int(path.name) < int(new.name)]
    for path in below:
        # Renamed first: a server never finds half a version.
        removed = path.with_name(f"removing-{path.name}-{os.getpid()}")
        try:
            path.rename(removed)
        except FileNotFoundError:  # another export has removed it
            continue
        shutil.rmtree(removed, ignore_errors=True)
