"""The gates on what was recorded of an export: each fails on what was planted for it."""

import numpy as np
import pytest
import tensorflow as tf
from planted_exports import (
    TEXTS,
    edit_card,
    expected_entries,
    failures,
    save,
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


def test_half_precision_may_round_more(copy):
    (entry,) = expected_entries(["two"])
    write_expected(copy, [{**entry, "score": -3.03, "log_probability": -3.03}])
    assert set(failures(copy)) == {"python_translator", "score"}
    edit_card(copy, lambda card: card.update(precision="mixed_bfloat16"))
    assert failures(copy) == {}


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


def test_texts_of_which_the_search_spelled_one_otherwise_are_not_compared(copy):
    edit_card(copy, lambda card: card["decoding"].update(alpha=0.6))
    write_expected(copy, [{**entry, "same_tokens": False} for entry in expected_entries(TEXTS)])
    assert failures(copy) == {}


def test_a_card_without_alpha_fails(copy):
    edit_card(copy, lambda card: card.update(decoding={}))
    assert failures(copy) == {"score": f"{MODEL_CARD} has no number decoding.alpha"}


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
