"""Each gate passes a good export, and fails one that was made bad in the way it looks for."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_translators import number_tokenizer, random_model

from export.checks import GATES, check_export
from export.saved_model import EXPECTED_TRANSLATIONS
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator

TEXTS = ("two", "three six", "", "  ", "🙂 ß")


def failures(path) -> dict[str, str]:
    """The gates that an export does not pass, and what they found."""
    result = check_export(path)
    assert set(result) == {"ok", *GATES}
    for name in GATES:
        assert result[name]["detail"] and "\n" not in result[name]["detail"]
    json.dumps(result)
    found = {name: result[name]["detail"] for name in GATES if not result[name]["ok"]}
    assert result["ok"] == (not found)
    return found


# Good exports -------------------------------------------------------------------------------------


def test_a_good_export_passes_every_gate(numbers_export):
    """Named by the folder of its versions."""
    assert failures(numbers_export.parent) == {}


def test_a_path_without_an_export_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"must hold saved_model\.pb.*Received: "):
        check_export(tmp_path)


# Planted ones -------------------------------------------------------------------------------------


def trimmed(text):
    """A translator of few ops that breaks no rule: the text without white space around it."""
    text = tf.strings.regex_replace(text, r"^[\s\x{a0}]+|[\s\x{a0}]+$", "")
    return text, -tf.cast(tf.strings.length(text), tf.float32)


def save(path, translate=trimmed, *, shape=(None,), n_best=True, expected=None, module=None):
    """Writes a SavedModel whose signatures call `translate`, beside what they are to return."""

    def serving_default(text):
        translation, score = translate(tf.reshape(text, [-1]))
        return {"translation": translation, "score": score}

    def all_best(text):
        translation, score = translate(tf.reshape(text, [-1]))
        second = tf.fill(tf.shape(score), -1e9)
        return {
            "translations": tf.stack([translation, tf.zeros_like(translation)], axis=-1),
            "scores": tf.stack([score, second], axis=-1),
        }

    module = module or tf.Module()
    text = tf.TensorSpec(shape, tf.string, name="text")
    module.serving_default = tf.function(serving_default, [text], autograph=False)
    module.n_best = tf.function(all_best, [text], autograph=False)
    signatures = {"serving_default": module.serving_default}
    if n_best:
        signatures["n_best"] = module.n_best
    tf.saved_model.save(module, str(path), signatures)
    if expected is None:
        translations, scores = (each.numpy() for each in trimmed(tf.constant(TEXTS)))
        expected = [
            {"text": text, "translation": translation.decode(), "score": float(score)}
            for text, translation, score in zip(TEXTS, translations, scores, strict=True)
        ]
    write_expected(path, json.dumps({"translations": expected}))
    return path


def write_expected(path, text: str) -> None:
    (path / "assets.extra").mkdir(exist_ok=True)
    (path / "assets.extra" / EXPECTED_TRANSLATIONS).write_text(text)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return save(tmp_path_factory.mktemp("good") / "1")


def test_without_a_fault_the_planted_kind_passes(good):
    """So that what fails below fails for what was planted."""
    assert failures(good) == {}


def keras_model_in_a_module(path):
    """tf.saved_model.save of a tf.Module that holds a Keras model: two handles a variable."""
    module = tf.Module()
    module.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "linear", False)])
    module.model.layers[0].kernel.assign([[1.0]])

    def translate(text):
        translation, score = trimmed(text)
        return translation, module.model(score[:, None])[:, 0]

    return save(path, translate, module=module)


def test_a_keras_model_saved_plainly_fails_in_the_session_loader_alone(tmp_path):
    path = keras_model_in_a_module(tmp_path / "1")
    found = failures(path)
    assert "Could not find variable" in found["session_loader"]
    assert not {"python_loader", "signatures", "operations"} & set(found)
    # The others run both loaders.
    assert found["empty_batch"] == "not run: the session loader failed"


@pytest.mark.parametrize("what", ["cut", "garbage", "no variables"])
def test_a_damaged_export_fails_in_both_loaders(numbers_export, tmp_path, what):
    path = tmp_path / "1"
    shutil.copytree(numbers_export, path)
    model = path / "saved_model.pb"
    if what == "cut":
        model.write_bytes(model.read_bytes()[:-1000])
    elif what == "garbage":
        model.write_bytes(b"\xff" * 1000)
    else:
        shutil.rmtree(path / "variables")
    assert set(failures(path)) >= {"python_loader", "session_loader", "python_translator"}


def python_function(text):
    translation, score = trimmed(text)
    score = tf.py_function(lambda x: x, [score], tf.float32)
    return translation, tf.ensure_shape(score, [None])


def numpy_function(text):
    translation, score = trimmed(text)
    score = tf.numpy_function(lambda x: x, [score], tf.float32)
    return translation, tf.ensure_shape(score, [None])


def compiled(text):
    translation, score = trimmed(text)
    return translation, tf.function(lambda x: x * 1.0, jit_compile=True)(score)


def foreign(text):
    translation, score = trimmed(text)
    return tf.strings.lower(tf.strings.upper(translation)), score


@pytest.mark.parametrize(
    ("translate", "message"),
    [
        (python_function, "EagerPyFunc"),
        (numpy_function, "PyFunc"),
        (compiled, "needs XLA"),
        (foreign, "not on the list of allowed ops: StringLower, StringUpper"),
    ],
)
def test_ops_that_a_server_lacks_fail(tmp_path, translate, message):
    assert message in failures(save(tmp_path / "1", translate))["operations"]


@pytest.mark.parametrize("shape", [(), (4,), (None, None), None])
def test_another_shape_of_input_fails(tmp_path, shape):
    path = save(tmp_path / "1", shape=shape)
    assert "expected text: string [N]" in failures(path)["signatures"]


def test_a_missing_signature_fails(tmp_path):
    found = failures(save(tmp_path / "1", n_best=False))
    assert set(found) >= {"python_loader", "session_loader", "signatures"}
    assert "signature n_best is missing" in found["signatures"]


@pytest.mark.parametrize("change", ["name", "dtype", "rank", "another", "input's name"])
def test_signatures_other_than_agreed_fail(tmp_path, change):
    def serving_default(text):
        translation, score = trimmed(text)
        return {
            "text" if change == "name" else "translation": translation,
            "score": {
                "dtype": lambda: tf.cast(score, tf.float64),
                "rank": lambda: score[:, None],
            }.get(change, lambda: score)(),
            **({"length": tf.size(text)} if change == "another" else {}),
        }

    path = save(tmp_path / "1")
    loaded = tf.saved_model.load(str(path))
    name = "input" if change == "input's name" else "text"
    serve = tf.function(serving_default, [tf.TensorSpec([None], tf.string, name=name)])
    again = tmp_path / "2"
    module = tf.Module()
    module.serve, module.loaded = serve, loaded
    signatures = {"serving_default": serve, "n_best": loaded.signatures["n_best"]}
    tf.saved_model.save(module, str(again), signatures)
    shutil.copytree(path / "assets.extra", again / "assets.extra")
    assert "signatures" in failures(again)


def test_another_leading_dimension_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return tf.concat([translation, translation], 0), tf.concat([score, score], 0)

    found = failures(save(tmp_path / "1", translate))
    assert "has shape (10,)" in found["batch_mates"] and "python_translator" in found


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
    assert "assertion failed" in found["empty_batch"] and "python_translator" not in found


@pytest.mark.parametrize("blank", ["", "\u00a0"])
def test_words_for_text_without_words_fail(tmp_path, blank):
    def translate(text):
        translation, score = trimmed(text)
        return tf.where(tf.equal(text, blank), "invented", translation), score

    found = failures(save(tmp_path / "1", translate))
    assert f"{blank!r} gave b'invented'" in found["empty_text"]


def test_a_score_that_is_no_number_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return translation, score / tf.where(tf.equal(translation, ""), 0.0, 1.0)

    assert "with score nan" in failures(save(tmp_path / "1", translate))["empty_text"]


def test_a_result_that_depends_on_batch_mates_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return translation, score - tf.reduce_min(score) * 0.01

    assert "'two' alone gave" in failures(save(tmp_path / "1", translate))["batch_mates"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"translation": "zwo"}, "'two' gave 'two' (-3.00000), Python 'zwo' (-3.00000)"),
        ({"score": -3.001}, "Python 'two' (-3.00100)"),
        ({"score": float("nan")}, "Python 'two' (nan)"),
    ],
)
def test_what_differs_from_python_fails(good, tmp_path, change, message):
    path = shutil.copytree(good, tmp_path / "1")
    entry = {"text": "two", "translation": "two", "score": -3.0}
    write_expected(path, json.dumps({"translations": [{**entry, **change}]}))
    found = failures(path)
    assert list(found) == ["python_translator"] and message in found["python_translator"]


@pytest.mark.parametrize("text", [None, "", "{}", '{"translations": []}', '{"translations": [{}]}'])
def test_without_expected_translations_nothing_is_proved(good, tmp_path, text):
    path = shutil.copytree(good, tmp_path / "1")
    if text is None:
        (path / "assets.extra" / EXPECTED_TRANSLATIONS).unlink()
    else:
        write_expected(path, text)
    found = failures(path)
    assert set(found) == {"batch_mates", "python_translator"}
    assert text is not None or "is missing" in found["python_translator"]


def test_rounding_is_no_difference(good, tmp_path):
    path = shutil.copytree(good, tmp_path / "1")
    entry = {"text": "two", "translation": "two", "score": float(np.float32(-3) + 5e-5)}
    write_expected(path, json.dumps({"translations": [entry]}))
    assert failures(path) == {}


@pytest.mark.slow
def test_a_transformer_saved_plainly_fails_in_the_session_loader(tmp_path):
    """The very mistake, with the very model."""
    tokenizer = number_tokenizer()
    translator = Translator(random_model(tokenizer), tokenizer, 2, 0.6, 6)
    module = tf.Module()
    module.model = translator.model
    module.tokenizer = tokenizer.source.resource

    def translate(text):
        texts, scores = translator.translate_tensor(text)
        return texts[:, 0], scores[:, 0]

    found = failures(save(tmp_path / "1", translate, module=module))
    assert "session_loader" in found and "python_loader" not in found
