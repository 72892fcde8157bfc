"""The words of a Marian checkpoint in the order of our control ids, and where each row comes from.

Marian puts `</s>` and `<unk>` first and its pad word last, if it has one, and starts a translation
with the pad word or with a zero embedding. Here pad, start, end and unknown come first, in that
order, as in every vocabulary of this package; all other words keep the checkpoint's order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_transformer.errors import InputError

_START_WORDS = ("<s>", "<start>")  # the second for a checkpoint that has a word "<s>" of its own
_MISSING_PAD_WORD = "<pad>"

NO_ROW = -1


@dataclasses.dataclass(frozen=True, eq=False)
class MarianVocabulary:
    """A checkpoint's words re-ordered, and the permutation that re-orders its weights alike.

    Attributes:
        words: tuple of str, the word of each of our ids: pad, start, end, unknown, then all others
            in the checkpoint's order. All different. One more than the checkpoint has, or two if
            it has no pad word.
        rows: int64 array `[len(words)]`, the checkpoint's row (its id) of each of our ids.
            `NO_ROW`, -1, for a pad or start word that the checkpoint lacks; the start word may
            have the row of another word. Not for writing.

    Example:

    >>> vocabulary = MarianVocabulary.of({"</s>": 0, "<unk>": 1, "▁a": 2, "<pad>": 3})
    >>> vocabulary.words
    ('<pad>', '<s>', '</s>', '<unk>', '▁a')
    >>> vocabulary.rows.tolist()
    [3, 3, 0, 1, 2]
    """

    words: tuple[str, ...]
    rows: np.ndarray

    @classmethod
    def of(
        cls,
        words: Mapping[str, int] | Sequence[str],
        *,
        pad_word: str | None = "<pad>",
        end_word: str = "</s>",
        unknown_word: str = "<unk>",
        start_row: int | None = None,
    ) -> MarianVocabulary:
        """Re-orders a checkpoint's words.

        Args:
            words: the checkpoint's words: a mapping from word to id, as in `vocab.json` or a
                `*.vocab.yml`, or a sequence in the order of the ids.
            pad_word: str, the checkpoint's pad word, or `None` when it has none.
            end_word: str, its end-of-sentence word.
            unknown_word: str, its word for whatever is not in the vocabulary.
            start_row: int, the id of its decoder start token. `None` is the pad word, or no row
                where there is no pad word.

        Returns:
            A `MarianVocabulary`.

        Raises:
            InputError: if ids are missing, given twice or no whole numbers, a word is given twice
                or empty, a control word is missing, or `start_row` is no id.
        """
        ordered = _in_order(words)
        ids = {word: i for i, word in enumerate(ordered)}
        controls = {"pad": pad_word, "end": end_word, "unknown": unknown_word}
        for role, word in controls.items():
            if word is not None and word not in ids:
                raise InputError(
                    f"A Marian vocabulary must hold its {role} word {word!r}. "
                    f"Received: {len(ids)} words without it"
                )
        given = [word for word in controls.values() if word is not None]
        if len(set(given)) < len(given):
            raise InputError(
                f"A Marian vocabulary's pad, end and unknown words must differ. Received: {given}"
            )
        if pad_word is None and _MISSING_PAD_WORD in ids:
            raise InputError(
                f"A Marian vocabulary with a word {_MISSING_PAD_WORD!r} must use it as its pad "
                f"word. Received: pad_word=None"
            )
        start_word = next((word for word in _START_WORDS if word not in ids), None)
        if start_word is None:
            raise InputError(
                f"A Marian vocabulary must leave one of {', '.join(_START_WORDS)} free for the "
                f"start of a translation. Received: both"
            )
        pad_row = NO_ROW if pad_word is None else ids[pad_word]
        if start_row is None:
            start_row = pad_row
        elif isinstance(start_row, bool) or start_row not in range(len(ids)):
            raise InputError(
                f"A decoder start token must be an id in 0..{len(ids) - 1}. Received: {start_row!r}"
            )
        others = [word for word in ordered if word not in given]
        rows = [pad_row, start_row, ids[end_word], ids[unknown_word], *(ids[w] for w in others)]
        rows = np.asarray(rows, np.int64)
        rows.setflags(write=False)
        first = (pad_word or _MISSING_PAD_WORD, start_word, end_word, unknown_word)
        return cls((*first, *others), rows)


def _in_order(words: Mapping[str, int] | Sequence[str]) -> list[str]:
    """Returns the words by their ids; refuses whatever is no list of different words."""
    if isinstance(words, Mapping):
        for word, i in words.items():
            if isinstance(i, bool) or not isinstance(i, int):
                raise InputError(
                    f"A Marian vocabulary must give each word a whole number as its id. "
                    f"Received: {word!r}: {i!r}"
                )
        ordered = sorted(words, key=words.__getitem__)
        for expected, word in enumerate(ordered):
            if words[word] != expected:
                raise InputError(
                    f"A Marian vocabulary must give its {len(ordered)} words the ids 0.."
                    f"{len(ordered) - 1}, each once. Received: {word!r}: {words[word]}, where "
                    f"{expected} was expected"
                )
    elif isinstance(words, Sequence) and not isinstance(words, str):
        ordered = list(words)
    else:
        raise InputError(
            f"A Marian vocabulary must be a mapping from word to id or a list of words. "
            f"Received: {type(words).__name__}"
        )
    seen = set()
    for i, word in enumerate(ordered):
        if not isinstance(word, str) or not word:
            raise InputError(f"A Marian word must be text, not empty. Received: {word!r}, id {i}")
        if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise InputError(f"A Marian word must be Unicode text. Received: {word!r}, id {i}")
        if word in seen:
            raise InputError(
                f"A Marian vocabulary must hold a word once. Received: {word!r} again, id {i}"
            )
        seen.add(word)
    return ordered
