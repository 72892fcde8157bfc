"""Attention: values weighted by the softmax of scores."""

from __future__ import annotations

import tensorflow as tf
from keras import ops

from keras_transformer.layers.compatibility import scaled_dot_product

# Taken from the scores of hidden keys. In float32 what is left has an exponential that is exactly 0
# beside any real score.
HIDDEN = 1e30


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, from section 3.2.1 of the paper.

    The softmax is computed in float32. Hidden keys get weight exactly 0; a query that may attend
    to no key gets zeros.

    Args:
        query: float tensor [..., T, d_k].
        key: float tensor [..., S, d_k].
        value: float tensor [..., S, d_v].
        mask: boolean tensor that broadcasts to [..., T, S], True = may attend.
        dropout: callable on the weights, or None.

    Returns:
        A tuple: the result [..., T, d_v], and the weights [..., T, S] before dropout.

    Example:

    >>> import numpy as np
    >>> x = np.ones((1, 3, 4), "float32")
    >>> result, weights = scaled_dot_product_attention(x, x, x)
    >>> np.round(weights[0, 0], 2).tolist()
    [0.33000001311302185, 0.33000001311302185, 0.33000001311302185]
    """
    return weighted_values(scaled_dot_product(query, key), value, mask, dropout)


def weighted_values(scores, value, mask=None, dropout=None):
    """softmax(scores) V: attention by scores of any compatibility function.

    Args:
        scores: float tensor [..., T, S].
        value: float tensor [..., S, d_v].
        mask: boolean tensor that broadcasts to [..., T, S], True = may attend.
        dropout: callable on the weights, or None.

    Returns:
        As `scaled_dot_product_attention`.

    Example:

    >>> result, _ = weighted_values(tf.zeros([1, 2]), tf.constant([[1.0], [3.0]]))
    >>> result.numpy()
    array([[2.]], dtype=float32)
    """
    scores = ops.cast(scores, "float32")
    if mask is not None:
        # A difference: TensorFlow would fuse a sum into the product before it, and the fused one
        # takes up to 200 times as long on a CPU where one mask serves the whole batch.
        scores = scores - ops.where(mask, 0.0, HIDDEN)
    # Not ops.softmax, which warns where there is a single key.
    weights = tf.nn.softmax(scores, axis=-1)
    if mask is not None:
        # Where all keys are hidden the softmax is uniform over them, and must be zero instead.
        has_key = ops.cast(ops.any(mask, axis=-1, keepdims=True), weights.dtype)
    dropped = weights if dropout is None else dropout(weights)
    result = ops.matmul(ops.cast(dropped, value.dtype), value)
    if mask is not None:
        weights = weights * has_key
        result = result * ops.cast(has_key, result.dtype)
    return result, weights
