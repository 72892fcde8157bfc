"""What is done to a text before SentencePiece reads it and after SentencePiece wrote it.

Python uses the `sentencepiece` package, the graph the much older SentencePiece inside TensorFlow
Text, and the two treat invalid UTF-8, control characters and odd spaces differently. Neither
ever sees them: `prepare` and `prepare_in_graph` turn any text into the same valid UTF-8 on one
line first. What SentencePiece decodes is prepared again, so that a translation is one line too.
"""

from __future__ import annotations

import re

import tensorflow as tf

# Code points as (first, last). C0 and C1 controls hold CR, LF, VT, FF, U+001C-1E and U+0085.
_BREAKS = ((0x00, 0x1F), (0x7F, 0x9F), (0x2028, 0x2029), (0x2581, 0x2581))
_SPACE = ((0x20, 0x20),)
# What is left of Unicode's White_Space once the breaks are spaces. Inside a sentence the
# normalisation decides (French needs its no-break spaces); around it they are nothing.
_WHITE = (
    *_SPACE,
    *((0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_BYTE_ORDER_MARK = "\ufeff"
_REPLACEMENT = "\ufffd"


def _character_class(ranges, escape: str) -> str:
    return "[" + "".join(f"{escape % first}-{escape % last}" for first, last in ranges) + "]"


def _break_pattern(escape: str) -> str:
    """Matches what becomes one space: any run of breaks and spaces but a lone space."""
    run = _character_class((*_BREAKS, *_SPACE), escape)
    return f"{run}{{2,}}|{_character_class(_BREAKS, escape)}"


_PYTHON_ESCAPE, _RE2_ESCAPE = r"\U%08x", r"\x{%x}"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SINGLE_BREAK = re.compile(_character_class(_BREAKS, _PYTHON_ESCAPE))
_GRAPH_SINGLE_BREAK = _character_class(_BREAKS, _RE2_ESCAPE)
_BREAK = re.compile(_break_pattern(_PYTHON_ESCAPE))
_GRAPH_BREAK = _break_pattern(_RE2_ESCAPE)
_MARGIN = "".join(chr(c) for first, last in _WHITE for c in range(first, last + 1))
_GRAPH_MARGIN = "^{0}+|{0}+$".format(_character_class(_WHITE, _RE2_ESCAPE))


def make_valid(text: str) -> str:
    """Returns `text` with U+FFFD in the place of surrogates, so that it has a UTF-8 form.

    Example:

    >>> make_valid("a\\ud800") == "a\\ufffd"
    True
    """
    return _SURROGATE.sub(_REPLACEMENT, text)


def make_valid_in_graph(text: tf.Tensor) -> tf.Tensor:
    """Returns bytes of any kind as `bytes.decode("utf-8", "replace")` reads them.

    Args:
        text: string tensor of any shape.

    Returns:
        A string tensor of the same shape, valid UTF-8.

    Example:

    >>> make_valid_in_graph(tf.constant([b"one", b"\\xff"])).numpy().tolist()
    [b'one', b'\\xef\\xbf\\xbd']
    """
    return tf.strings.unicode_transcode(
        text, "UTF-8", "UTF-8", errors="replace", replacement_char=ord(_REPLACEMENT)
    )


def on_one_line(text: str) -> str:
    """Returns `text` with a space for each control character and line break, and none around it.

    Unlike `prepare` it leaves what else there is alone: two spaces stay two.

    Example:

    >>> on_one_line(" one,  two\\nthree ")
    'one,  two three'
    """
    return _SINGLE_BREAK.sub(" ", make_valid(text)).strip(_MARGIN)


def on_one_line_in_graph(text: tf.Tensor) -> tf.Tensor:
    """Returns what `on_one_line` does, for a string tensor of any shape and bytes.

    Example:

    >>> on_one_line_in_graph(tf.constant([" one,  two\\nthree "])).numpy().tolist()
    [b'one,  two three']
    """
    text = tf.strings.regex_replace(make_valid_in_graph(text), _GRAPH_SINGLE_BREAK, " ")
    return tf.strings.regex_replace(text, _GRAPH_MARGIN, "")


def prepare(text: str) -> str:
    """Returns `text` as valid Unicode on one line, without white space around it.

    Control characters, line and paragraph separators and runs of spaces become one space each.
    So does U+2581, which SentencePiece itself writes for a space. Byte order marks vanish, and
    surrogates become U+FFFD. Everything else, such as a no-break space between two words, is left
    to the normalisation of the SentencePiece model.

    Args:
        text: str.

    Returns:
        A str. To prepare it again changes nothing.

    Example:

    >>> prepare("\\ufeff one\\r\\n two\\u2028three\\u00a0")
    'one two three'
    """
    text = make_valid(text).replace(_BYTE_ORDER_MARK, "")
    return _BREAK.sub(" ", text).strip(_MARGIN)


def prepare_in_graph(text: tf.Tensor) -> tf.Tensor:
    """Returns what `prepare` does, for a string tensor of any bytes.

    Bytes that are no UTF-8 become U+FFFD, as `bytes.decode("utf-8", "replace")` writes them.

    Args:
        text: string tensor of any shape.

    Returns:
        A string tensor of the same shape, valid UTF-8.

    Example:

    >>> prepare_in_graph(tf.constant([b"one\\r\\ntwo", b"\\xff three "])).numpy().tolist()
    [b'one two', b'\\xef\\xbf\\xbd three']
    """
    text = make_valid_in_graph(text)
    text = tf.strings.regex_replace(text, _BYTE_ORDER_MARK, "")
    text = tf.strings.regex_replace(text, _GRAPH_BREAK, " ")
    return tf.strings.regex_replace(text, _GRAPH_MARGIN, "")
