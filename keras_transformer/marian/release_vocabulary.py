"""Marian's `*.vocab.yml`: a YAML mapping from word to id, one word a line.

A YAML library reads it wrong. Words are plain scalars wherever Marian's writer thinks them safe,
and so `no`, `1.0` and `~` come back as a truth value, a number and nothing, or two words as one;
line separators inside a word end the line, and characters that YAML calls unprintable are refused.
So the lines are read one by one, as Marian's writer (yaml-cpp) makes them.
"""

from __future__ import annotations

import re
from pathlib import Path

from keras_transformer.errors import InputError

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "e": "\x1b", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip


def read_release_vocabulary(path: Path) -> dict[str, int]:
    """The id of each word.

    Args:
        path: Path of a `*.vocab.yml`.

    Returns:
        dict from word to id.

    Raises:
        InputError: naming file and line, if a line is no word and id, or a word comes twice.
    """
    try:
        lines = path.read_bytes().decode().removeprefix("\ufeff").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} must be UTF-8: {error}. Received: {path}") from None
    ids: dict[str, int] = {}
    pending = None  # the word of "? word", whose id is in the next line, ": id"
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if not line or (line == "---" and number == 1):
            continue
        if pending is not None:
            colon, _, value = line.partition(" ")
            word, pending = pending, None
        elif line.startswith("? "):
            pending = line[2:]
            continue
        else:
            word, colon, value = line.rpartition(":")
        if colon != ":" or not re.fullmatch(r" *[0-9]{1,9} *", value):
            raise InputError(
                f"{path.name}:{number} must be a word, ': ' and its id. Received: {line!r}"
            )
        word = _scalar(word)
        if word in ids:
            raise InputError(f"{path.name}:{number} must hold a new word. Received: {word!r} again")
        ids[word] = int(value)
    return ids


def _scalar(text: str) -> str:
    """The word that a YAML scalar stands for.

    >>> [_scalar(text) for text in ("no", "'it''s'", r'"\\u2581\\"x\\x85"')]
    ['no', "it's", '▁"x\\x85']
    """
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _ESCAPE.sub(_unescaped, text[1:-1])
    return text


def _unescaped(match: re.Match) -> str:
    code = match[1]
    if len(code) > 1:
        number = int(code[1:], base=16)
        return chr(number) if number < 0x110000 else "\ufffd"
    return _ESCAPED.get(code, code)
