"""Restricted self-attention: each position attends to a window of its neighbours."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Window(NamedTuple):
    """Which neighbours a position attends to: up to `back` before it and `ahead` after it.

    Example:

    >>> Window.of(5, causal=False), Window.of(5, causal=True)
    (Window(back=2, ahead=2), Window(back=4, ahead=0))
    >>> Window.of(4, causal=False)
    Window(back=2, ahead=1)
    """

    back: int
    ahead: int

    @classmethod
    def of(cls, size: int, causal: bool) -> Window:
        """A neighborhood of size r as in section 4 of the paper.

        Args:
            size: int. r, positions of the window, the position itself included.
            causal: bool. Whether it ends at the position, in place of being centered around it.
        """
        return cls(size - 1, 0) if causal else cls(size // 2, (size - 1) // 2)


# Queries of a block at least: smaller products of matrices are not worth their calls.
_LEAST_BLOCK = 16


def windowed_attention(attend, window: Window, query, key, value, key_mask=None):
    """Self-attention within a window, at a cost of O(r n d): section 4 of the paper.

    Queries are divided into blocks as long as the window reaches. A block attends to itself and to
    its neighbour blocks, so that no score is computed further away than twice the window.

    Args:
        attend: `attend(query, key, value, mask)` returns the result of full attention over the
            last two axes.
        window: `Window`.
        query: float tensor [B, h, T, d_k].
        key: float tensor [B, h, T, d_k].
        value: float tensor [B, h, T, d_v].
        key_mask: boolean tensor [B, 1, 1, T], True = may be attended to, or None.

    Returns:
        Float tensor [B, h, T, d_v].

    Example:

    >>> from keras_transformer.layers import scaled_dot_product_attention
    >>> x = tf.random.normal([1, 2, 40, 4])
    >>> result = windowed_attention(
    ...     lambda *arguments: scaled_dot_product_attention(*arguments)[0],
    ...     Window.of(5, causal=True), x, x, x)
    >>> tuple(result.shape)
    (1, 2, 40, 4)

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """
    length = tf.shape(query)[2]
    # A window wider than the sentence needs no longer blocks than the sentence.
    block = tf.minimum(max(window.back, window.ahead, _LEAST_BLOCK), tf.maximum(length, 1))
    count = (length + block - 1) // block
    before, after = int(window.back > 0), int(window.ahead > 0)  # neighbour blocks

    def blocks(x):
        """[B, h, T, d] -> [B, h, count, block, d], filled up with zeros."""
        x = tf.pad(x, [[0, 0], [0, 0], [0, count * block - length], [0, 0]])
        shape = tf.shape(x)
        return tf.reshape(x, [shape[0], shape[1], count, block, x.shape[-1]])

    def with_neighbours(x):
        """[B, h, T, d] -> [B, h, count, (before + 1 + after) * block, d]"""
        x = tf.pad(blocks(x), [[0, 0], [0, 0], [before, after], [0, 0], [0, 0]])
        parts = [x[:, :, i : i + count] for i in range(before + 1 + after)]
        return tf.concat(parts, axis=3)

    if key_mask is None:
        key_mask = tf.ones([1, 1, 1, length], tf.bool)
    # [B, 1, 1, T] -> [B, 1, T, 1] -> [B, 1, count, keys, 1] -> [B, 1, count, 1, keys]
    is_real = with_neighbours(tf.cast(tf.transpose(key_mask, [0, 1, 3, 2]), tf.uint8))
    is_real = tf.cast(tf.transpose(is_real, [0, 1, 2, 4, 3]), tf.bool)
    # Where a key is, seen from a query: [block, keys]
    keys = tf.range((before + 1 + after) * block) - before * block
    distance = keys[None, :] - tf.range(block)[:, None]
    is_near = (distance >= -window.back) & (distance <= window.ahead)
    result = attend(
        blocks(query), with_neighbours(key), with_neighbours(value), is_near & is_real
    )  # [B, h, count, block, d_v]
    shape = tf.shape(result)
    result = tf.reshape(result, [shape[0], shape[1], count * block, result.shape[-1]])
    return result[:, :, :length]
