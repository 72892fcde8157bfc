"""The gates on what was recorded of an export: each fails on what was planted for it."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from planted_exports import (
    TEXTS,
    edit_card,
    expected_entries,
    failures,
    save,
    trimmed,
    write_card,
    write_expected,
)

from export.model_card import MODEL_CARD
from export.saved_model import EXPECTED_TRANSLATIONS

pytestmark = pytest.mark.usefixtures("no_compiler")


# Model card ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", "[]", "\xff"])
def test_without_a_card_it_fails(copy, text):
    file = copy / MODEL_CARD
    file.unlink() if text is None else file.write_bytes(text.encode("latin-1"))
    found = failures(copy)
    message = {None: "is missing", "[]": "holds no object"}.get(text, "is no JSON: ")
    assert message in found["model_card"] and {"any_bytes", "score"} <= set(found)


@pytest.mark.parametrize("key", ["recipe", "bleu", "languages", "versions", "signatures"])
def test_a_card_without_a_key_fails(copy, key):
    edit_card(copy, lambda card: card.pop(key))
    found = failures(copy, "model_card")
    assert found == {"model_card": f"{MODEL_CARD} has no {key}"}


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ({"recipe": {"data": {"train": ["/data/train.en"]}}}, "recipe.data.train"),
        ({"recipe": {"data": "file:///data/train.en"}}, "recipe.data"),
        ({"recipe": "data: {train: /data/me/train.en}"}, "recipe"),
        ({"bleu": {"/data/test.de": 30.0}}, "bleu as a name"),
        ({"languages": {"source": r"C:\data"}}, "languages.source"),
    ],
)
def test_a_card_with_an_absolute_path_fails(copy, place, key):
    edit_card(copy, lambda card: card.update(place))
    found = failures(copy, "model_card")
    assert list(found) == ["model_card"] and found["model_card"].endswith(f" in {key}")


@pytest.mark.parametrize("text", ["and/or", "en/de", "1/2 of a/b/c", "tok:13a|version:2.6.0"])
def test_a_card_with_a_slash_passes(copy, text):
    edit_card(copy, lambda card: card.update(recipe={"name": text}))
    assert failures(copy, "model_card") == {}


def test_signatures_other_than_the_graphs_fail(copy):
    edit_card(copy, lambda card: card["signatures"].pop("align"))
    assert (
        "lists ['n_best', 'score', 'serving_default']" in failures(copy, "model_card")["model_card"]
    )


def test_a_signature_described_otherwise_fails(copy):
    def change(card):
        card["signatures"]["score"]["outputs"]["tokens"] = "int64 [N]"

    assert (
        "has score otherwise than the graph"
        in (failures(edit_card(copy, change), "model_card")["model_card"])
    )


# Python's translations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"translation": "zwo"}, "'two' gave 'two' (-3.00000), Python 'zwo' (-3.00000)"),
        ({"score": -3.001, "same_tokens": False}, "Python 'two' (-3.00100)"),
        ({"score": float("nan"), "same_tokens": False}, "Python 'two' (nan)"),
    ],
)
def test_what_differs_from_python_fails(copy, change, message):
    first, *rest = expected_entries(TEXTS)
    write_expected(copy, [{**first, **change}, *rest])
    found = failures(copy)
    assert message in found["python_translator"]
    assert set(found) <= {"python_translator", "score"}


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"translations": []}'])
def test_without_expected_translations_nothing_is_proved(copy, text):
    if text is None:
        (copy / EXPECTED_TRANSLATIONS).unlink()
    else:
        write_expected(copy, text)
    found = failures(copy)
    assert set(found) == {
        *("batch_mates", "server_batching", "rest_rows", "rest_columns"),
        *("python_translator", "score", "align"),
    }
    assert text is not None or "is missing" in found["python_translator"]


def test_rounding_is_no_difference(copy):
    (entry,) = expected_entries(["two"])
    near = float(np.float32(-3) + 5e-5)
    write_expected(copy, [{**entry, "score": near, "log_probability": near}])
    assert failures(copy) == {}


@pytest.mark.parametrize(("precision", "fails"), [("float32", True), ("mixed_bfloat16", False)])
def test_half_precision_may_round_more(tmp_path, precision, fails):
    def half(text):
        translation, score = trimmed(text)
        dtype = tf.float32 if fails else tf.bfloat16
        return translation, tf.cast(tf.cast(score, dtype) * 1, tf.float32)

    path = save(tmp_path / "1", half)
    write_card(path, precision=precision)
    (entry,) = expected_entries(["two"])
    write_expected(path, [{**entry, "score": -3.03, "log_probability": -3.03}])
    assert set(found := failures(path)) == ({"python_translator", "score"} if fails else set()), (
        found
    )
    # What the card says changes nothing of that.
    write_card(path, precision="float32" if precision != "float32" else "bfloat16")
    assert set(failures(path)) == {
        "model_card",
        *({"python_translator", "score"} if fails else set()),
    }


def test_a_card_that_the_graph_belies_fails(numbers_export, tmp_path):
    path = shutil.copytree(numbers_export, tmp_path / "1")
    for change in (
        {"decoding": {"beam_size": 99, "alpha": 0.6}},
        {"parameters": 1},
        {"tokenizer": {}},
        {"precision": "bfloat16"},
        {"signatures": None},
    ):
        edit_card(path, lambda card, change=change: card.update(change))
        found = failures(path, "model_card")["model_card"]
        name = "half precision" if "precision" in change else next(iter(change))
        assert name in found, found
        shutil.copy2(numbers_export / MODEL_CARD, path / MODEL_CARD)
    assert failures(path, "model_card") == {}


def test_a_recorded_translation_without_a_key_is_named(copy):
    (entry,) = expected_entries(["two"])
    del entry["translation"]
    write_expected(copy, [entry])
    assert "translation 1 of" in failures(copy, "batch_mates")["batch_mates"]


# Scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_probability": -3.01}, "'two': -3.00000 over 4 tokens, Python -3.01000 over 4"),
        ({"tokens": 5}, "'two': -3.00000 over 4 tokens, Python -3.00000 over 5"),
    ],
)
def test_a_score_that_differs_from_python_fails(copy, change, message):
    first, *rest = expected_entries(TEXTS)
    write_expected(copy, [{**first, **change}, *rest])
    assert failures(copy) == {"score": message}


def test_a_score_that_differs_from_the_search_fails(copy):
    """The search's score is the log-probability only where there is no length penalty."""
    edit_card(copy, lambda card: card["decoding"].update(alpha=0.6))
    assert failures(copy, "score")["score"].startswith(
        "'two': the search's score is -3.00000, not -2.3"
    )


