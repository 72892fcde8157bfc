"""The k largest of many values."""

from __future__ import annotations

import math

import tensorflow as tf


def top_k_of_many(values: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` over a large vocabulary, several times faster, with the same result.

    The k largest values lie in the k blocks with the largest maxima, so only these are sorted.

    Args:
        values: float tensor `(n, K, V)` with K and V static.
        k: int, how many.

    Returns:
        A tuple: the values `(n, K, k)`, largest first, and their places, int32 `(n, K, k)`; of
        equal values the first comes first.

    Example:

    >>> values, places = top_k_of_many(tf.reshape(tf.range(4000.0), [1, 1, 4000]), 2)
    >>> places.numpy().tolist()
    [[[3999, 3998]]]
    """
    _, beam_size, size = values.shape
    block = _block_size(size)
    if block is None or k * block >= size // 2:
        return tf.math.top_k(values, k)
    blocks = tf.reshape(values, [-1, beam_size, size // block, block])
    _, best = tf.math.top_k(tf.reduce_max(blocks, axis=3), k)
    # In ascending order, so that equal values keep the order of their ids.
    best = tf.sort(best, axis=2)
    candidates = tf.reshape(tf.gather(blocks, best, batch_dims=2), [-1, beam_size, k * block])
    values, where = tf.math.top_k(candidates, k)
    ids = tf.gather(best, where // block, batch_dims=2) * block + where % block
    return values, ids


def _block_size(size: int) -> int | None:
    """The divisor of `size` nearest to 128, between 32 and 512."""
    divisors = [block for block in range(32, 513) if size % block == 0]
    return min(divisors, key=lambda block: abs(math.log(block / 128)), default=None)
