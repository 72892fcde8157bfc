"""Where each variable of our model comes from in a checkpoint, read lazily."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.marian.tensor_files import TensorFile
from keras_transformer.marian.vocabulary import NO_ROW

# The output bias of a word that no softmax shall give a share: small enough that exp of it beside
# any real logit is 0, and finite, so that label smoothing stays finite too.
NO_SHARE = -100.0

_ROWS_AT_A_TIME = 2048


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """One variable of ours: a tensor of the checkpoint, transposed or with its rows re-ordered.

    Attributes:
        name: str or None. The tensor; None for zeros.
        shape: tuple of int. Its shape in the file, where a vector may have leading ones.
        transpose: bool. Whether the two axes change places.
        rows: int array or None. The tensor's row of each of our rows, `NO_ROW` for zeros.
        fills: mapping from our row to a number that takes its place.
    """

    name: str | None
    shape: tuple[int, ...]
    transpose: bool = False
    rows: np.ndarray | None = None
    fills: Mapping[int, float] = dataclasses.field(default_factory=dict)

    def blocks(self, file: TensorFile) -> Iterator[tuple[int, np.ndarray]]:
        """Pairs of our first row and a float32 array of some rows, which cover the variable."""
        is_table = len(self.shape) == 2 and self.rows is not None and not self.transpose
        if not is_table:
            yield 0, self._whole(file)
            return
        for start, stop, row in _runs(self.rows):
            if self.name is None or row == NO_ROW:
                yield start, np.zeros((stop - start, self.shape[1]), np.float32)
            else:
                yield start, file.read(self.name, row, row + stop - start)

    def _whole(self, file: TensorFile) -> np.ndarray:
        """The variable in one piece: transposed, then re-ordered, then filled."""
        if self.name is None:
            result = np.zeros(self.shape, np.float32)
        else:
            result = file.read(self.name).reshape(self.shape)
        result = result.T if self.transpose else result
        if self.rows is not None:
            is_new = (self.rows == NO_ROW).reshape(-1, *[1] * (result.ndim - 1))
            result = np.where(is_new, np.float32(0), result[self.rows])
        for row, value in self.fills.items():
            result[row] = value
        return result


class MarianWeights(Mapping[str, np.ndarray]):
    """The weights of a checkpoint by the paths of our model's variables, read when asked for.

    Args:
        file: `TensorFile` of the checkpoint.
        parts: dict from the path of a variable to its `Part`.
        known: names of tensors that need no variable.

    Raises:
        InputError: if a tensor is missing, superfluous or of another shape, naming it.
    """

    def __init__(self, file: TensorFile, parts: dict[str, Part], known: Iterable[str] = ()) -> None:
        self._file = file
        self._parts = parts
        open_names = set(file.shapes) - set(known)
        for part in parts.values():
            if part.name is not None:
                check_shape(file, part.name, part.shape)
                open_names.discard(part.name)
        for name in file.shapes:
            if name in open_names:
                raise InputError(
                    f"{file.path.name}: {name} is a tensor that this architecture does not have. "
                    f"Received: shape {list(file.shapes[name])}"
                )

    def blocks(self, path: str) -> Iterator[tuple[int, np.ndarray]]:
        """Pairs of a first row and a float32 array of some rows, which cover the variable."""
        return self._parts[path].blocks(self._file)

    def __getitem__(self, path: str) -> np.ndarray:
        arrays = [array for _, array in self.blocks(path)]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def check_shape(file: TensorFile, name: str, shape: tuple[int, ...]) -> None:
    """Refuses a tensor that is missing or of another shape."""
    if name not in file.shapes:
        raise InputError(
            f"{file.path.name} must hold {name} of shape {list(shape)}. Received: no such tensor"
        )
    received = file.shapes[name]
    while len(received) > len(shape) and received[0] == 1:
        received = received[1:]
    if received != shape:
        raise InputError(
            f"{file.path.name}: {name} must have shape {list(shape)}. "
            f"Received: {list(file.shapes[name])}"
        )


def check_equal(file: TensorFile, name: str, other: str) -> None:
    """Refuses two tensors that ought to be copies of each other and are not."""
    check_shape(file, other, file.shapes[name])
    rows = file.shapes[name][0]
    for start in range(0, rows, _ROWS_AT_A_TIME):
        stop = min(start + _ROWS_AT_A_TIME, rows)
        if not np.array_equal(file.read(name, start, stop), file.read(other, start, stop)):
            raise InputError(
                f"{file.path.name}: {other} must equal {name}, with which the settings tie it. "
                "Received: other values"
            )


@dataclasses.dataclass(frozen=True)
class SubLayer:
    """A projection or a LayerNorm of one layer of the model.

    Attributes:
        side: `"encoder"` or `"decoder"`.
        layer: int, from 0.
        role: str, its path inside the layer, as `"self_attention/query"`.
        shape: tuple of the two widths of a projection, or of the width of a LayerNorm.
    """

    side: str
    layer: int
    role: str
    shape: tuple[int, ...]

    @property
    def path(self) -> str:
        """The start of the paths of its variables."""
        return f"{self.side}/layer_{self.layer}/{self.role}"


def sub_layers(config: TransformerConfig) -> Iterator[SubLayer]:
    """All projections and LayerNorms of a model's layers."""
    width, inner = config.d_model, config.d_ff
    for side, layers in (
        ("encoder", config.num_encoder_layers),
        ("decoder", config.num_decoder_layers),
    ):
        attentions = ["self_attention", *(["cross_attention"] if side == "decoder" else [])]
        for layer in range(layers):
            for attention in attentions:
                for role in ("query", "key", "value", "output"):
                    yield SubLayer(side, layer, f"{attention}/{role}", (width, width))
            yield SubLayer(side, layer, "feed_forward/inner", (width, inner))
            yield SubLayer(side, layer, "feed_forward/outer", (inner, width))
            for name in (*attentions, "feed_forward"):
                yield SubLayer(side, layer, f"{name}_residual/normalization", (width,))


def word_parts(tying: str, source: Part, target: Part, output: Part, bias: Part) -> dict[str, Part]:
    """The embeddings, the output projection and its bias under the paths that `tying` gives them.

    Args:
        tying: the config's.
        source: `Part` of the source embedding, left out where it is the target's.
        target: of the target embedding.
        output: of the output projection [words, d_model], left out where it is the target's.
        bias: of the output bias.
    """
    if tying == "three-way":
        parts = {"target_embedding/embeddings": target}
    else:
        parts = {"source_embedding/embeddings": source, "target_embedding/embeddings": target}
    if tying != "none":
        return {**parts, "target_embedding/output_bias": bias}
    return {
        **parts,
        "output_projection/embeddings": output,
        "output_projection/output_bias": bias,
    }


def _runs(rows: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Cuts `rows` into runs of consecutive numbers: first index, index after it, first number."""
    ends = np.flatnonzero((np.diff(rows) != 1) | (rows[:-1] == NO_ROW)) + 1
    starts = [0, *ends.tolist()]
    for first, last in zip(starts, [*starts[1:], len(rows)], strict=True):
        for start in range(first, last, _ROWS_AT_A_TIME):
            stop = min(start + _ROWS_AT_A_TIME, last)
            yield start, stop, int(rows[start])
