"""Exports, and the three kinds of programs that load them: Python, sessions, and C."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from small_translators import SENTENCES, number_tokenizer, random_model
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer
from export import saved_model
from export.checks import check_export
from export.loaded import ExportedTranslator
from export.saved_model import export_translator, next_version
from keras_transformer.errors import InputError
from keras_transformer.search import EMPTY_SCORE
from keras_transformer.translator import Translator

HERE = Path(__file__).parent
SITE_PACKAGES = Path(tf.__file__).parent.parent
OPS_LIBRARY = SITE_PACKAGES / "tensorflow_text/python/ops/_sentencepiece_tokenizer.so"

# A program that knows TensorFlow and TensorFlow Text only, as a server does.
LOAD = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text

path, texts = sys.argv[1], json.load(sys.stdin)
results = {}
loaded = tf.saved_model.load(path)
for name, signature in loaded.signatures.items():
    outputs = signature(text=tf.constant(texts, tf.string, [len(texts)]))
    results["python/" + name] = {key: value.numpy() for key, value in outputs.items()}
with tf.compat.v1.Session(graph=tf.Graph()) as session:
    meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], path)
    for name in ("serving_default", "n_best"):
        signature = meta_graph.signature_def[name]
        results["session/" + name] = session.run(
            {key: info.name for key, info in signature.outputs.items()},
            {signature.inputs["text"].name: np.array(texts, dtype=object)},
        )
assert not {"keras_transformer", "export", "keras_nlp", "keras_hub"} & set(sys.modules)
print(json.dumps({
    name: {
        key: np.vectorize(lambda x: x.decode() if isinstance(x, bytes) else float(x), [object])(
            value
        ).tolist()
        for key, value in outputs.items()
    }
    for name, outputs in results.items()
}))
"""


@pytest.fixture(scope="module")
def translator(numbers_run):
    return numbers_run.load_translator()


@pytest.fixture(scope="module")
def expected(translator):
    return expected_outputs(translator, SENTENCES)


def expected_outputs(translator, texts) -> dict[str, dict[str, list]]:
    """What both signatures must return."""
    rows = [
        (found + [("", EMPTY_SCORE)] * translator.beam_size)[: translator.beam_size]
        for found in translator.translate(texts)
    ]
    translations = [[text for text, _ in row] for row in rows]
    scores = [[score for _, score in row] for row in rows]
    return {
        "n_best": {"translations": translations, "scores": scores},
        "serving_default": {
            "translation": [row[0] for row in translations],
            "score": [row[0] for row in scores],
        },
    }


def assert_outputs(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if "score" in name:
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-4)
        else:
            assert found[name] == value


