"""The gates on what an export does with texts: each fails on what was planted for it."""

import shutil

import pytest
import tensorflow as tf
from planted_exports import INPUTS, LIMITS, ONE, edit_card, failures, save, trimmed

pytestmark = pytest.mark.usefixtures("no_compiler")


# Batches ------------------------------------------------------------------------------------------


def test_another_leading_dimension_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return tf.concat([translation, translation], 0), tf.concat([score, score], 0)

    found = failures(save(tmp_path / "1", translate, names=ONE))
    assert found["batch_mates"] == "serving_default: 5 rows in, score has shape (10,)"
    rows = {"any_bytes", "server_batching", "rest_rows", "rest_columns", "warm_up"}
    assert set(found) >= rows | {"python_translator"}
    assert "empty_batch" not in found


def test_a_row_for_an_empty_batch_fails(tmp_path):
    def translate(text):
        is_empty = tf.cast(tf.equal(tf.shape(text)[:1], 0), tf.int32)
        return trimmed(tf.concat([text, tf.fill(is_empty, "a")], 0))

    found = failures(save(tmp_path / "1", translate))
    assert list(found) == ["empty_batch"] and "has shape (1,)" in found["empty_batch"]


def test_an_error_for_an_empty_batch_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        with tf.control_dependencies([tf.debugging.assert_positive(tf.size(text))]):
            return tf.identity(translation), score

    found = failures(save(tmp_path / "1", translate))
    assert list(found) == ["empty_batch"] and "assertion failed" in found["empty_batch"]


def test_a_result_that_depends_on_batch_mates_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return translation, score - tf.reduce_min(score) * 0.01

    found = failures(save(tmp_path / "1", translate))
    assert "('two',): alone and in a batch gave score" in found["batch_mates"]
    assert {"server_batching", "python_translator"} <= set(found)


def test_attention_that_depends_on_batch_mates_fails(tmp_path):
    def blur(out):
        """The mean over the width of the batch, as a softmax without a mask would give."""
        attention = out["attention"]
        mask = tf.cast(attention > 0, tf.float32)
        wide = tf.cast(tf.shape(attention)[2], tf.float32)
        first = tf.one_hot([[0]], tf.shape(attention)[2])
        return {**out, "attention": (1 - 0.1 * wide) * attention + 0.1 * wide * mask * first}

    found = failures(save(tmp_path / "1", change={"align": blur}))
    assert {"batch_mates", "server_batching"} <= set(found)


# Texts without words ------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", "\u00a0"])
def test_words_for_text_without_words_fail(tmp_path, blank):
    def translate(text):
        translation, score = trimmed(text)
        return tf.where(tf.equal(text, blank), "invented", translation), score

    found = failures(save(tmp_path / "1", translate, names=ONE))
    assert f"{blank!r} gave b'invented'" in found["empty_text"]


def test_a_score_that_is_no_number_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return translation, score / tf.where(tf.equal(translation, ""), 0.0, 1.0)

    found = failures(save(tmp_path / "1", translate))
    assert "with score nan" in found["empty_text"]
    assert "NaN is no number" in found["rest_rows"] and "NaN is no number" in found["rest_columns"]


# Odd texts ----------------------------------------------------------------------------------------


def bytes_as_they_are(text):
    """Half a character in, half a character out."""
    return text, trimmed(text)[1]


def half_a_character(text):
    """Cuts bytes, not characters."""
    translation, score = trimmed(text)
    return tf.strings.substr(translation, 0, 6), score


def lines(text):
    translation, score = trimmed(text)
    return tf.where(tf.strings.length(text) > 20, translation + "\n", translation), score


def refuse_nul(text):
    is_fine = tf.reduce_all(~tf.strings.regex_full_match(text, r"[\s\S]*\x00[\s\S]*"))
    with tf.control_dependencies([tf.debugging.Assert(is_fine, ["NUL"])]):
        return trimmed(tf.identity(text))


def infinite(text):
    translation, score = trimmed(text)
    return translation, tf.where(score < -500.0, float("-inf"), score)


@pytest.mark.parametrize(
    ("translate", "message"),
    [
        (bytes_as_they_are, "translation is no UTF-8"),
        (half_a_character, "translation is no UTF-8"),
        (lines, "translation is more than one line"),
        (refuse_nul, "InvalidArgumentError: "),
        (infinite, "score is not finite"),
    ],
)
def test_bytes_that_break_the_graph_or_its_result_fail(tmp_path, translate, message):
    assert message in failures(save(tmp_path / "1", translate, names=ONE), "any_bytes")["any_bytes"]


def test_half_a_character_in_the_answer_is_no_legal_json(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return tf.where(translation == "🙂 ß", tf.strings.substr(translation, 0, 2), "two"), score

    found = failures(save(tmp_path / "1", translate))
    for name in ("rest_rows", "rest_columns"):
        assert "serving_default: the answer is no legal JSON: 'utf-8' codec" in found[name]


@pytest.mark.parametrize("signature", ["serving_default", "n_best", "score", "align"])
@pytest.mark.parametrize("value", [True, False])
def test_truncated_that_is_always_the_same_fails(tmp_path, signature, value):
    def always(out):
        return {**out, "truncated": tf.fill(tf.shape(out["truncated"]), value)}

    found = failures(
        save(
            tmp_path / "1", change={signature: always}, names={**ONE, signature: INPUTS[signature]}
        ),
        "any_bytes",
    )
    if (signature, value) == ("n_best", False):  # its translations are those of serving_default
        assert found == {}
    elif value:
        assert "truncated, within 600 tokens" in found["any_bytes"]
    else:
        assert "are not truncated" in found["any_bytes"]


@pytest.mark.parametrize("limit", [39, 41])
def test_another_limit_than_the_card_says_fails(numbers_export, tmp_path, limit):
    path = shutil.copytree(numbers_export, tmp_path / "1")
    edit_card(path, lambda card: card["limits"].update(maximum_source_length=limit))
    found = failures(path, "any_bytes")
    assert found == {"any_bytes": f"truncated is not true from {limit + 1} tokens on"}


def test_a_card_without_the_limit_fails(copy):
    edit_card(copy, lambda card: card.update(limits={**LIMITS, "maximum_source_length": None}))
    found = failures(copy)["any_bytes"]
    assert found.endswith("has no number limits.maximum_source_length")
