"""Punctuation as the corpora of OPUS-MT have it: Moses' rules, alike in Python and in the graph.

Moses' `normalize-punctuation` makes one of the many quotation marks, dashes and spaces. The rules
here are those of its port sacremoses, with which Hugging Face's MarianTokenizer normalises. One
list serves both Python's `re` and the graph's RE2, so no pattern looks around, and classes of
characters are spelled out: `\\d` and `\\s` are ASCII alone in RE2.

References:
    - [normalize-punctuation.perl](https://github.com/moses-smt/mosesdecoder)
    - [sacremoses](https://github.com/hplt-project/sacremoses)
"""

from __future__ import annotations

import functools
import re
import sys

import tensorflow as tf

_NBSP = "\u00a0"

Rules = tuple[tuple[str, str], ...]

_SPACES: Rules = (
    ("\r", ""),
    (r"\(", " ("),
    (r"\)", ") "),
    (" +", " "),
    (r"\) ([.!:?;,])", r")\1"),
    (r"\( ", "("),
    (r" \)", ")"),
    ("({digit}) %", r"\1%"),
    (" :", ":"),
    (" ;", ";"),
)
_QUOTES_AND_DASHES: Rules = (
    ("`", "'"),
    ("''", ' " '),
    ("[„“”]", '"'),
    ("–", "-"),
    ("—", " - "),
    (" +", " "),
    ("´", "'"),
    # An apostrophe inside a word, one after the other as sacremoses: a letter belongs to one.
    ("([a-zA-Z])‘([a-zA-Z])", r"\1'\2"),
    ("([a-zA-Z])’([a-zA-Z])", r"\1'\2"),
    ("[‘‚’]", "'"),
    ("''", '"'),
    ("…", "..."),
    (f"{_NBSP}«{_NBSP}", '"'),
    (f"«{_NBSP}?", '"'),
    (f"{_NBSP}»{_NBSP}", '"'),
    (f"{_NBSP}?»", '"'),
)
_NO_BREAK_SPACES: Rules = (
    (f"{_NBSP}%", "%"),
    (f"nº{_NBSP}", "nº "),
    (f"{_NBSP}:", ":"),
    (f"{_NBSP}ºC", " ºC"),
    (f"{_NBSP}cm", " cm"),
    (f"{_NBSP}([?!;])", r"\1"),
    (f",{_NBSP}", ", "),
    (" +", " "),
)
_COMMAS_AND_QUOTES: dict[str, Rules] = {
    "en": (('"([,.]+)', r'\1"'),),
    **dict.fromkeys(("de", "es", "fr"), ((',"', '",'), (r'(\.+)"({space}*[^<])', r'"\1\2'))),
}
_DECIMAL_COMMA = ("de", "es", "cz", "cs", "fr")
_MARGIN: Rules = (("^{space}+|{space}+$", ""),)


def normalize_punctuation(text: str, language: str | None) -> str:
    """Returns `text` with Moses' normal punctuation.

    Args:
        text: str.
        language: str, the language of the text by its code of two letters. English, German,
            Spanish, French and Czech have rules of their own; all others, and `None`, share one.

    Returns:
        A str without white space around it.

    Example:

    >>> normalize_punctuation("„Ja“, sagte er – 3 %…", "de")
    '"Ja", sagte er - 3%...'
    """
    for pattern, replacement in punctuation_rules(language):
        text = re.sub(pattern, replacement, text)
    return text


def normalize_punctuation_in_graph(text: tf.Tensor, language: str | None) -> tf.Tensor:
    """Returns what `normalize_punctuation` does, for a string tensor of valid UTF-8.

    Args:
        text: string tensor of any shape.
        language: as there.

    Returns:
        A string tensor of the same shape.

    Example:

    >>> normalize_punctuation_in_graph(tf.constant(["“Yes”, he said."]), "en").numpy().tolist()
    [b'"Yes," he said.']
    """
    for pattern, replacement in punctuation_rules(language):
        text = tf.strings.regex_replace(text, pattern, replacement)
    return text


@functools.cache
def punctuation_rules(language: str | None) -> Rules:
    """Returns the rules of a language in order: pattern and replacement, for `re` and for RE2.

    Args:
        language: as for `normalize_punctuation`.

    Returns:
        A tuple of pairs of str.

    Example:

    >>> punctuation_rules("en")[0]
    ('\\r', '')
    """
    separator = "," if language in _DECIMAL_COMMA else "."
    rules = (
        *_SPACES,
        *_QUOTES_AND_DASHES,
        *_NO_BREAK_SPACES,
        *_COMMAS_AND_QUOTES.get(language, ()),
        (f"({{digit}}){_NBSP}({{digit}})", rf"\1{separator}\2"),
        *_MARGIN,
    )
    digit, space = _character_class(str.isdecimal), _character_class(str.isspace)
    return tuple(
        (pattern.replace("{digit}", digit).replace("{space}", space), replacement)
        for pattern, replacement in rules
    )


@functools.cache
def _character_class(belongs) -> str:
    """Returns the class of all characters that Python says belong to it, for `re` and for RE2."""
    members = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if belongs(c))
    ranges, first = [], 0
    for i in range(1, len(members) + 1):
        if i == len(members) or ord(members[i]) != ord(members[i - 1]) + 1:
            ranges.append(f"{members[first]}-{members[i - 1]}")
            first = i
    return f"[{''.join(ranges)}]"
