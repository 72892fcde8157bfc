"""Texts in batches through a function of the graph, and what it gives back in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.search import EMPTY_SCORE


class Hypothesis(NamedTuple):
    """One translation of a sentence, and its score: log p / ((5 + n) / 6)^alpha."""

    text: str
    score: float


# Called with the row of a text that is too long to be read whole.
OnCut = Callable[[int], None]


def translate_in_batches(
    translate: Callable[[tf.Tensor], Sequence[Any]],
    texts: Sequence[str],
    batch_sentences: int,
    on_cut: OnCut | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each text, in the order of the texts.

    Args:
        translate: from texts, string [N], to a sequence of translations, string [N, K], scores,
            float [N, K], and whether a text was cut, bool [N].
        texts: sequence of str.
        batch_sentences: int. Texts translated together.
        on_cut: called with the row of each text that was cut.

    Returns:
        For each text a list of `Hypothesis`, best first; at least one.

    Raises:
        InputError: for one text that is not in a list.
    """
    check_texts(texts)
    results: list[list[Hypothesis]] = [[] for _ in texts]
    for rows in batches_by_length(texts, batch_sentences):
        found = map(np.asarray, translate(_string_tensor(texts, rows)))
        translations, scores, truncated = found
        for row, row_texts, row_scores in zip(rows, translations, scores, strict=True):
            results[row] = hypotheses(row_texts, row_scores)
        _report_cut(rows, truncated, on_cut)
    return results


def score_in_batches(
    score: Callable[[tf.Tensor, tf.Tensor], Sequence[Any]],
    sources: Sequence[str],
    targets: Sequence[str],
    batch_sentences: int,
    on_cut: OnCut | None = None,
) -> list[tuple[float, int]]:
    """The log-probability and the number of tokens of each pair, in the order of the pairs.

    Args:
        score: from sources and targets, string [N], to a sequence of log-probabilities, float
            [N], numbers of tokens, int [N], and whether a text was cut, bool [N].
        sources: sequence of str.
        targets: sequence of str.
        batch_sentences: int. Pairs scored together.
        on_cut: called with the row of each pair of which one was cut.

    Raises:
        InputError: where the numbers of sources and targets differ.
    """
    _check_pairs(sources, targets)
    results = [(0.0, 0)] * len(sources)
    for rows in batches_by_length(targets, batch_sentences):
        found = score(_string_tensor(sources, rows), _string_tensor(targets, rows))
        log_probabilities, tokens, truncated = map(np.asarray, found)
        for row, log_probability, count in zip(rows, log_probabilities, tokens, strict=True):
            results[row] = (float(log_probability), int(count))
        _report_cut(rows, truncated, on_cut)
    return results


def hypotheses(texts: Sequence[bytes], scores: Sequence[float]) -> list[Hypothesis]:
    """One sentence's rows of `translations` and `scores` as a list, without the empty slots."""
    found = [
        Hypothesis(text.decode(), float(score)) for text, score in zip(texts, scores, strict=True)
    ]
    # The first slot is empty only where the model's weights are no numbers.
    return found[:1] + [hypothesis for hypothesis in found[1:] if hypothesis.score > EMPTY_SCORE]


def check_texts(texts: Sequence[str]) -> None:
    """Refuses one text in the place of a list of them, whose letters would be the texts."""
    if isinstance(texts, str | bytes):
        raise InputError(f"Texts must be a list of str. Received: {texts[:60]!r}")


def _check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Refuses lists of unlike lengths, and one text in the place of a list."""
    check_texts(sources)
    check_texts(targets)
    if len(sources) != len(targets):
        raise InputError(
            f"Sources and targets must be as many. Received: {len(sources)} and {len(targets)}"
        )


def _string_tensor(texts: Sequence[str], rows: Sequence[int]) -> tf.Tensor:
    """Some of the texts as a string tensor; the graph replaces what is no valid UTF-8."""
    return tf.constant([texts[row].encode(errors="surrogatepass") for row in rows])


def batches_by_length(texts: Sequence[str], batch_sentences: int) -> Iterator[np.ndarray]:
    """Rows of texts of like length together, so that little is padded; the longest come first."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    for start in range(0, len(order), batch_sentences):
        yield order[start : start + batch_sentences]


def _report_cut(rows: Sequence[int], truncated: Sequence[bool], on_cut: OnCut | None) -> None:
    """Calls `on_cut` with the rows of a batch that were cut."""
    if on_cut is not None:
        for row in np.asarray(rows)[np.asarray(truncated)]:
            on_cut(int(row))
