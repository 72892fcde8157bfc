"""Probes of what BLEU depends on beside the model: averaging, the search, the signature."""

from __future__ import annotations

from typing import Any

from keras_transformer.diagnosis.finding import Finding

ALPHAS = (0.2, 1.5)
LEAST_BEAM = 2
MOST_CUT = 0.02
AMPLE_EXTRA = 20
AMPLE_MAXIMUM = 100


def averaging(mean_of: int | str | None, wanted: int, bleu: dict[str, float]) -> Finding:
    """Whether the final model is a mean of checkpoints (section 6.1 of the paper).

    Args:
        mean_of: how many of the last checkpoints the model is the mean of, `"ema"` for a moving
            average, None where it is none of these.
        wanted: int. How many the recipe averages.
        bleu: BLEU of a sample by the model, `model`, and by the last checkpoint, `last`, and by
            the mean, `averaged`; those that were scored.

    Returns:
        A `Finding`.

    Example:

    >>> averaging(1, 5, {"model": 25.0, "averaged": 26.5}).detail
    'model.keras is the last checkpoint alone; the mean of the last 5 gives +1.5 BLEU'
    """
    bound = "the mean of at least 2 checkpoints, or a moving average"
    measured = {"mean_of": mean_of, "wanted": wanted, "bleu": bleu}
    if mean_of is None:
        return Finding(
            "averaging",
            "bleu",
            None,
            measured,
            bound,
            "model.keras is no mean of the checkpoints that are kept",
        )
    if mean_of != 1:
        what = "a moving average" if mean_of == "ema" else f"the mean of {mean_of} checkpoints"
        gain = ""
        if {"model", "last"} <= bleu.keys():
            gain = f", worth {bleu['model'] - bleu['last']:+.1f} BLEU over the last one"
        return Finding("averaging", "bleu", True, measured, bound, f"model.keras is {what}{gain}")
    worth = ""
    if {"model", "averaged"} <= bleu.keys():
        many = max(wanted, LEAST_BEAM)
        worth = f"; the mean of the last {many} gives {bleu['averaged'] - bleu['model']:+.1f} BLEU"
    return Finding(
        "averaging",
        "bleu",
        False,
        measured,
        bound,
        f"model.keras is the last checkpoint alone{worth}",
        "run `keras-transformer average RUN`, with training.average_checkpoints of 5 or more",
    )


def beam(beam_size: int, bleu: dict[str, float]) -> Finding:
    """Whether the search keeps more than one hypothesis, and what that is worth.

    Args:
        beam_size: int. Of the recipe.
        bleu: BLEU of a sample by `"1"` and `"4"` hypotheses, those that were scored.

    Returns:
        A `Finding`.
    """
    ok = beam_size >= LEAST_BEAM
    worth = ""
    if {"1", "4"} <= bleu.keys():
        worth = f"; 4 in place of 1 are worth {bleu['4'] - bleu['1']:+.1f} BLEU"
    return Finding(
        "beam",
        "bleu",
        ok,
        {"beam_size": beam_size, "bleu": bleu},
        f"beam_size of at least {LEAST_BEAM}; the paper has 4",
        f"the search keeps {beam_size} hypotheses{worth}"
        if ok
        else f"the search is greedy, with beam_size 1{worth}",
        "" if ok else "set decoding.beam_size to 4",
    )


def length_penalty(alpha: float, kind: str, bleu: dict[str, float]) -> Finding:
    """Whether alpha is near the paper's 0.6, and what it is worth.

    Args:
        alpha: float. Of the recipe.
        kind: `"gnmt"`, the paper's, or `"power"`, where an alpha is 1 mostly.
        bleu: BLEU of a sample by alpha `"0"` and `"0.6"`, those that were scored.

    Returns:
        A `Finding`.
    """
    low, high = ALPHAS
    gain = bleu["0.6"] - bleu["0"] if {"0", "0.6"} <= bleu.keys() else None
    worth = "" if gain is None else f"; 0.6 in place of 0 is worth {gain:+.1f} BLEU"
    return Finding(
        "length_penalty",
        "bleu",
        # A figure that is not the paper's and costs nothing is a choice.
        low <= alpha <= high or (gain is not None and gain < 0.5),
        {"alpha": alpha, "length_penalty": kind, "bleu": bleu},
        f"alpha from {low} to {high} (the paper's is 0.6), or no BLEU lost by another",
        f"alpha is {alpha:g} ({kind}){worth}",
        ""
        if low <= alpha <= high or (gain is not None and gain < 0.5)
        else "set decoding.alpha to 0.6",
    )


def length_limit(cut: float, extra: int, maximum: int | None) -> Finding:
    """Whether translations are cut by a limit of their length that is too low.

    Args:
        cut: float. Share of the translations that are as long as they may be.
        extra: int. Tokens that a translation may have more than its source.
        maximum: int or None. Tokens that it may have in any case.

    Returns:
        A `Finding`. Where the limit is ample, a translation at it has not learned to end, which is
        another fault.

    Example:

    >>> length_limit(0.4, 2, None).ok
    False
    """
    ok = cut <= MOST_CUT or is_ample(extra, maximum)
    limit = f"their source's length + {extra}" + (f" or {maximum}" if maximum is not None else "")
    return Finding(
        "length_limit",
        "bleu",
        ok,
        {"cut": cut, "maximum_extra_length": extra, "maximum_length": maximum},
        f"at most {MOST_CUT:.0%} of the translations end at a limit below the paper's + 50",
        f"{cut:.1%} of the translations are as long as they may be, {limit}",
        "" if ok else "set decoding.maximum_extra_length to 50, decoding.maximum_length to null",
    )


def is_ample(extra: int, maximum: int | None) -> bool:
    """Whether limits of length leave any translation room to end by itself.

    Example:

    >>> is_ample(50, None), is_ample(2, None), is_ample(50, 20)
    (True, False, False)
    """
    return extra >= AMPLE_EXTRA and (maximum is None or maximum >= AMPLE_MAXIMUM)


def bleu_signature(signature: str, expected_tokenizer: str, language: str) -> Finding:
    """Whether sacreBLEU takes the tokenizer of the language.

    Args:
        signature: str. That sacreBLEU gives.
        expected_tokenizer: str, such as `"13a"`.
        language: str. The target language.

    Returns:
        A `Finding`.

    Example:

    >>> bleu_signature("nrefs:1|case:mixed|tok:13a|version:2.6", "zh", "zh").ok
    False
    """
    parts: dict[str, Any] = dict(part.split(":", 1) for part in signature.split("|"))
    faults = []
    if parts.get("tok") != expected_tokenizer:
        faults.append(f"tokenizer {parts.get('tok')} where {language} needs {expected_tokenizer}")
    if parts.get("case") != "mixed":
        faults.append("case is not counted")
    return Finding(
        "bleu_signature",
        "bleu",
        not faults,
        {"signature": signature},
        "cased, with the tokenizer of the language",
        "; ".join(faults) or signature,
        "set data.target_language to the language of the references" if faults else "",
    )