def test_a_score_is_compared_by_the_cards_length_penalty(copy):
    edit_card(copy, lambda card: card["decoding"].update(alpha=1.0, length_penalty="power"))
    assert failures(copy, "score")["score"].startswith(
        "'two': the search's score is -3.00000, not -0.75"
    )


def test_texts_of_which_the_search_spelled_one_otherwise_are_not_compared(copy):
    edit_card(copy, lambda card: card["decoding"].update(alpha=0.6))
    write_expected(copy, [{**entry, "same_tokens": False} for entry in expected_entries(TEXTS)])
    assert failures(copy) == {}


def test_a_card_without_alpha_fails(copy):
    edit_card(copy, lambda card: card.update(decoding={}))
    assert failures(copy, "score") == {"score": f"{MODEL_CARD} has no number decoding.alpha"}


@pytest.mark.parametrize(("name", "value"), [("log_probability", float("nan")), ("tokens", 0)])
def test_a_score_that_is_none_fails(tmp_path, name, value):
    def spoil(out):
        return {**out, name: tf.fill(tf.shape(out[name]), tf.cast(value, out[name].dtype))}

    found = failures(save(tmp_path / "1", change={"score": spoil}), "score")
    assert "'two': " in found["score"] and "tokens" in found["score"]


# Alignments ---------------------------------------------------------------------------------------


def to_padding(out):
    """Attention to the padding, as without a mask."""
    attention = out["attention"]
    shape = tf.cast(tf.shape(attention), tf.float32)
    is_row = tf.reduce_sum(attention, axis=2, keepdims=True) > 0
    return {**out, "attention": tf.where(is_row, tf.ones_like(attention) / shape[2], attention)}


def past_the_end(out):
    attention = out["attention"]
    return {**out, "attention": tf.where(attention == 0, 1e-6, attention)}


def halved(out):
    return {**out, "attention": out["attention"] / 2}


def without_an_end(out):
    pieces = out["source_pieces"]
    return {**out, "source_pieces": tf.where(pieces == "</s>", "end", pieces)}


def too_long(out):
    return {**out, "target_lengths": out["target_lengths"] + 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (to_padding, "attention beyond"),
        (past_the_end, "attention beyond"),
        (halved, "attention that does not sum to 1"),
        (without_an_end, "source_pieces do not end with </s>: [b'two', b'end'"),
        (too_long, "attention that does not sum to 1"),
    ],
)
def test_an_alignment_that_is_none_fails(tmp_path, change, message):
    path = save(tmp_path / "1", change={"align": change})
    assert message in failures(path, "align")["align"]
