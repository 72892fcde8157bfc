"""Attention for some queries at a time: memory that grows linearly with the length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

AttendRows = Callable[..., Any]


def chunked_attention(attend: AttendRows, size: int, query, *others):
    """Attention, for at most `size` queries at a time.

    The same result as for all queries at once. Their weights are never held together, neither on
    the way forward nor on the way back, where they are computed a second time. So the memory is
    O(size * S) and not O(T * S), for up to a quarter more time in training.

    Args:
        attend: `attend(first, rows, *others)` returns the result [B, h, c, d_v] of the c queries
            `rows`, of which the first is at position `first`, an int32 scalar.
        size: int. Most queries at a time.
        query: float tensor [B, h, T, d_k].
        *others: what else the result is differentiated by: keys, values, parameters.

    Returns:
        Float tensor [B, h, T, d_v].

    Example:

    >>> from keras_transformer.layers import scaled_dot_product_attention
    >>> def attend(first, rows, key, value):
    ...     return scaled_dot_product_attention(rows, key, value)[0]
    >>> x = tf.random.normal([1, 1, 5, 4])
    >>> difference = chunked_attention(attend, 2, x, x, x) - attend(0, x, x, x)
    >>> bool(tf.reduce_max(tf.abs(difference)) < 1e-5)
    True

    References:
        - Rabe and Staats, 2021, [Self-attention Does Not Need O(n^2)
          Memory](https://arxiv.org/abs/2112.05682)
    """
    length = tf.shape(query)[2]
    count = tf.maximum((length + size - 1) // size, 1)
    rows = (length + count - 1) // count  # chunks as equal as can be: few rows are filled up

    def divided(x):
        """[B, h, T, d] -> [count, B, h, rows, d], filled up with zeros."""
        x = tf.pad(x, [[0, 0], [0, 0], [0, rows * count - length], [0, 0]])
        shape = tf.shape(x)
        x = tf.reshape(x, [shape[0], shape[1], count, rows, x.shape[-1]])
        return tf.transpose(x, [2, 0, 1, 3, 4])

    def together(chunks, width):
        """[count, B, h, rows, d] -> [B, h, T, d]"""
        x = tf.transpose(chunks, [1, 2, 0, 3, 4])
        shape = tf.shape(x)
        return tf.reshape(x, [shape[0], shape[1], rows * count, width])[:, :, :length]

    @tf.custom_gradient
    def attended(query, *others):
        queries = divided(query)
        _, results = tf.while_loop(
            lambda number, _: number < count,
            lambda number, results: (
                number + 1,
                results.write(number, attend(number * rows, queries[number], *others)),
            ),
            (0, tf.TensorArray(query.dtype, size=count)),
            parallel_iterations=1,  # one chunk in memory at a time
        )
        results = results.stack()

        def backward(upstream):
            upstreams = divided(upstream)

            def add_chunk(number, query_gradients, gradients):
                chunk = queries[number]
                with tf.GradientTape() as tape:
                    tape.watch([chunk, *others])
                    result = attend(number * rows, chunk, *others)
                of_chunk, *addends = tape.gradient(
                    result,
                    [chunk, *others],
                    upstreams[number],
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )
                query_gradients = query_gradients.write(number, of_chunk)
                return (
                    number + 1,
                    query_gradients,
                    [a + b for a, b in zip(gradients, addends, strict=True)],
                )

            _, query_gradients, gradients = tf.while_loop(
                lambda number, *_: number < count,
                add_chunk,
                (0, tf.TensorArray(query.dtype, size=count), [tf.zeros_like(x) for x in others]),
                parallel_iterations=1,
            )
            return together(query_gradients.stack(), query.shape[-1]), *gradients

        return together(results, results.shape[-1]), backward

    return attended(query, *others)
