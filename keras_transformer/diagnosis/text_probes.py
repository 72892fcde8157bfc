"""Probes of texts: translations beside references, and references beside sources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from keras_transformer.diagnosis.finding import Finding

# A model of a higher perplexity says the same few words again and again for want of others.
TRAINED_PERPLEXITY = 25.0
MOST_REPEATED = 0.05
LENGTHS = (0.75, 1.35)
LEAST_ENDED = 0.95
LEAST_END_PROBABILITY = 0.2
MOST_TOKENIZED = 0.1
LEAST_PAIRED = 0.2
# Spaces before a comma or full stop at its word's end, and Moses' escapes and joints. French
# has a space before the other marks.
_TOKENIZED = re.compile(r"\w [.,](?= |$)|&(?:apos|quot|amp|lt|gt|#\d+);|@-@|\w &apos;")


def repeated_words(
    translations: Sequence[str], references: Sequence[str], perplexity: float
) -> Finding:
    """Share of translations that say a few words again and again, beside the references.

    Args:
        translations: list of str.
        references: list of str.
        perplexity: float, of the model on such references; above 25 it is too little trained.

    Returns:
        A `Finding`.

    Example:

    >>> repeated_words(["ich ich ich ich bin"], ["ich bin es"], perplexity=7.0).ok
    False
    """
    ours, theirs = (
        float(np.mean([_repeats(text) for text in texts])) for texts in (translations, references)
    )
    bound = f"at most {MOST_REPEATED:.0%} more than in the references"
    measured = {"translations": ours, "references": theirs, "perplexity": perplexity}
    if ours - theirs > MOST_REPEATED and perplexity > TRAINED_PERPLEXITY:
        return Finding(
            "repeated_words", "repetition", None, measured, bound, _too_little(perplexity)
        )
    ok = ours - theirs <= MOST_REPEATED
    return Finding(
        "repeated_words",
        "repetition",
        ok,
        measured,
        bound,
        f"{ours:.1%} of the translations repeat words three times, {theirs:.1%} of the references",
        "" if ok else "look for a mask or a shift of the target that is wrong; else train longer",
    )


def translation_length(
    translations: Sequence[str], references: Sequence[str], perplexity: float
) -> Finding:
    """Words of the translations beside those of the references.

    Args:
        translations: list of str.
        references: list of str.
        perplexity: float, as for `repeated_words`.

    Returns:
        A `Finding`.
    """
    ratio = sum(len(text.split()) for text in translations) / max(
        sum(len(text.split()) for text in references), 1
    )
    low, high = LENGTHS
    ok = low <= ratio <= high
    bound = f"{low} to {high} times the words of the references"
    measured = {"ratio": ratio, "perplexity": perplexity}
    if not ok and perplexity > TRAINED_PERPLEXITY:
        return Finding(
            "translation_length", "repetition", None, measured, bound, _too_little(perplexity)
        )
    return Finding(
        "translation_length",
        "repetition",
        ok,
        measured,
        bound,
        f"translations have {ratio:.2f} times the words of the references",
        ""
        if ok
        else "where they are short set decoding.alpha higher; where long, look at end_token",
    )


def end_token(ended: float | None, probability: float, perplexity: float) -> Finding:
    """Whether the model has learned to end a sentence.

    Args:
        ended: float or None. Share of the translations that ended before the limit of their
            length; None where the limit is so low that it says nothing.
        probability: float. Mean probability of the end id after a whole reference.
        perplexity: float, as for `repeated_words`.

    Returns:
        A `Finding`.
    """
    ok = (ended is None or ended >= LEAST_ENDED) and probability >= LEAST_END_PROBABILITY
    bound = (
        f"{LEAST_ENDED:.0%} of the translations end by themselves, and the end has a probability "
        f"of {LEAST_END_PROBABILITY} after a reference"
    )
    measured = {"ended": ended, "probability": probability, "perplexity": perplexity}
    if not ok and perplexity > TRAINED_PERPLEXITY:
        return Finding("end_token", "repetition", None, measured, bound, _too_little(perplexity))
    return Finding(
        "end_token",
        "repetition",
        ok,
        measured,
        bound,
        ("" if ended is None else f"{ended:.1%} of the translations end by themselves; ")
        + f"after a reference the end has a probability of {probability:.2f}",
        "" if ok else "labels must have the end id after the last word, and the loss must count it",
    )


def tokenized_text(texts: dict[str, Sequence[str]], bleu: dict[str, float] | None) -> Finding:
    """Whether a text that is scored has its punctuation cut off, as Moses' tokenizer does.

    Args:
        texts: dict of lists of str by what they are, such as `references`.
        bleu: `{"as_it_is": x, "detokenized": y}`, or None where that was not scored.

    Returns:
        A `Finding`.

    Example:

    >>> tokenized_text({"references": ["Das ist ein Test ."]}, None).ok
    False
    """
    shares = {
        name: float(np.mean([bool(_TOKENIZED.search(text)) for text in lines]))
        for name, lines in texts.items()
        if len(lines)
    }
    bound = f"at most {MOST_TOKENIZED:.0%} of the sentences have punctuation cut off"
    if not shares:
        return Finding("tokenized_text", "bleu", None, {}, bound, "there are no references")
    worst = max(shares, key=shares.__getitem__)
    ok = shares[worst] <= MOST_TOKENIZED
    worth = ""
    if bleu and not ok:
        worth = f"; detokenized they give {bleu['detokenized'] - bleu['as_it_is']:+.1f} BLEU"
    return Finding(
        "tokenized_text",
        "bleu",
        ok,
        {"shares": shares, "bleu": bleu},
        bound,
        f"{shares[worst]:.0%} of the {worst} have punctuation cut off{worth}",
        ""
        if ok
        else f"give the {worst} as plain text, as people write it: sacreBLEU tokenizes by itself",
    )


def pairing(splits: dict[str, tuple[Sequence[str], Sequence[str]]]) -> Finding:
    """Whether line i of the target is the translation of line i of the source.

    Lengths of sentences and translations go together, and those of strangers do not.

    Args:
        splits: dict of sources and targets by the name of the split.

    Returns:
        A `Finding`: measured is for each split the correlation of the lengths' logarithms, of
        pairs as they are and with the targets one line up or down.
    """
    bound = f"lengths correlate by more than {LEAST_PAIRED}, and most where lines are not shifted"
    measured, faults = {}, []
    for name, (sources, targets) in splits.items():
        count = min(len(sources), len(targets))
        if count < 30:
            continue
        logs = [np.log1p([len(text) for text in side[:count]]) for side in (sources, targets)]
        found = {
            shift: _correlation(logs[0][3 : count - 3], logs[1][3 + shift : count - 3 + shift])
            for shift in range(-3, 4)
        }
        measured[name] = {f"{shift:+d}" if shift else "0": value for shift, value in found.items()}
        best = max(found, key=found.__getitem__)
        if best and found[best] > found[0] + 0.1:
            faults.append(f"{name}: line i fits line i{best:+d} of the target")
        elif found[0] <= LEAST_PAIRED:
            faults.append(f"{name}: lines of source and target do not belong together")
    if not measured:
        return Finding("pairing", "bleu", None, {}, bound, "there are too few pairs of sentences")
    return Finding(
        "pairing",
        "bleu",
        not faults,
        measured,
        bound,
        "; ".join(faults)
        or f"lengths correlate by {min(each['0'] for each in measured.values()):.2f} or more",
        "pair each source with its own translation: a line is missing, or a file was shuffled"
        if faults
        else "",
    )


def detokenized(text: str) -> str:
    """A text of Moses' tokens roughly as people write it.

    Args:
        text: str.

    Example:

    >>> detokenized("Das ist &quot; er &quot; , Tom .")
    'Das ist "er", Tom.'
    """
    for escape, mark in (
        *(("&apos;", "'"), ("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">")),
        *(("&#124;", "|"), ("&#91;", "["), ("&#93;", "]"), ("&amp;", "&")),
    ):
        text = text.replace(escape, mark)
    text = re.sub(r" @-@ ", "-", text)
    text = re.sub(r'" ([^"]*) "', r'"\1"', text)
    return re.sub(r" ([.,;:!?%)\]])", r"\1", re.sub(r"([(\[]) ", r"\1", text))


def _repeats(text: str) -> bool:
    """Whether one to four words come three times in a row, or one phrase makes up the text."""
    words = text.split()
    for size in range(1, 5):
        for start in range(len(words) - 3 * size + 1):
            phrase = words[start : start + size]
            if all(words[start + k * size : start + (k + 1) * size] == phrase for k in (1, 2)):
                return True
    counts = Counter(zip(words, words[1:], words[2:], strict=False))
    return bool(counts) and max(counts.values()) > 3


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    if not first.std() or not second.std():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _too_little(perplexity: float) -> str:
    return f"the model is too little trained to tell: its perplexity is {perplexity:.0f}"
