"""Spaces before English punctuation and contractions, which some tokenizers take out of texts."""

from __future__ import annotations

import re

import tensorflow as tf

# What Hugging Face's `clean_up_tokenization` replaces, in its order.
_REPLACED = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ",")),
    (" ' ", "'"),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


def clean_up_spaces(text: str) -> str:
    """Returns `text` without the space before a full stop, a contraction and the like.

    Args:
        text: str.

    Example:

    >>> clean_up_spaces("Tom is n't here , is he ?")
    "Tom isn't here, is he?"
    """
    for old, new in _REPLACED:
        text = text.replace(old, new)
    return text


def clean_up_spaces_in_graph(text: tf.Tensor) -> tf.Tensor:
    """Returns what `clean_up_spaces` does, for a string tensor of any shape.

    Args:
        text: string tensor.

    Returns:
        A string tensor of the same shape.

    Example:

    >>> clean_up_spaces_in_graph(tf.constant(["here , is he ?"])).numpy().tolist()
    [b'here, is he?']
    """
    for old, new in _REPLACED:
        text = tf.strings.regex_replace(text, re.escape(old).replace("\\ ", " "), new)
    return text
