"""The gate on texts that nobody should send: any bytes in, valid UTF-8 and finite numbers out."""

from __future__ import annotations

from typing import Any

import numpy as np

from export.checking.contract import DEFAULT, SIGNATURES
from export.checking.examined import ExaminedExport, GateFailed, Outputs, Row, first_dimension

ODD_TEXTS = (
    b"\xff\xfe\xc3(",  # no UTF-8 at all
    b"two \xe2\x82",  # half a character at the end
    b"\xf0\x9f\x98 six",  # and in the middle
    b"\xed\xa0\x80\xed\xb0\x80",  # surrogates
    b"\xc0\x80 \xf4\x90\x80\x80",  # too long a form, and beyond the last character
    b"a\x00b\x00",
    b"\xef\xbb\xbfone",  # a byte order mark
    b"one\ntwo\rthree\xe2\x80\xa8four\xc2\x85five\x0bsix",  # ends of lines of all kinds
    b"</s> <pad> <s> <unk> <0x41> <0x0A>",
    "👩‍👩‍👧‍👦🏳️‍🌈👍🏽".encode(),
    "one שלום مرحبا \u202e abc 你好 नमस्ते мир e\u0301\u0302\u0303".encode(),
    "\u200b\u200d\ufeff\u00ad".encode(),  # characters that nobody sees
)
_WORDS = 20_000
_BYTES = 100_000
# The longest piece of a SentencePiece model has 16 characters, unless its training was told more.
_LONGEST_PIECE = 64
# Each with the least number of tokens that it can be.
_HUGE_TEXTS = (
    (b"one two three four " * (_WORDS // 4), _WORDS),
    (b"x" * _BYTES, _BYTES // _LONGEST_PIECE),
)


def any_bytes(export: ExaminedExport) -> str:
    """No bytes raise an error; texts are one line of valid UTF-8; `truncated` is true if it was."""
    limit = int(export.card_number("limits", "maximum_source_length"))
    for signature in export.signatures:
        columns = len(SIGNATURES[signature].inputs)
        turned = (*ODD_TEXTS[1:], *ODD_TEXTS[:1])
        rows: list[Row] = list(zip(*(ODD_TEXTS, turned)[:columns], strict=True))
        outputs = export.run(signature, rows)
        _check_outputs(outputs, rows, signature)
        for row, truncated in zip(rows, outputs["truncated"], strict=True):
            # No text has more tokens than bytes, once what is no UTF-8 was replaced and doubled.
            if truncated and all(2 * len(_replaced(text)) <= limit for text in row):
                raise GateFailed(f"{signature} {row}: truncated, within {limit} tokens")
    longest = _check_long_texts(export, limit)
    return f"{len(ODD_TEXTS)} odd texts and {_WORDS} words; {longest}"


def _check_long_texts(export: ExaminedExport, limit: int) -> str:
    """Texts beyond all limits are cut, and so is a text of a word more than is read."""
    most = export.card_number("limits", "maximum_target_length")
    tokenizers = _tokenizers(export)
    # A tokenizer may read a run of characters that it does not know as one token.
    huge = [
        text
        for text, tokens in _HUGE_TEXTS
        if min((len(each.encode(text)) for each in tokenizers), default=tokens) > most
    ]
    pairs = [(_text_of(each, limit), _text_of(each, limit + 1)) for each in tokenizers]
    # All in one batch: texts this long take the most time to translate.
    rows: list[Row] = [(text,) for text in (*huge, *(text for pair in pairs for text in pair))]
    outputs = export.run(DEFAULT, rows)
    _check_outputs(outputs, rows, DEFAULT)
    truncated = outputs["truncated"].tolist()
    _check_cut(truncated[: len(huge)], DEFAULT)
    for signature in export.signatures:
        if len(SIGNATURES[signature].inputs) == 2:
            for row in (*((text, b"two") for text in huge), *((b"two", text) for text in huge)):
                outputs = export.run(signature, [row])
                _check_outputs(outputs, [row], signature)
                _check_cut(outputs["truncated"].tolist(), signature)
    if not pairs:
        return "no tokenizer to count tokens with"
    at_limit = iter(truncated[len(huge) :])
    if (False, True) not in zip(at_limit, at_limit, strict=True):
        raise GateFailed(f"truncated is not true from {limit + 1} tokens on")
    return f"{limit} tokens are read, one more is cut"


def _tokenizers(export: ExaminedExport) -> list[Any]:
    """The tokenizers of the graph; of two, one is the source's, and it does not say which."""
    import sentencepiece

    models = {node.attr["model"].s for _, node in export.nodes() if node.op == "SentencepieceOp"}
    return [
        sentencepiece.SentencePieceProcessor(model_proto=model) for model in sorted(models - {b""})
    ]


def _text_of(tokenizer: Any, tokens: int) -> str:
    """A text of so many tokens; of a few less where words of our choice do not add up to it."""
    text = "a"
    while len(tokenizer.encode(f"{text} a")) <= tokens:
        text += " a"
    ends = ("", "q", "qx", "qxq", "qxqx", "qxqxq", " q", " x")
    return next((text + end for end in ends if len(tokenizer.encode(text + end)) == tokens), text)


def _check_cut(truncated: list[bool], signature: str) -> None:
    if not all(truncated):
        raise GateFailed(f"{signature}: {_WORDS} words, or {_BYTES} bytes, are not truncated")


def _check_outputs(outputs: Outputs, rows: list[Row], signature: str) -> None:
    first_dimension(outputs, len(rows), signature)
    for name, values in outputs.items():
        for row, value in zip(rows, values, strict=True):
            if values.dtype.kind == "f" and not np.isfinite(value).all():
                raise GateFailed(f"{signature} {_start(row)}: {name} is not finite")
            if values.dtype.kind == "O":
                for text in np.ravel(value):
                    _check_text(text, f"{signature} {_start(row)}: {name}")


def _check_text(text: bytes, where: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise GateFailed(f"{where} is no UTF-8: {text[:60]!r}") from error
    if b"\n" in text:
        raise GateFailed(f"{where} is more than one line: {text[:60]!r}")


def _replaced(text: str | bytes) -> bytes:
    return (text.decode(errors="replace") if isinstance(text, bytes) else text).encode()


def _start(row: Row) -> str:
    return ", ".join(repr(text[:40]) for text in row)
