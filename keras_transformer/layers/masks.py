"""Masks say which keys a query may attend to: boolean, True = may attend."""

from __future__ import annotations

from keras import ops

from keras_transformer.layers.windowed_attention import Window


def padding_mask(ids):
    """Mask that hides padded keys.

    Args:
        ids: int tensor [B, S], 0 = padding.

    Returns:
        Boolean tensor [B, 1, 1, S], for all heads and queries.

    Example:

    >>> padding_mask([[7, 8, 0]]).numpy().tolist()
    [[[[True, True, False]]]]
    """
    return ops.expand_dims(ops.not_equal(ops.convert_to_tensor(ids), 0), (1, 2))


def causal_mask(length):
    """Mask that hides later keys, for the decoder's self-attention (section 3.2.3 of the paper).

    Position t attends to positions up to t, itself included. Padding comes after a sentence's
    words, so this mask also hides all padding from every real token.

    Args:
        length: int or scalar int tensor, T.

    Returns:
        Boolean tensor [1, 1, T, T].

    Example:

    >>> causal_mask(3).numpy()[0, 0].tolist()
    [[True, False, False], [True, True, False], [True, True, True]]
    """
    positions = ops.arange(length)
    return ops.expand_dims(positions[None, :] <= positions[:, None], (0, 1))


def window_mask(length, window: Window):
    """Mask that hides keys outside a window, for restricted self-attention (section 4).

    Args:
        length: int or scalar int tensor, T.
        window: `Window`.

    Returns:
        Boolean tensor [1, 1, T, T].

    Example:

    >>> window_mask(3, Window(back=1, ahead=0)).numpy()[0, 0].tolist()
    [[True, False, False], [True, True, False], [False, True, True]]
    """
    positions = ops.arange(length)
    distance = positions[None, :] - positions[:, None]
    is_near = ops.logical_and(distance >= -window.back, distance <= window.ahead)
    return ops.expand_dims(is_near, (0, 1))
