"""The layers that table 1 of the paper compares, each with what the paper says of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer.errors import InputError, check_sizes
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.windowed_attention import Window

# Heads keep the width of the paper's base model as d grows: all of their cost then grows with d.
HEAD_WIDTH = 64
# More than any machine measures, and less than what numbers of 32 bits hold.
_LARGEST = 2**20


class Sizes(NamedTuple):
    """Constants of the layers: r, c and k.

    Args:
        window: int. r, the positions that restricted self-attention sees, the own one included.
        chunk: int. c, the queries that chunked self-attention handles at a time.
        kernel: int, odd. k of the convolutions.
    """

    window: int = 128
    chunk: int = 256
    kernel: int = 3

    def check(self) -> Sizes:
        """Returns itself. Raises `InputError` where a layer could not be built."""
        check_sizes(**self._asdict())
        check_bounds(**self._asdict())
        if self.window < 2:
            raise InputError(f"window must be at least 2. Received: {self.window}")
        if self.kernel < 3 or self.kernel % 2 == 0:
            raise InputError(f"kernel must be odd and at least 3. Received: {self.kernel}")
        return self


class LayerKind(NamedTuple):
    """A layer from d to d, and its row of table 1.

    Args:
        build: `build(width, sizes, depth)` returns a function from [B, n, d] to [B, n, d]; `depth`
            is the number of such layers below it.
        time: str. The paper's complexity per layer.
        time_exponents: tuple, the powers of n and d in it.
        memory_exponent: int, the power of n in the memory. Not in the paper.
        operations: `operations(n, d, sizes)`, multiplications of the whole layer, its projections
            included, which the paper's complexity leaves out.
        sequential: str. The paper's sequential operations.
        path: str. The paper's maximum path length.
        path_length: `path_length(n, sizes)`, what it is exactly as we stack the layers.
        steps: `steps(n)`, how much of the path one layer is.
    """

    build: Callable[[int, Sizes, int], Callable[[Any], Any]]
    time: str
    time_exponents: tuple[int, int]
    memory_exponent: int
    operations: Callable[[int, int, Sizes], int]
    sequential: str
    path: str
    path_length: Callable[[int, Sizes], int]
    steps: Callable[[int], int] = lambda n: 1


def _attention(**options: int | None) -> Callable[[int], Callable[[Any], Any]]:
    def build(width: int) -> Callable[[Any], Any]:
        num_heads = max(1, width // HEAD_WIDTH)
        layer = MultiHeadAttention(num_heads, width // num_heads, **options)
        return lambda x: layer(x, x)

    return build


def _dilated_convolution(width: int, sizes: Sizes, depth: int) -> Callable[[Any], Any]:
    # Padded before the first position only, as in a decoder: centered ones of these dilations
    # reach some positions only by a detour beyond the first or the last.
    return keras.layers.Conv1D(
        width, sizes.kernel, padding="causal", dilation_rate=sizes.kernel**depth
    )


def _windowed_operations(n: int, d: int, sizes: Sizes) -> int:
    # A block of queries meets itself and a neighbour on each side that the window reaches.
    window = Window.of(sizes.window, causal=False)
    blocks = 1 + (window.back > 0) + (window.ahead > 0)
    keys = min(blocks * max(window.back, 16), n)
    return 4 * n * d**2 + 2 * n * keys * d


_SELF_ATTENTION = LayerKind(
    build=lambda width, sizes, depth: _attention()(width),
    time="O(n^2 d)",
    time_exponents=(2, 1),
    memory_exponent=2,
    operations=lambda n, d, sizes: 4 * n * d**2 + 2 * n**2 * d,
    sequential="O(1)",
    path="O(1)",
    path_length=lambda n, sizes: 1,
)

LAYER_KINDS = {
    "self-attention": _SELF_ATTENTION,
    "chunked-self-attention": _SELF_ATTENTION._replace(
        build=lambda width, sizes, depth: _attention(chunk=sizes.chunk)(width),
        memory_exponent=1,
        sequential="O(n/c)",
    ),
    "restricted-self-attention": LayerKind(
        build=lambda width, sizes, depth: _attention(window=sizes.window)(width),
        time="O(r n d)",
        time_exponents=(1, 1),
        memory_exponent=1,
        operations=_windowed_operations,
        sequential="O(1)",
        path="O(n/r)",
        # From the first position to the last, which looks back.
        path_length=lambda n, sizes: math.ceil(
            (n - 1) / Window.of(sizes.window, causal=False).back
        ),
    ),
    "recurrent": LayerKind(
        build=lambda width, sizes, depth: keras.layers.LSTM(width, return_sequences=True),
        time="O(n d^2)",
        time_exponents=(1, 2),
        memory_exponent=1,
        operations=lambda n, d, sizes: 8 * n * d**2,  # 4 gates, from the input and the state
        sequential="O(n)",
        path="O(n)",
        path_length=lambda n, sizes: n,
        steps=lambda n: n,
    ),
    "convolution": LayerKind(
        build=lambda width, sizes, depth: keras.layers.Conv1D(width, sizes.kernel, padding="same"),
        time="O(k n d^2)",
        time_exponents=(1, 2),
        memory_exponent=1,
        operations=lambda n, d, sizes: sizes.kernel * n * d**2,
        sequential="O(1)",
        path="O(n/k)",
        path_length=lambda n, sizes: math.ceil((n - 1) / (sizes.kernel // 2)),
    ),
    "separable-convolution": LayerKind(
        build=lambda width, sizes, depth: keras.layers.SeparableConv1D(
            width, sizes.kernel, padding="same"
        ),
        time="O(k n d + n d^2)",
        time_exponents=(1, 2),
        memory_exponent=1,
        operations=lambda n, d, sizes: sizes.kernel * n * d + n * d**2,
        sequential="O(1)",
        path="O(n/k)",
        path_length=lambda n, sizes: math.ceil((n - 1) / (sizes.kernel // 2)),
    ),
}

# The convolution of the paper's table: its path is short because each layer spreads the kernel
# k times as wide as the one below. One layer costs the same, so only its path is another.
DILATED_CONVOLUTION = LAYER_KINDS["convolution"]._replace(
    build=_dilated_convolution,
    path="O(log_k(n))",
    # L layers see k^L positions.
    path_length=lambda n, sizes: next(L for L in range(1, n + 1) if sizes.kernel**L >= n),
)


def check_bounds(**sizes: int | None) -> None:
    """Refuses a size beyond what any machine measures.

    Example:

    >>> check_bounds(lengths=10**12)
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: lengths must be at most 1048576. Received: 1000000000000
    """
    for name, size in sizes.items():
        if size is not None and size > _LARGEST:
            raise InputError(f"{name} must be at most {_LARGEST}. Received: {size}")


def check_layers(names: Sequence[str] | None) -> list[str]:
    """The names of layers to compare; all for `None`.

    Args:
        names: sequence of names in `LAYER_KINDS`, or None.

    Returns:
        List of names, each once.

    Raises:
        InputError: for a name that there is not, or none at all.

    Example:

    >>> check_layers(["recurrent", "self-attention"])
    ['recurrent', 'self-attention']
    >>> check_layers(["gru"])
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: layers must be of self-attention, chunked-self-attention,
    restricted-self-attention, recurrent, convolution, separable-convolution. Received: 'gru'
    """
    if names is None:
        return list(LAYER_KINDS)
    for name in names:
        if name not in LAYER_KINDS:
            raise InputError(f"layers must be of {', '.join(LAYER_KINDS)}. Received: {name!r}")
    if not names:
        raise InputError("layers must name at least one layer. Received: none")
    return list(dict.fromkeys(names))


def compiled_layer(
    name: str, width: int, sizes: Sizes | None = None, backward: bool = False
) -> Callable[[Any], Any]:
    """A layer as a compiled function for any length.

    Args:
        name: str. A layer of `LAYER_KINDS`.
        width: int. d.
        sizes: `Sizes` or None for the defaults.
        backward: bool. Whether it goes backward too, to the gradients of the input and all weights.

    Returns:
        A `tf.function` of a float32 tensor [1, n, d]: its result [1, n, d], or with `backward` the
        list of gradients.

    Example:

    >>> layer = compiled_layer("convolution", 4)
    >>> tuple(layer(tf.ones([1, 9, 4])).shape)
    (1, 9, 4)
    """
    layer = LAYER_KINDS[name].build(width, sizes or Sizes(), 0)

    @tf.function(input_signature=[tf.TensorSpec([1, None, width], tf.float32)])
    def call(x):
        if not backward:
            return layer(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x)))
        return tape.gradient(loss, [x, *tape.watched_variables()])

    call.get_concrete_function()  # Traced here, so that the first call is like all others.
    return call
