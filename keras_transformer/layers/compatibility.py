"""How well a query fits a key: scaled dot product, dot product, or additive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import ops

Compatibility = Callable[[Any, Any], Any]


def dot_product(query, key, scale: float = 1.0):
    """Scores Q K^T * scale, from section 3.2.1 of the paper.

    Args:
        query: float tensor [..., T, d_k].
        key: float tensor [..., S, d_k].
        scale: float. The paper's is d_k^-0.5.

    Returns:
        Float tensor [..., T, S].

    Example:

    >>> dot_product(tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0]]), scale=0.5).numpy()
    array([[5.5]], dtype=float32)
    """
    # The queries are scaled and not the scores, which are the larger tensor.
    # tf.matmul reads the keys transposed where they lie; ops.matmul would have them copied.
    return tf.matmul(query * scale, key, transpose_b=True)


def scaled_dot_product(query, key):
    """Scores Q K^T / sqrt(d_k), equation 1 of the paper.

    Args:
        query: float tensor [..., T, d_k].
        key: float tensor [..., S, d_k].

    Returns:
        Float tensor [..., T, S].

    Example:

    >>> scaled_dot_product(tf.ones([1, 4]), tf.ones([1, 4])).numpy()
    array([[2.]], dtype=float32)
    """
    return dot_product(query, key, query.shape[-1] ** -0.5)


def additive(query, key, vectors):
    """Scores v^T tanh(q + k), a network with one hidden layer, from section 3.2.1 of the paper.

    The projections of queries and keys are the network's first layer. It holds T * S * d_k numbers
    where a dot product holds T * S.

    Args:
        query: float tensor [B, h, ..., T, d_k].
        key: float tensor [B, h, ..., S, d_k].
        vectors: float tensor [h, d_k], one v a head.

    Returns:
        Float tensor [B, h, ..., T, S].

    Example:

    >>> scores = additive(tf.zeros([1, 1, 2, 3]), tf.ones([1, 1, 5, 3]), tf.ones([1, 3]))
    >>> tuple(scores.shape), round(float(scores[0, 0, 0, 0]), 2)
    ((1, 1, 2, 5), 2.28)

    References:
        - Bahdanau et al., 2014, [Neural Machine Translation by Jointly Learning to Align and
          Translate](https://arxiv.org/abs/1409.0473)
    """
    hidden = tf.tanh(query[..., :, None, :] + key[..., None, :, :])  # [B, h, ..., T, S, d_k]
    heads, width = vectors.shape
    # [h, d_k] -> [h, 1, ..., 1, d_k], the dimensions of `hidden` but for the batch
    vectors = ops.reshape(vectors, (heads, *[1] * (len(hidden.shape) - 3), width))
    return ops.sum(hidden * ops.cast(vectors, hidden.dtype), axis=-1)
