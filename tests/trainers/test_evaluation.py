"""Scores: those of the sacrebleu command line, with the right tokenizer, on the right sentences."""

import json
import re

import pytest
import sacrebleu
from small_runs import in_new_process

from keras_transformer.errors import InputError
from keras_transformer.text_batches import Hypothesis
from trainers.evaluation import (
    bleu_for,
    evaluate,
    score_translations,
    tokenized_compound_split_bleu,
)

REFERENCES = [
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "Ich hätte gern eine Tasse Kaffee, bitte!",
    "Wo ist der nächste Bahnhof?",
]
ONE_RIGHT = [REFERENCES[0], "Ein Tee wäre mir lieber gewesen.", "Wann fährt denn jener Zug ab?"]
CHINESE_REFERENCES = ["我想喝一杯咖啡。", "最近的车站在哪里?"]
CHINESE = ["我要喝一杯咖啡。", "最近的车站在哪儿?"]


def command_line(tmp_path, hypotheses, references, *options):
    """What the `sacrebleu` command prints for the same files."""
    files = {"hypotheses": hypotheses, "references": references}
    for name, lines in files.items():
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    done = in_new_process(
        *("-m", "sacrebleu", tmp_path / "references", "-i", tmp_path / "hypotheses"),
        *("-m", "bleu", "chrf", "-w", "12", *options),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestScores:
    def test_they_equal_the_command_line(self, tmp_path):
        scores = score_translations(ONE_RIGHT, REFERENCES, "de")
        bleu, chrf = command_line(tmp_path, ONE_RIGHT, REFERENCES)
        assert 10 < scores["bleu"] < 60 and 10 < scores["chrf"] < 80
        assert scores["bleu"] == pytest.approx(bleu["score"], abs=1e-9)
        assert scores["chrf"] == pytest.approx(chrf["score"], abs=1e-9)
        assert scores["bleu_signature"] == bleu["signature"]
        assert "case:mixed" in scores["bleu_signature"] and "tok:13a" in scores["bleu_signature"]
        assert scores["sentences"] == 3

    def test_every_sentence_counts(self):
        # References nested the wrong way round compare the first sentence alone, which is right.
        assert score_translations(ONE_RIGHT, REFERENCES, "de")["bleu"] < 60
        wrong = sacrebleu.BLEU().corpus_score(ONE_RIGHT[:1], [[line] for line in REFERENCES])
        assert wrong.score == pytest.approx(100)

    def test_perfect_and_empty_translations(self):
        assert score_translations(REFERENCES, REFERENCES, "de")["bleu"] == pytest.approx(100)
        assert score_translations(["", "", ""], REFERENCES, "de")["bleu"] == 0

    @pytest.mark.parametrize("language", ["zh", "zh-TW", "zh_Hans", "ZH", "cmn"])
    def test_chinese_is_cut_by_its_own_tokenizer(self, language, tmp_path):
        scores = score_translations(CHINESE, CHINESE_REFERENCES, language)
        assert "tok:zh" in scores["bleu_signature"]
        assert scores["bleu"] > 40
        # By the Western one a sentence is one word or two, and hardly one is right.
        western = score_translations(CHINESE, CHINESE_REFERENCES, "de")
        assert "tok:13a" in western["bleu_signature"]
        assert western["bleu"] < 15

    def test_chinese_scores_equal_the_command_line(self, tmp_path):
        bleu, chrf = command_line(tmp_path, CHINESE, CHINESE_REFERENCES, "-tok", "zh")
        scores = score_translations(CHINESE, CHINESE_REFERENCES, "zh")
        assert scores["bleu"] == pytest.approx(bleu["score"], abs=1e-9)
        assert scores["chrf"] == pytest.approx(chrf["score"], abs=1e-9)
        assert scores["bleu_signature"] == bleu["signature"]

    @pytest.mark.parametrize(("language", "extra"), [("ja", "ja"), ("jpn", "ja"), ("ko-KR", "ko")])
    def test_a_tokenizer_that_is_not_installed_is_asked_for(self, monkeypatch, language, extra):
        def bleu(tokenize):
            assert tokenize == f"{extra}-mecab"
            raise RuntimeError("\nextra dependencies\nare missing\n")

        monkeypatch.setattr(sacrebleu, "BLEU", bleu)
        with pytest.raises(
            InputError, match=rf"sacrebleu\[{extra}\].*Received: extra dep.* missing$"
        ):
            bleu_for(language)

    @pytest.mark.parametrize("score", [score_translations, tokenized_compound_split_bleu])
    def test_counts_that_differ_are_both_named(self, score):
        with pytest.raises(InputError, match="Received: 9 and 10$"):
            score(["a"] * 9, ["a"] * 10, "de")
        with pytest.raises(InputError, match="Received: 0 and 0$"):
            score([], [], "de")


class TestCompoundSplitBleu:
    # What Moses and the split of compounds make of the sentences, written by hand.
    SENTENCES = ["Der Ost-West-Konflikt (1947-1989) dauerte.", 'Sie sagte: "Ja, UN-Rat!"']
    TOKENS = [
        "Der Ost ##AT##-##AT## West ##AT##-##AT## Konflikt ( 1947 ##AT##-##AT## 1989 ) dauerte .",
        'Sie sagte : " Ja , UN ##AT##-##AT## Rat ! "',
    ]
    OTHERS = ["Der Ost-Konflikt dauerte (1947-1990).", "Sie sagte: Ja, UN-Rat."]
    OTHER_TOKENS = [
        "Der Ost ##AT##-##AT## Konflikt dauerte ( 1947 ##AT##-##AT## 1990 ) .",
        "Sie sagte : Ja , UN ##AT##-##AT## Rat .",
    ]

    def test_it_is_the_bleu_of_tokens_made_by_hand(self):
        expected = sacrebleu.corpus_bleu(
            self.OTHER_TOKENS, [self.TOKENS], tokenize="none", force=True
        ).score
        found = tokenized_compound_split_bleu(self.OTHERS, self.SENTENCES, "de")
        assert 20 < expected < 80
        assert found == pytest.approx(expected, abs=1e-9)

    def test_parts_of_a_compound_count(self):
        whole = score_translations(["der Ost-Konflikt dort"], ["der Ost-West-Konflikt dort"], "de")
        split = tokenized_compound_split_bleu(
            ["der Ost-Konflikt dort"], ["der Ost-West-Konflikt dort"], "de"
        )
        assert split > whole["bleu"]

    def test_it_is_no_other_figure_for_translations_without_a_difference(self):
        assert tokenized_compound_split_bleu(self.SENTENCES, self.SENTENCES, "de") == pytest.approx(
            100
        )


class Parrot:
    """A translator that gives what it was given, and remembers the calls."""

    def __init__(self, translations):
        self.translations = translations
        self.calls = []

    def translate(self, texts, batch_sentences=64, on_cut=None):
        self.calls.append((list(texts), batch_sentences))
        return [[Hypothesis(text, -1.0), Hypothesis("x", -2.0)] for text in self.translations]


class TestEvaluate:
    def test_it_scores_the_best_translation_of_each_sentence(self):
        translator = Parrot(ONE_RIGHT)
        result = evaluate(translator, ["a", "b", "c"], REFERENCES, "de", batch_sentences=2)
        assert translator.calls == [(["a", "b", "c"], 2)]
        assert set(result) == {
            "bleu",
            "bleu_signature",
            "bleu_tokenized_compound_split",
            "chrf",
            "sentences",
            "seconds",
            "target_tokens_per_second",
            "translations",
        }
        expected = score_translations(ONE_RIGHT, REFERENCES, "de")
        assert {name: result[name] for name in expected} == expected
        assert result["bleu_tokenized_compound_split"] == tokenized_compound_split_bleu(
            ONE_RIGHT, REFERENCES, "de"
        )
        assert result["translations"] == ONE_RIGHT
        # What ends a sentence is a token of its own.
        words = sum(len(re.findall(r"\w+|[.?!]", line)) for line in ONE_RIGHT)
        assert result["target_tokens_per_second"] * result["seconds"] == pytest.approx(words)

    def test_chinese_has_tokens_of_its_own_and_no_compounds(self):
        result = evaluate(Parrot(CHINESE), ["a", "b"], CHINESE_REFERENCES, "zh")
        assert result["bleu_tokenized_compound_split"] is None
        characters = sum(map(len, CHINESE))
        assert result["target_tokens_per_second"] * result["seconds"] == pytest.approx(characters)

    def test_counts_that_differ_are_found_before_any_work(self):
        translator = Parrot(["a"])
        with pytest.raises(InputError, match="Received: 2 and 3$"):
            evaluate(translator, ["a", "b"], REFERENCES, "de")
        assert translator.calls == []