@pytest.fixture(scope="module")
def run_in_c(tmp_path_factory):
    """`run_in_c(path, signature, texts)`: the outputs that run_saved_model.c prints."""
    program = tmp_path_factory.mktemp("c") / "run_saved_model"
    tensorflow = SITE_PACKAGES / "tensorflow"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", HERE / "run_saved_model.c"]
    command += ["-isystem", tensorflow / "include", f"-L{tensorflow}", f"-Wl,-rpath,{tensorflow}"]
    command += ["-Wl,--no-as-needed", "-l:libtensorflow_cc.so.2"]
    command += ["-l:libtensorflow_framework.so.2", "-o", program]
    subprocess.run(command, check=True)

    def run(path, signature, texts):
        done = subprocess.run(
            [program, OPS_LIBRARY, path, signature, *texts],
            env={"TF_CPP_MIN_LOG_LEVEL": "3"},
            cwd="/",
            capture_output=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        lines = iter(done.stdout.decode().split("\n")[:-1])
        outputs = {}
        for line in lines:
            name, *shape = line.split(" ")
            shape = [int(size) for size in shape]
            values = [next(lines) for _ in range(int(np.prod(shape)))]
            if "score" in name:
                values = [float(value) for value in values]
            outputs[name] = np.array(values, dtype=object).reshape(shape).tolist()
        return outputs

    return run


# Loaders ------------------------------------------------------------------------------------------


def test_a_process_with_tensorflow_alone_gives_pythons_translations(numbers_export, expected):
    """In both loaders, from another directory, with nothing left of the run."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, numbers_export],
        input=json.dumps(SENTENCES),
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == 4
    for name, outputs in found.items():
        assert_outputs(outputs, expected[name.split("/")[1]])


@pytest.mark.parametrize("signature", ["serving_default", "n_best"])
def test_a_c_program_gives_pythons_translations(run_in_c, numbers_export, expected, signature):
    assert_outputs(run_in_c(numbers_export, signature, SENTENCES), expected[signature])


def test_a_c_program_translates_an_empty_batch(run_in_c, numbers_export):
    assert run_in_c(numbers_export, "serving_default", []) == {"score": [], "translation": []}


def test_the_c_program_has_xla_off(run_in_c, tmp_path):
    """Else it would not show that an export needs none."""

    @tf.function(jit_compile=True)
    def compiled(x):
        return x * 2.0

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(text):
        return {"score": compiled(tf.cast(tf.strings.length(text), tf.float32))}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(tmp_path / "compiled"), {"serving_default": serve})
    with pytest.raises(RuntimeError, match="XLA compilation disabled"):
        run_in_c(tmp_path / "compiled", "serving_default", ["two"])


@pytest.fixture(scope="module")
def signatures(numbers_export):
    return tf.saved_model.load(str(numbers_export)).signatures


@pytest.mark.parametrize("count", [0, 1, 2, 5, 33])
def test_a_row_for_each_text_in_batches_of_any_size(signatures, expected, count):
    texts = (SENTENCES * 2)[:count]
    for name, outputs in expected.items():
        found = signatures[name](text=tf.constant(texts, tf.string, [count]))
        for key, values in outputs.items():
            assert found[key].shape[0] == count
            if "score" in key:
                np.testing.assert_allclose(
                    found[key], np.resize((values * 2)[:count], found[key].shape), atol=1e-4
                )
            else:
                texts_found = np.vectorize(bytes.decode, [object])(found[key].numpy())
                assert texts_found.tolist() == (values * 2)[:count]


def test_invalid_utf_8_is_translated_into_valid_utf_8(signatures):
    texts = tf.constant([b"two \xff\xc3 six", b"\xed\xa0\x80", b"\xf0\x9f"])
    found = signatures["n_best"](text=texts)["translations"].numpy()
    assert found.shape == (3, 3) and all(each.decode() for each in found[:, 0])


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
    text = {"text": ("string", [-1])}
    assert signatures == {
        "serving_default": (text, {"translation": ("string", [-1]), "score": ("float32", [-1])}),
        "n_best": (text, {"translations": ("string", [-1, 3]), "scores": ("float32", [-1, 3])}),
    }


def test_a_version_is_complete_and_says_what_python_translates(numbers_export, translator):
    assert {path.name for path in numbers_export.parent.iterdir()} == {"1"}
    assert {path.name for path in numbers_export.iterdir()} >= {
        "assets.extra",
        "saved_model.pb",
        "variables",
    }
    text = (numbers_export / "assets.extra/expected_translations.json").read_bytes().decode()
    written = json.loads(text)
    assert written["versions"]["keras_transformer"] == keras_transformer.__version__
    entries = written["translations"]
    assert [entry["text"] for entry in entries[:2]] == ["one two three", "six"]
    assert {"", "   "} <= {entry["text"] for entry in entries} and "🙂" in text
    for entry, (best, *_) in zip(
        entries, translator.translate([entry["text"] for entry in entries]), strict=True
    ):
        assert entry["translation"] == best.text
        assert entry["score"] == pytest.approx(best.score, abs=1e-4)


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


@pytest.fixture
def quick(monkeypatch):
    """Writes a file in the place of the SavedModel, for tests of what is around it."""

    def write(translator, path):
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"model")

    monkeypatch.setattr(saved_model, "_write", write)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], 1),
        (["1"], 2),
        (["9", "10"], 11),
        (["v1", "1.0", "writing-7", "latest", "-3", "٣", "1a", " 5"], 1),  # noqa: RUF001
        (["v8", "2"], 3),
    ],
)
def test_the_next_version_is_one_more_than_the_highest_number(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == expected
    assert next_version(tmp_path / "not yet made") == 1


def test_versions_can_be_chosen(quick, translator, tmp_path):
    (tmp_path / "v1").mkdir()
    (tmp_path / "1.0").mkdir()
    assert export_translator(translator, tmp_path) == tmp_path / "1"
    assert export_translator(translator, tmp_path, 7) == tmp_path / "7"
    assert export_translator(translator, tmp_path) == tmp_path / "8"
    assert {path.name for path in tmp_path.iterdir()} == {"v1", "1.0", "1", "7", "8"}


def test_a_second_export_leaves_the_first_as_it_is(quick, numbers_export, translator, tmp_path):
    first = shutil.copytree(numbers_export, tmp_path / "base" / "1")
    assert export_translator(translator, tmp_path / "base") == tmp_path / "base" / "2"
    assert {path.name for path in (tmp_path / "base").iterdir()} == {"1", "2"}
    before, after = (
        {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        for path in (numbers_export, first)
    )
    assert before == after


def test_a_version_is_never_overwritten(translator, tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "mine").write_text("kept")
    with pytest.raises(InputError, match=r"exports are not overwritten\. Received: 3"):
        export_translator(translator, tmp_path, 3)
    assert [path.name for path in tmp_path.rglob("*")] == ["3", "mine"]


@pytest.mark.parametrize("version", [0, -1])
def test_versions_start_at_one(translator, tmp_path, version):
    with pytest.raises(InputError, match=rf"version must be at least 1\. Received: {version}"):
        export_translator(translator, tmp_path, version)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("a bug"), RuntimeError),
    ],
)
def test_a_failure_in_the_middle_leaves_nothing(quick, monkeypatch, tmp_path, error, raised):
    def fail(*arguments):
        raise error

    translator = object()
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(saved_model, "_write_expected", fail)
    with pytest.raises(raised):
        export_translator(translator, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_what_a_killed_export_left_is_no_version_and_goes(quick, translator, tmp_path):
    left = tmp_path / "writing-1"
    left.mkdir()
    (left / "half a model").touch()
    assert next_version(tmp_path) == 1
    path = export_translator(translator, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["1"]
    assert not (path / "half a model").exists()


def test_a_version_appears_whole(quick, monkeypatch, translator, tmp_path):
    """A server that watches the folder never sees half of it."""
    seen = []
    write_expected = saved_model._write_expected

    def watch(*arguments):
        seen.extend(path.name for path in tmp_path.iterdir())
        write_expected(*arguments)

    monkeypatch.setattr(saved_model, "_write_expected", watch)
    export_translator(translator, tmp_path)
    assert seen == ["writing-1"]


def test_a_folder_that_cannot_be_is_refused(translator, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"must be writable to .*file\. Received: .*exists"):
        export_translator(translator, tmp_path / "file")


# Slow ones ----------------------------------------------------------------------------------------


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
