"""Exports, and the three kinds of programs that load them: Python, sessions, and C."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from expected_outputs import assert_outputs, columns, expected_outputs, loaded_outputs
from small_translators import SENTENCES, number_tokenizer, random_model
from tensorflow.core.protobuf import saved_model_pb2

from export.checking.checks import check_export
from export.loaded import ExportedTranslator
from export.saved_model import export_translator
from export.signatures import INPUTS
from keras_transformer.translator import Translator

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def translator(numbers_run):
    return numbers_run.load_translator()


@pytest.fixture(scope="module")
def expected(translator):
    return expected_outputs(translator, SENTENCES)


# Loaders ------------------------------------------------------------------------------------------


def test_a_process_with_tensorflow_alone_gives_pythons_translations(numbers_export, expected):
    """In both loaders, from another directory, with nothing left of the run."""
    found = loaded_outputs(sys.executable, numbers_export, SENTENCES, expected)
    assert len(found) == 8
    for name, outputs in found.items():
        assert_outputs(outputs, expected[name.split("/")[1]])


@pytest.mark.parametrize("signature", INPUTS)
def test_a_c_program_gives_pythons_translations(run_in_c, numbers_export, expected, signature):
    best = expected["serving_default"]["translation"]
    inputs = columns(signature, SENTENCES, best).values()
    assert_outputs(run_in_c(numbers_export, signature, *inputs), expected[signature])


@pytest.fixture(scope="module")
def signatures(numbers_export):
    return tf.saved_model.load(str(numbers_export)).signatures


@pytest.mark.parametrize("count", [0, 1, 2, 5, 33])
def test_a_row_for_each_text_in_batches_of_any_size(signatures, expected, count):
    texts = (SENTENCES * 2)[:count]
    best = (expected["serving_default"]["translation"] * 2)[:count]
    for name in ("serving_default", "n_best", "score"):
        inputs = columns(name, texts, best)
        found = signatures[name](
            **{key: tf.constant(rows, tf.string, [count]) for key, rows in inputs.items()}
        )
        for key, values in expected[name].items():
            assert found[key].shape[0] == count
            if found[key].dtype != tf.string:
                np.testing.assert_allclose(
                    found[key], np.resize((values * 2)[:count], found[key].shape), atol=1e-4
                )
            else:
                texts_found = np.vectorize(bytes.decode, [object])(found[key].numpy())
                assert texts_found.tolist() == (values * 2)[:count]


def test_invalid_utf_8_is_translated_into_valid_utf_8(signatures):
    texts = [b"two \xff\xc3 six", "two \ufffd\ufffd six".encode(), b"\xed\xa0\x80", b"\xf0\x9f"]
    found = signatures["n_best"](text=tf.constant(texts))
    # Scores, since hypotheses as good as one another may come in another order.
    np.testing.assert_allclose(found["scores"][0], found["scores"][1], atol=1e-4)
    for translation in found["translations"].numpy().ravel():
        assert translation.decode().encode() == translation


# What is written ----------------------------------------------------------------------------------


def test_signatures_are_dense_tensors_named_as_agreed(numbers_export):
    model = saved_model_pb2.SavedModel.FromString((numbers_export / "saved_model.pb").read_bytes())
    (meta_graph,) = model.meta_graphs
    assert list(meta_graph.meta_info_def.tags) == ["serve"]

    def tensors(infos):
        assert all(info.WhichOneof("encoding") == "name" for info in infos.values())
        return {
            name: (
                tf.dtypes.as_dtype(info.dtype).name,
                [dimension.size for dimension in info.tensor_shape.dim],
            )
            for name, info in infos.items()
        }

    signatures = {
        name: (tensors(signature.inputs), tensors(signature.outputs))
        for name, signature in meta_graph.signature_def.items()
        if not name.startswith("__")
    }
    row, truncated = ("string", [-1]), {"truncated": ("bool", [-1])}
    assert signatures == {
        "serving_default": (
            {"text": row},
            {"translation": ("string", [-1]), "score": ("float32", [-1]), **truncated},
        ),
        "n_best": (
            {"text": row},
            {"translations": ("string", [-1, 3]), "scores": ("float32", [-1, 3]), **truncated},
        ),
        "score": (
            {"source": row, "target": row},
            {"log_probability": ("float32", [-1]), "tokens": ("int32", [-1]), **truncated},
        ),
        "align": (
            {"text": row, "translation": row},
            {
                "source_pieces": ("string", [-1, -1]),
                "target_pieces": ("string", [-1, -1]),
                "source_lengths": ("int32", [-1]),
                "target_lengths": ("int32", [-1]),
                "attention": ("float32", [-1, -1, -1]),
                **truncated,
            },
        ),
    }


def test_a_version_is_complete_and_says_what_python_translates(numbers_export, translator):
    assert {path.name for path in numbers_export.parent.iterdir()} == {"1"}
    assert {path.name for path in numbers_export.iterdir()} >= {
        "assets.extra",
        "saved_model.pb",
        "variables",
    }
    text = (numbers_export / "assets.extra/expected_translations.json").read_bytes().decode()
    entries = json.loads(text)["translations"]
    assert [entry["text"] for entry in entries[:2]] == ["one two three", "six"]
    assert {"", "   "} <= {entry["text"] for entry in entries} and "🙂" in text
    assert any(entry["same_tokens"] for entry in entries)
    for entry, (best, *_) in zip(
        entries, translator.translate([entry["text"] for entry in entries]), strict=True
    ):
        assert entry["translation"] == best.text
        assert entry["score"] == pytest.approx(best.score, abs=1e-4)
        ((log_probability, tokens),) = translator.score([entry["text"]], [best.text])
        assert entry["log_probability"] == pytest.approx(log_probability, abs=1e-4)
        assert entry["tokens"] == tokens
        undone = best.score * ((5 + tokens) / 6) ** translator.rules.alpha
        assert entry["same_tokens"] == (abs(undone - log_probability) < 1e-3)


def test_greedy_search_is_the_same_in_python_and_exported(numbers_run, run_in_c, tmp_path):
    greedy = numbers_run.load_translator(beam_size=1)
    expected = expected_outputs(greedy, SENTENCES)
    assert all(expected["serving_default"]["translation"][0:2])
    path = export_translator(greedy, tmp_path / "base")
    assert path == tmp_path / "base" / "1"
    assert_outputs(run_in_c(path, "serving_default", SENTENCES), expected["serving_default"])
    exported = ExportedTranslator(path).translate(SENTENCES)
    assert [[each.text for each in found] for found in exported] == [
        [each.text for each in found] for found in greedy.translate(SENTENCES)
    ]


# Versions -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        ("mixed_bfloat16", {}),
        ("mixed_float16", {"norm": "pre"}),
        (None, {"norm": "pre", "activation": "gelu", "attention_bias": True}),
        (None, {"positions": "learned", "maximum_positions": 6, "activation": "swish"}),
        (None, {"d_k": 5, "d_v": 3, "tying": "output"}),
        (None, {"tying": "none"}),
        (None, {"attention_window": 3, "attention_chunk": 2}),
        ("mixed_bfloat16", {"attention_chunk": 3, "compatibility": "additive"}),
    ],
)
def test_models_of_every_kind_export(run_in_c, tmp_path, dtype, changes):
    separate = changes.get("tying") == "none"
    tokenizer = number_tokenizer(vocabulary_size=300, shared=not separate)
    model = random_model(tokenizer, dtype=dtype, **changes)
    translator = Translator(model, tokenizer, 2, 0.6, 6)
    path = export_translator(translator, tmp_path, sample=tuple(SENTENCES[:4]))
    result = check_export(path)
    assert result["ok"], result
    assert_outputs(
        run_in_c(path, "n_best", SENTENCES), expected_outputs(translator, SENTENCES)["n_best"]
    )


@pytest.mark.slow
def test_chunks_translate_as_the_same_model_without_them(run_in_c, tmp_path):
    tokenizer = number_tokenizer(vocabulary_size=300)
    models = [random_model(tokenizer, attention_chunk=chunk) for chunk in (2, None)]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    in_chunks, whole = (Translator(model, tokenizer, 2, 0.6, 6) for model in models)
    path = export_translator(in_chunks, tmp_path)
    expected = expected_outputs(whole, SENTENCES)
    for signature in ("n_best", "align"):
        best = expected["serving_default"]["translation"]
        inputs = columns(signature, SENTENCES, best).values()
        assert_outputs(run_in_c(path, signature, *inputs), expected[signature])


@pytest.mark.slow
def test_a_model_trained_on_two_replicas_runs_on_one(run_in_c, tmp_path):
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)])
    done = subprocess.run(
        [sys.executable, HERE / "export_from_replicas.py", tmp_path],
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert len(set(expected["serving_default"]["translation"])) > 3
    result = check_export(tmp_path / "base")
    assert result["ok"], result
    for signature, outputs in expected.items():
        assert_outputs(run_in_c(tmp_path / "base/1", signature, SENTENCES), outputs)
