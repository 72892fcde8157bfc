"""How far a signal travels: maximum path length by gradients, sequential operations by graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.diagnosis.complexity_layers import LAYER_KINDS, LayerKind, Sizes
from keras_transformer.errors import InputError

# What waits for another of its kind; the operations between them cost little.
_PRODUCTS = {
    "MatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Einsum",
    "Conv2D",
    "DepthwiseConv2dNative",
}


def layers_to_cross(
    build: Callable[[int, Sizes, int], Callable[[Any], Any]],
    length: int,
    sizes: Sizes,
    width: int = 8,
) -> int:
    """How many stacked layers carry a signal from the first position to the last.

    Layers are stacked until the gradient of the last output position with respect to the first
    input position is not zero. "Maximum path length" in table 1 of the paper.

    Args:
        build: as `LayerKind.build`.
        length: int. n.
        sizes: `Sizes`.
        width: int. d.

    Returns:
        Int, the layers.

    Raises:
        InputError: where `length` layers do not do it.

    Example:

    >>> layers_to_cross(LAYER_KINDS["convolution"].build, 9, Sizes(kernel=5))
    4
    """
    x = keras.random.normal([1, length, width], seed=1)
    y = x
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        for depth in range(length):
            y = build(width, sizes, depth)(y)
            last = y[:, -1]
            with tape.stop_recording():
                # The upstream is large because a gradient along one path through many layers is
                # small, and must not become 0 by underflow.
                upstream = tf.fill(tf.shape(last), 1e10)
                reached = tape.gradient(last, x, upstream)
                if bool(tf.reduce_any(reached[:, 0] != 0.0)):
                    return depth + 1
    raise InputError(f"build must make layers that see other positions. Received: {build!r}")


def maximum_path_length(kind: LayerKind, length: int, sizes: Sizes) -> int:
    """The layers between the first position and the last, times the steps within each."""
    return layers_to_cross(kind.build, length, sizes) * kind.steps(length)


def sequential_operations(name: str, length: int, sizes: Sizes, width: int = 8) -> int | None:
    """The longest chain of matrix products that wait for each other in a layer's graph.

    Args:
        name: str. A layer of `LAYER_KINDS`.
        length: int. n.
        sizes: `Sizes`.
        width: int. d.

    Returns:
        Int, or None where the graph holds a loop, whose rounds it does not tell.

    Example:

    >>> sequential_operations("recurrent", 12, Sizes())
    12
    """
    if name == "recurrent":
        # Its loop is written out, which the layer does not do where lengths vary.
        layer = keras.layers.LSTM(width, return_sequences=True, unroll=True)
    else:
        layer = LAYER_KINDS[name].build(width, sizes, 0)
    function = tf.function(lambda x: layer(x))
    graph = function.get_concrete_function(tf.TensorSpec([1, length, width])).graph
    depths: dict[str, int] = {}
    for operation in graph.get_operations():  # in the order of their making: inputs first
        if operation.type in ("While", "StatelessWhile"):
            return None
        before = max((depths[x.op.name] for x in operation.inputs), default=0)
        depths[operation.name] = before + (operation.type in _PRODUCTS)
    return max(depths.values())
