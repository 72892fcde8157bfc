"""The tensors of a checkpoint's weight files, read a few rows at a time. Nothing is unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.marian.settings import read_json_object

# By their names, as bfloat16 is no type of NumPy's own.
_FLOATS = ("float16", "bfloat16", "float32", "float64")
# What NumPy raises where a file is no archive of arrays.
_NO_ARCHIVE = (
    OSError, EOFError, ValueError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class TensorFile:
    """Names, shapes and float32 values of the tensors of one checkpoint.

    Args:
        path: the file that messages name.
        shapes: dict from name to shape.
        read: callable of a name and a slice of rows that gives an array.

    Attributes:
        shapes: dict from name to shape.
        read_raw: the callable, whose arrays are of the file's own types.
    """

    def __init__(
        self,
        path: Path,
        shapes: dict[str, tuple[int, ...]],
        read: Callable[[str, slice], np.ndarray],
    ) -> None:
        self.path = path
        self.shapes = shapes
        self.read_raw = read

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> np.ndarray:
        """Rows `start` to `stop` of a tensor, or all of it, as float32."""
        array = self.read_raw(name, slice(start, stop))
        if array.dtype.name not in _FLOATS:
            raise InputError(
                f"{self.path.name}: {name} must be of type {', '.join(_FLOATS)}. "
                f"Received: {array.dtype.name}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            result = array.astype(np.float32, copy=False)
            total = result.sum(dtype=np.float64)  # too wide to overflow where all is finite
        if not np.isfinite(total):
            raise InputError(
                f"{self.path.name}: {name} must be of finite float32 numbers. "
                "Received: infinity or NaN"
            )
        return result


def open_safetensors(paths: list[Path]) -> TensorFile:
    """Opens one safetensors file, or all the shards of a checkpoint."""
    from safetensors import SafetensorError, safe_open

    homes: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        try:
            with safe_open(path, "numpy") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    homes[name] = path
                    shapes[name] = tuple(file.get_slice(name).get_shape())
        except SafetensorError as error:
            raise InputError(
                f"{path.name} must be a safetensors file: {error}. Received: {path}"
            ) from None

    def read(name: str, rows: slice) -> np.ndarray:
        # The file is mapped for one read only: pages of a mapping count as memory until it ends.
        with safe_open(homes[name], "numpy") as file:
            return file.get_slice(name)[rows]

    return TensorFile(paths[0], shapes, read)


def open_sharded_safetensors(index: Path) -> TensorFile:
    """Opens the shards that a `model.safetensors.index.json` lists."""
    homes = read_json_object(index).get("weight_map")
    if not isinstance(homes, dict) or not homes:
        raise InputError(f"{index.name} must have a weight_map of tensors. Received: {homes!r}")
    paths = [index.parent / name for name in sorted(set(map(str, homes.values())))]
    for path in paths:
        if path.parent != index.parent or not path.is_file():
            raise InputError(
                f"{index.name} must list files that lie beside it. Received: {path.name}, which "
                f"is not in {index.parent}"
            )
    return open_safetensors(paths)


def open_hdf5(path: Path, rename: Callable[[str], str | None]) -> TensorFile:
    """Opens a Keras weight file.

    Args:
        path: the file.
        rename: callable from a dataset's path to the name of its tensor.
    """
    import h5py

    datasets: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            tensor = rename(name)
            if tensor in datasets:
                raise InputError(
                    f"{path.name} must hold {tensor} once. Received: {datasets[tensor]} and {name}"
                )
            datasets[tensor], shapes[tensor] = name, tuple(item.shape)

    try:
        with h5py.File(path) as file:
            file.visititems(visit)
    except OSError as error:
        raise InputError(f"{path.name} must be an HDF5 file: {error}. Received: {path}") from None

    def read(name: str, rows: slice) -> np.ndarray:
        with h5py.File(path) as file:
            return file[datasets[name]][rows]

    return TensorFile(path, shapes, read)


def open_torch(path: Path) -> TensorFile:
    """Opens a PyTorch file, where PyTorch is installed, without running what is pickled in it."""
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path.name} is in a format that only PyTorch reads. Install torch, or save the "
            "checkpoint as model.safetensors with Hugging Face transformers "
            f"(save_pretrained). Received: {path}"
        ) from None
    try:
        # Files of PyTorch before 1.6 are no zip archives, and cannot be mapped.
        is_zip = zipfile.is_zipfile(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    except Exception as error:  # whatever an unpickler meets
        raise InputError(
            f"{path.name} must be a dict of tensors and nothing else. "
            f"Received: {path} ({type(error).__name__})"
        ) from error

    def read(name: str, rows: slice) -> np.ndarray:
        tensor = tensors[name][rows] if tensors[name].dim() else tensors[name]
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()

    return TensorFile(path, shapes, read)


def open_npz(path: Path) -> TensorFile:
    """Opens a NumPy archive; pickled objects in it are refused."""
    try:
        archive = np.load(path, allow_pickle=False)
        shapes = {}
        for member in archive.zip.namelist():
            with archive.zip.open(member) as file:
                version = np.lib.format.read_magic(file)
                header = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version](file)
            if header[2].hasobject:
                raise ValueError(f"{member} is a pickled object")
            shapes[member.removesuffix(".npy")] = header[0]
    except _NO_ARCHIVE as error:
        raise InputError(f"{path.name} must be an npz archive: {error}. Received: {path}") from None
    # A member is decompressed as a whole, so the one being read row by row is kept.
    last: dict[str, np.ndarray] = {}

    def read(name: str, rows: slice) -> np.ndarray:
        if name not in last:
            last.clear()
            try:
                last[name] = archive[name]
            except _NO_ARCHIVE as error:
                raise InputError(
                    f"{path.name}: {name} must be whole: {error}. Received: {path}"
                ) from None
        return last[name][rows]

    return TensorFile(path, shapes, read)
