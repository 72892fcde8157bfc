"""Probes of translations, references and settings of the search."""

import json

import pytest

from keras_transformer.diagnosis import decoding_probes, text_probes
from keras_transformer.diagnosis.doctor import settle
from keras_transformer.diagnosis.finding import Finding, faults

REFERENCES = ["Das ist ein Haus.", "Wo bist du, Tom?"] * 10
ENDLESS = ["Das das das das das das", "Wo bist du wo bist du wo bist du"] * 10
SOURCES = [f"{'word ' * (n * 7 % 13 + 1)}." for n in range(60)]
TARGETS = [f"{'Wort ' * (n * 7 % 13 + 1)}!" for n in range(60)]


def test_repetition_is_named_unless_the_model_is_hardly_trained():
    assert text_probes.repeated_words(REFERENCES, REFERENCES, 7.0).ok
    assert text_probes.repeated_words(ENDLESS, REFERENCES, 7.0).ok is False
    finding = text_probes.repeated_words(ENDLESS, REFERENCES, 100.0)
    assert finding.ok is None
    assert finding.detail == "the model is too little trained to tell: its perplexity is 100"


@pytest.mark.parametrize(("factor", "ok"), [(1, True), (2, False)])
def test_lengths_far_from_the_references_are_named(factor, ok):
    longer = [" ".join([text] * factor) for text in REFERENCES]
    assert text_probes.translation_length(longer, REFERENCES, 7.0).ok is ok
    assert text_probes.translation_length(longer, REFERENCES, 100.0).ok is (ok or None)


@pytest.mark.parametrize(
    ("ended", "probability", "perplexity", "ok"),
    [
        (1.0, 0.9, 7.0, True),
        (0.5, 0.9, 7.0, False),
        (1.0, 0.01, 7.0, False),
        (None, 0.9, 7.0, True),
        (0.5, 0.01, 70.0, None),
    ],
)
def test_an_end_that_was_not_learned_is_named(ended, probability, perplexity, ok):
    assert text_probes.end_token(ended, probability, perplexity).ok is ok


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("Das ist ein Haus .", False),
        ("Ja , das ist es", False),
        ("Tom &apos;s Haus", False),
        ("zwei @-@ drei", False),
        ("Das ist ein Haus.", True),
        ("Vous venez ? Oui !", True),
        ("3.5 oder ... , 4,5", True),
    ],
)
def test_tokenized_references_are_named(text, ok):
    finding = text_probes.tokenized_text(
        {"references": [text], "translations": ["gut"]}, {"as_it_is": 20.0, "detokenized": 23.5}
    )
    assert finding.ok is ok
    assert ("+3.5 BLEU" in finding.detail) is not ok


@pytest.mark.parametrize(
    ("targets", "detail"),
    [
        (TARGETS, None),
        (TARGETS[1:], "line i fits line i-1 of the target"),
        (["x", *TARGETS], "line i fits line i+1 of the target"),
        (sorted(TARGETS), "do not belong together"),
    ],
)
def test_lines_that_are_shifted_or_shuffled_are_named(targets, detail):
    finding = text_probes.pairing({"test": (SOURCES, targets)})
    assert finding.ok is (detail is None)
    assert detail is None or detail in finding.detail
    assert text_probes.pairing({"test": (SOURCES[:20], TARGETS[:20])}).ok is None


def test_settings_of_the_search_are_named_with_what_they_are_worth():
    greedy = decoding_probes.beam(1, {"1": 24.0, "4": 25.5})
    assert greedy.ok is False
    assert "worth +1.5 BLEU" in greedy.detail
    assert decoding_probes.beam(4, {}).ok
    assert decoding_probes.length_penalty(0.6, "gnmt", {}).ok
    assert decoding_probes.length_penalty(0.0, "gnmt", {"0": 20.0, "0.6": 22.0}).ok is False
    assert decoding_probes.length_penalty(0.0, "gnmt", {"0": 22.0, "0.6": 22.0}).ok
    assert decoding_probes.length_limit(0.5, 2, None).ok is False
    assert decoding_probes.length_limit(0.5, 50, None).ok
    assert decoding_probes.length_limit(0.5, 50, 12).ok is False


def test_averaging_tells_of_how_many_and_what_it_is_worth():
    averaged = decoding_probes.averaging(8, 8, {"model": 31.8, "last": 31.5})
    assert averaged.ok
    assert (
        averaged.detail
        == "model.keras is the mean of 8 checkpoints, worth +0.3 BLEU over the last one"
    )
    assert decoding_probes.averaging("ema", 5, {}).ok
    assert decoding_probes.averaging(1, 5, {}).ok is False
    assert decoding_probes.averaging(None, 5, {}).ok is None


@pytest.mark.parametrize(
    ("signature", "tokenizer", "ok"),
    [
        ("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0", "13a", True),
        ("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0", "zh", False),
        ("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0", "13a", False),
    ],
)
def test_a_signature_of_another_language_is_named(signature, tokenizer, ok):
    assert decoding_probes.bleu_signature(signature, tokenizer, "de").ok is ok


def found(name, ok=False, trouble="repetition"):
    return Finding(name, trouble, ok, {}, "", "x", "y")


def test_one_cause_has_one_name():
    symptoms = ["repeated_words", "end_token", "causality", "softmax_saturation"]
    findings = settle([*map(found, symptoms), found("mask_fill"), found("beam", trouble="bleu")])
    assert faults(findings) == ["mask_fill", "beam"]
    explained = {each.name: each for each in findings if each.ok is None}
    assert set(explained) == set(symptoms)
    assert explained["causality"].detail == "explained by mask_fill: x"
    assert explained["causality"].remedy == ""


def test_symptoms_without_a_cause_stay_faults():
    assert faults(settle([found("repeated_words"), found("mask_fill", ok=True)])) == [
        "repeated_words"
    ]


def test_findings_come_in_the_order_of_the_troubles_and_are_json():
    findings = settle([found("beam", trouble="bleu"), found("loss", True, "divergence")])
    assert [finding.name for finding in findings] == ["loss", "beam"]
    assert json.loads(json.dumps(findings[0].as_dict()))["ok"] is True
    assert [finding.state for finding in findings] == ["ok", "fault"]
