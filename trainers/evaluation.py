"""Scores of translations: BLEU and chrF by sacreBLEU, and the paper's kind of BLEU."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Protocol

import sacrebleu
from sacremoses import MosesTokenizer

from keras_transformer.errors import InputError
from keras_transformer.text_batches import Hypothesis, OnCut

# Western tokenizers split by spaces, which do not part words in these languages (ISO 639 codes).
_BLEU_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}


class TextTranslator(Protocol):
    """What translates text: `Translator`, or an export that was loaded."""

    def translate(
        self, texts: Sequence[str], batch_sentences: int = 64, on_cut: OnCut | None = None
    ) -> list[list[Hypothesis]]: ...


def bleu_for(language: str) -> sacrebleu.BLEU:
    """sacreBLEU's BLEU with the tokenizer for a language.

    Args:
        language: str. A code such as `"de"` or `"zh-TW"`. Chinese, Japanese and Korean have
            tokenizers of their own, all others 13a.

    Raises:
        InputError: where the tokenizer is not installed.
    """
    tokenizer = bleu_tokenizer(language)
    try:
        return sacrebleu.BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"BLEU of the language {language} needs `pip install sacrebleu[{tokenizer[:2]}]`. "
            f"Received: {' '.join(str(error).split())}"
        ) from error


def bleu_tokenizer(language: str) -> str:
    """Name of sacreBLEU's tokenizer for a language, as for `bleu_for`."""
    return _BLEU_TOKENIZERS.get(re.split("[-_]", language.lower())[0], "13a")


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> dict[str, Any]:
    """BLEU and chrF of translations, on detokenized text and with one reference each.

    Args:
        hypotheses: the translations.
        references: their references, in the same order.
        language: str. Language of both, as for `bleu_for`.

    Returns:
        A dict: `bleu`, `bleu_signature`, `chrf`, `sentences`.

    Raises:
        InputError: where the counts differ or are 0, or as `bleu_for`.

    Example:

    >>> scores = score_translations(["Das ist ein Test ."], ["Das ist ein Test ."], "de")
    >>> round(scores["bleu"], 1), scores["sentences"]
    (100.0, 1)

    References:
        - Post, 2018, [A Call for Clarity in Reporting BLEU
          Scores](https://arxiv.org/abs/1804.08771)
    """
    _check_counts(hypotheses, references)
    bleu = bleu_for(language)
    score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf = sacrebleu.CHRF().corpus_score(list(hypotheses), [list(references)])
    return {
        "bleu": score.score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.score,
        "sentences": len(hypotheses),
    }


def tokenized_compound_split_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> float:
    """The paper's kind of BLEU: Moses tokens, with hyphenated compounds split on both sides.

    It comes out higher than sacreBLEU's on the same translations, and only figures of the same
    kind may be compared. tensor2tensor's `get_ende_bleu.sh` says how the paper's was computed.

    Example:

    >>> round(tokenized_compound_split_bleu(["ein Text-Test !"], ["ein Text-Test!"], "de"), 1)
    100.0
    """
    _check_counts(hypotheses, references)
    moses = MosesTokenizer(lang=language)

    def split(text: str) -> str:
        tokens = moses.tokenize(text, escape=False, return_str=True)
        # As the script's own expression: what is around the hyphen, and the hyphen, are words.
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)

    bleu = sacrebleu.BLEU(tokenize="none", force=True)
    return bleu.corpus_score(
        [split(text) for text in hypotheses], [[split(text) for text in references]]
    ).score


def evaluate(
    translator: TextTranslator,
    sources: Sequence[str],
    references: Sequence[str],
    language: str,
    batch_sentences: int = 64,
    on_cut: OnCut | None = None,
) -> dict[str, Any]:
    """Translates a test set and scores it.

    Args:
        translator: a `Translator`, or a loaded export.
        sources: sentences to translate.
        references: their translations.
        language: str. Language of the references.
        batch_sentences: int. Sentences translated together.
        on_cut: called with the row of each sentence that is too long to be read whole.

    Returns:
        The keys of `score_translations`, and `bleu_tokenized_compound_split` (None for a language
        that is written without spaces), `seconds`,
        `target_tokens_per_second` (the tokens of the translations that BLEU is counted in),
        `translations`.

    Raises:
        InputError: where the counts differ or are 0, before anything is translated.
    """
    _check_counts(sources, references)
    tokens = bleu_for(language).tokenizer
    start = time.monotonic()
    found = translator.translate(sources, batch_sentences, on_cut)
    translations = [hypotheses[0].text for hypotheses in found]
    seconds = time.monotonic() - start
    return {
        **score_translations(translations, references, language),
        "bleu_tokenized_compound_split": tokenized_compound_split_bleu(
            translations, references, language
        )
        if bleu_tokenizer(language) == "13a"
        else None,
        "seconds": seconds,
        "target_tokens_per_second": sum(len(tokens(text).split()) for text in translations)
        / seconds,
        "translations": translations,
    }


def _check_counts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not hypotheses:
        raise InputError(
            "Sentences and references must be as many, and at least one. "
            f"Received: {len(hypotheses)} and {len(references)}"
        )
