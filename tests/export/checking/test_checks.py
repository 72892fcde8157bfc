"""Good exports pass every gate; a loader that fails takes down only what needs it."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from planted_exports import (
    ONE,
    TEXTS,
    edit_graph,
    expected_entries,
    failures,
    save,
    trimmed,
    write_card,
)
from planted_exports import write_expected as write_expected_entries
from small_translators import number_tokenizer, random_model

from export.checking import gates_running
from export.checking.checks import GATES, check_export
from export.checking.contract import SIGNATURES
from export.saved_model import export_translator
from export.signatures import INPUTS
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator

RUN_THE_SESSION = {
    *("session_loader", "any_bytes", "empty_batch", "empty_text", "batch_mates", "score", "align"),
    *("server_batching", "rest_rows", "rest_columns", "warm_up", "python_translator"),
}


# Good exports -------------------------------------------------------------------------------------


def test_a_good_export_passes_every_gate(numbers_export):
    """Named by the folder of its versions."""
    result = check_export(numbers_export.parent)
    assert result["ok"], {name: gate for name, gate in result.items() if name != "ok"}
    assert len(result) == 22
    details = {name: result[name]["detail"] for name in GATES}
    assert details["c_loader"] == "serving_default, n_best, score, align: as in the session"
    assert details["any_bytes"].endswith("20000 words; 40 tokens are read, one more is cut")
    assert details["operations"].endswith("all in TensorFlow 2.18 and 2.20")
    assert int(details["score"].split(" as Python, ")[1].split(" ")[0]) >= 2


def test_without_a_fault_the_planted_kind_passes(good):
    """So that what fails in the tests of the gates fails for what was planted."""
    assert failures(good) == {}


@pytest.mark.usefixtures("no_compiler")
def test_signatures_may_be_left_out(tmp_path):
    path = save(tmp_path / "1", names=ONE)
    assert failures(path) == {}
    result = check_export(path)
    assert result["score"]["detail"] == result["align"]["detail"] == "not exported"
    assert result["signatures"]["detail"] == "serving_default as agreed"


def test_without_a_c_compiler_the_c_loader_is_not_run(good, no_compiler):
    assert check_export(good)["c_loader"] == {"ok": True, "detail": "not run: no C compiler"}


def test_a_path_without_an_export_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"must hold saved_model\.pb.*Received: "):
        check_export(tmp_path)


def test_a_check_changes_nothing_and_leaves_nothing(good, tmp_path, monkeypatch, no_compiler):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = {path: path.read_bytes() for path in good.rglob("*") if path.is_file()}
    check_export(good)
    assert {path: path.read_bytes() for path in good.rglob("*") if path.is_file()} == before
    assert list(tmp_path.iterdir()) == []


def test_where_files_cannot_be_linked_they_are_copied(good, monkeypatch, no_compiler):
    def refuse(*arguments, **options):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    assert failures(good) == {}


@pytest.mark.slow
@pytest.mark.parametrize("names", [("serving_default",), ("serving_default", "score"), None])
def test_a_model_of_two_vocabularies_passes(tmp_path, names):
    tokenizer = number_tokenizer(vocabulary_size=300, shared=False)
    translator = Translator(random_model(tokenizer, tying="none"), tokenizer, 2, 0.6, 6, 30)
    path = export_translator(translator, tmp_path, sample=("one two", "six"), signatures=names)
    assert failures(path) == {}
    assert check_export(path)["any_bytes"]["detail"].endswith("30 tokens are read, one more is cut")


# Loaders ------------------------------------------------------------------------------------------


def keras_model_in_a_module(path):
    """tf.saved_model.save of a tf.Module that holds a Keras model: two handles a variable."""
    module = tf.Module()
    module.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "linear", False)])
    module.model.layers[0].kernel.assign([[1.0]])

    def translate(text):
        translation, score = trimmed(text)
        return translation, module.model(score[:, None])[:, 0]

    return save(path, translate, module=module)


def test_a_keras_model_saved_plainly_fails_in_the_session_loader(tmp_path, no_compiler):
    found = failures(keras_model_in_a_module(tmp_path / "1"))
    assert "Could not find variable" in found["session_loader"]
    assert set(found) == RUN_THE_SESSION | {"variables"}
    for name in RUN_THE_SESSION - {"session_loader"}:
        assert found[name] == "not run: the session loader failed"


def test_a_keras_model_saved_plainly_fails_in_the_c_loader_too(tmp_path, monkeypatch):
    path = keras_model_in_a_module(tmp_path / "1")
    monkeypatch.setattr(gates_running, "session_loader", lambda export: "not asked")
    assert "Could not find variable" in failures(path)["c_loader"]


def test_what_c_gives_otherwise_fails(good, monkeypatch):
    def other(*arguments):
        (outputs,) = run_in_c(*arguments)
        name = next(name for name in outputs if outputs[name].dtype == np.float32)
        outputs[name] = outputs[name] + np.float32(0.01)
        return [outputs]

    run_in_c = gates_running.run_in_c
    monkeypatch.setattr(gates_running, "run_in_c", other)
    found = failures(good)
    assert list(found) == ["c_loader"] and "session and C gave score" in found["c_loader"]


def test_a_c_program_that_does_not_compile_fails(good, monkeypatch):
    def broken():
        raise RuntimeError("run_saved_model.c:1: error\nmore")

    monkeypatch.setattr(gates_running, "c_program", broken)
    assert failures(good) == {"c_loader": "RuntimeError: run_saved_model.c:1: error"}


@pytest.mark.parametrize("what", ["cut", "garbage", "no variables", "cut variables", "no model"])
def test_a_damaged_export_fails_in_both_loaders(numbers_export, tmp_path, no_compiler, what):
    path = tmp_path / "1"
    shutil.copytree(numbers_export, path)
    model = path / "saved_model.pb"
    if what == "cut":
        model.write_bytes(model.read_bytes()[:-1000])
    elif what == "garbage":
        model.write_bytes(b"\xff" * 1000)
    elif what == "no variables":
        shutil.rmtree(path / "variables")
    elif what == "cut variables":
        data = next((path / "variables").glob("variables.data*"))
        data.write_bytes(data.read_bytes()[:-1000])
    else:
        edit_graph(path, lambda meta_graph: meta_graph.meta_info_def.tags.append("gpu"))
    assert set(failures(path)) >= {"python_loader", "session_loader", "python_translator"}


def test_without_the_tokenizer_tracked_tensorflow_saves_nothing(numbers_run, tmp_path):
    translator = numbers_run.load_translator()
    archive = keras.export.ExportArchive()
    archive.track(translator.model)
    text = tf.TensorSpec([None], tf.string, name="text")
    archive.add_endpoint(
        "serving_default",
        tf.function(lambda text: translator.translate_tensor(text)[0], input_signature=[text]),
    )
    with pytest.raises(AssertionError, match="untracked"):
        archive.write_out(str(tmp_path / "1"), verbose=False)


def test_a_tokenizer_left_out_fails(numbers_export, tmp_path, no_compiler):
    path = shutil.copytree(numbers_export, tmp_path / "1")

    def empty_tokenizer(meta_graph):
        library = meta_graph.graph_def.library.function
        nodes = [*meta_graph.graph_def.node, *(node for each in library for node in each.node_def)]
        for node in nodes:
            if node.op == "SentencepieceOp":
                node.attr["model"].s = b""

    found = failures(edit_graph(path, empty_tokenizer))
    assert "holds no tokenizer" in found["self_contained"]
    assert {"session_loader", "python_loader"} <= set(found)


@pytest.mark.slow
def test_a_transformer_saved_plainly_fails_in_the_session_loader(tmp_path, no_compiler):
    """The very mistake, with the very model."""
    tokenizer = number_tokenizer()
    translator = Translator(random_model(tokenizer), tokenizer, 2, 0.6, 6)
    module = tf.Module()
    module.model = translator.model
    module.tokenizer = tokenizer.source.resource

    def translate(text):
        found = translator.translate_tensor(text)
        return found.texts[:, 0], found.scores[:, 0]

    found = failures(save(tmp_path / "1", translate, module=module))
    assert "session_loader" in found and "python_loader" not in found


# What was recorded of them ------------------------------------------------------------------------


def test_more_texts_than_a_batch_of_the_server_are_checked_too(copy, no_compiler):
    write_expected_entries(copy, expected_entries([*TEXTS, *(f"number {i}" for i in range(30))]))
    assert failures(copy) == {}
    assert check_export(copy)["python_translator"]["detail"] == "35 translations equal"


def test_every_signature_of_the_contract_is_checked():
    assert list(SIGNATURES) == list(INPUTS)
    assert {name: each.inputs for name, each in SIGNATURES.items()} == dict(INPUTS)


@pytest.mark.usefixtures("no_compiler")
def test_random_bytes_are_a_gate_where_they_are_asked_for(tmp_path):
    def on_one_line(text):
        return trimmed(tf.strings.regex_replace(text, r"[\x00\r\n]", " "))

    path = save(tmp_path / "2", on_one_line, names=ONE)
    result = check_export(path, fuzz_strings=200)
    assert set(result) == {"ok", *GATES, "fuzz"}
    assert result["ok"], result
    assert result["fuzz"]["detail"].startswith("200 random strings in ")
    half = save(
        tmp_path / "1",
        lambda text: (tf.strings.substr(text, 0, 1), trimmed(text)[1]),
        names=ONE,
    )
    result = check_export(half, fuzz_strings=200)
    assert not result["ok"] and "can't decode" in result["fuzz"]["detail"]
    shutil.rmtree(half / "variables")
    (half / "saved_model.pb").write_bytes(b"no model")
    assert check_export(half, fuzz_strings=9)["fuzz"]["detail"].startswith("not run")


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32])
def test_half_precision_may_choose_another_translation_as_good(tmp_path, dtype):
    """Where the scores agree to two digits; float32 may not."""

    def translate(text):
        translation, score = trimmed(text)
        score = tf.cast(tf.cast(score, dtype) * 1, tf.float32)
        is_batch = tf.shape(text)[0] > 1
        return tf.where(is_batch, tf.strings.join([translation, "!"]), translation), score

    path = save(tmp_path / "1", translate, names=ONE)
    write_card(path, precision=dtype.name)
    found = {"batch_mates", "python_translator"} & set(failures(path))
    assert found == (set() if dtype == tf.bfloat16 else {"batch_mates", "python_translator"})
    write_card(path, precision="bfloat16" if dtype == tf.float32 else "float32")
    assert "half precision is" in failures(path)["model_card"]
