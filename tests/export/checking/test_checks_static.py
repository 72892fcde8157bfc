"""The gates on what an export's files say: each fails on what was planted for it."""

import shutil

import pytest
import tensorflow as tf
from planted_exports import (
    ONE,
    edit_graph,
    failures,
    read_graph,
    save,
    trimmed,
)
from tensorflow.core.protobuf import meta_graph_pb2

pytestmark = pytest.mark.usefixtures("no_compiler")


def function_node(meta_graph, op):
    """A node of some function of a graph."""
    for function in meta_graph.graph_def.library.function:
        for node in function.node_def:
            if node.op == op:
                return node
    raise AssertionError(op)


# Signatures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (4,), (None, None), None])
def test_another_shape_of_input_fails(tmp_path, shape):
    found = failures(save(tmp_path / "1", shape=shape), "signatures")
    assert "expected source, target: string [N]" in found["signatures"] or (
        "expected text, translation: string [N]" in found["signatures"]
    )


def test_without_the_default_signature_it_fails(tmp_path):
    found = failures(save(tmp_path / "1", names={"n_best": ("text",)}))
    assert found["signatures"] == "signature serving_default is missing"
    assert {"any_bytes", "empty_text", "python_translator"} <= set(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: {"text": out["translation"], "score": out["score"]}, "returns score: float32"),
        (lambda out: {**out, "score": tf.cast(out["score"], tf.float64)}, "score: float64 [N]"),
        (lambda out: {**out, "score": out["score"][:, None]}, "score: float32 [N, 1]"),
        (lambda out: {**out, "length": out["score"]}, "returns length: float32 [N]"),
        (lambda out: {**out, "score": tf.reduce_sum(out["score"])}, "score: float32 []"),
        (lambda out: {**out, "score": tf.ensure_shape(out["score"], [5])}, "score: float32 [5]"),
        (lambda out: {**out, "x_bytes": out["translation"]}, "x_bytes: the server returns _bytes"),
    ],
)
def test_outputs_other_than_agreed_fail(tmp_path, change, message):
    path = save(tmp_path / "1", change={"serving_default": change}, names=ONE)
    found = failures(path, "signatures")
    assert message in found["signatures"]


def test_an_input_of_another_name_fails(tmp_path):
    found = failures(save(tmp_path / "1", names={"serving_default": ("input",)}))
    assert found["signatures"].startswith("serving_default takes input: string [N], expected text")


def test_an_input_more_fails(copy):
    def add_input(meta_graph):
        inputs = meta_graph.signature_def["score"].inputs
        inputs["more"].CopyFrom(inputs["source"])

    assert "score takes more: string" in failures(edit_graph(copy, add_input))["signatures"]


def test_a_signature_that_nobody_knows_fails(copy):
    def add_signature(meta_graph):
        signatures = meta_graph.signature_def
        signatures["serve"].CopyFrom(signatures["serving_default"])

    found = failures(edit_graph(copy, add_signature))
    assert found["signatures"] == "serve is no signature that clients know"


def test_an_output_that_is_not_dense_fails(copy):
    def make_sparse(meta_graph):
        tensor = meta_graph.signature_def["score"].outputs["tokens"]
        tensor.coo_sparse.CopyFrom(meta_graph_pb2.TensorInfo.CooSparse(values_tensor_name="x:0"))

    found = failures(edit_graph(copy, make_sparse))
    assert found["signatures"] == "score/tokens is no dense tensor"


# Operations ---------------------------------------------------------------------------------------


def python_function(text):
    translation, score = trimmed(text)
    score = tf.py_function(lambda x: x, [score], tf.float32)
    return translation, tf.ensure_shape(score, [None])


def numpy_function(text):
    translation, score = trimmed(text)
    score = tf.numpy_function(lambda x: x, [score], tf.float32)
    return translation, tf.ensure_shape(score, [None])


def newer_text_op(text):
    """In TensorFlow Text since after the version that TensorFlow Serving 2.18 has."""
    from tensorflow_text.python.ops.trimmer_ops import RoundRobinTrimmer

    translation, score = trimmed(text)
    words = tf.strings.split(translation)
    (cut,) = RoundRobinTrimmer(100).trim([words])
    return tf.strings.reduce_join(cut, axis=-1, separator=" "), score


@pytest.mark.parametrize(
    ("translate", "message"),
    [
        (python_function, "EagerPyFunc needs the Python process that made it"),
        (numpy_function, "PyFunc needs the Python process that made it"),
        (newer_text_op, "TFText>RoundRobinTrim is not on the list for TensorFlow 2.18"),
    ],
)
def test_ops_that_a_server_lacks_fail(tmp_path, translate, message):
    path = save(tmp_path / "1", translate, names=ONE)
    assert message in failures(path, "operations")["operations"]


def test_an_attribute_that_an_older_server_does_not_know_fails(copy):
    def add_attribute(meta_graph):
        function_node(meta_graph, "StaticRegexReplace").attr["new_in_2_99"].b = True

    found = failures(edit_graph(copy, add_attribute))["operations"]
    assert found == "StaticRegexReplace has no attribute new_in_2_99 in TensorFlow 2.18"


def test_a_function_that_xla_must_compile_fails(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return translation, tf.function(lambda x: x * 1.0, jit_compile=True)(score)

    found = failures(save(tmp_path / "1", translate))
    assert list(found) == ["no_xla"] and "which a stock server has off" in found["no_xla"]


def test_what_xla_must_compile_fails_in_c(tmp_path, run_in_c):
    def translate(text):
        translation, score = trimmed(text)
        return translation, tf.function(lambda x: x * 1.0, jit_compile=True)(score)

    path = save(tmp_path / "1", translate, names=ONE)
    with pytest.raises(RuntimeError, match="XLA compilation disabled"):
        run_in_c(path, "serving_default", ["two"])


# Files and devices --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    ["/data/words.txt", "/words.txt", "gs://bucket/words", "file:///a", r"C:\words", r"\\host\a"],
)
def test_a_constant_that_is_a_path_fails(tmp_path, place):
    def translate(text):
        translation, score = trimmed(text)
        return tf.where(translation == place, "", translation), score

    path = save(tmp_path / "1", translate, names=ONE)
    found = failures(path, "self_contained", "operations")
    assert list(found) == ["self_contained"] and f"the path {place!r}" in found["self_contained"]


@pytest.mark.parametrize("text", ["/", "//", "a/b/c.txt", "./a", "and/or", "\n/a", "1:2", "</s>"])
def test_a_constant_that_looks_like_one_passes(tmp_path, text):
    def translate(text_in):
        translation, score = trimmed(text_in)
        return tf.where(translation == text, translation, translation), score

    path = save(tmp_path / "1", translate, names=ONE)
    assert failures(path, "self_contained") == {}


def test_a_file_read_from_an_absolute_path_fails(tmp_path):
    file = tmp_path / "suffix.txt"
    file.write_text("")

    def translate(text):
        translation, score = trimmed(text)
        return translation + tf.io.read_file(str(file)), score

    found = failures(save(tmp_path / "1", translate))
    assert set(found) == {"self_contained", "operations"}
    assert f"the path {str(file)!r}" in found["self_contained"]
    assert found["operations"] == "ReadFile reads or writes files"


def test_a_table_read_from_a_file_fails(tmp_path):
    """Though TensorFlow copies the file into the export."""
    file = tmp_path / "words.txt"
    file.write_text("two\nthree\n")
    initializer = tf.lookup.TextFileInitializer(
        *(str(file), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE),
        *(tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
    )
    module = tf.Module()
    module.table = tf.lookup.StaticHashTable(initializer, -1)

    def translate(text):
        translation, score = trimmed(text)
        return translation, score + 0.0 * tf.cast(module.table.lookup(translation), tf.float32)

    path = save(tmp_path / "1", translate, module=module)
    found = failures(path)
    assert set(found) == {"self_contained", "operations"}
    (path / "assets" / "words.txt").unlink()
    assert "session_loader" in failures(path)


@pytest.mark.parametrize("name", ["missing.txt", "../saved_model.pb", "/etc/passwd"])
def test_an_asset_that_is_not_inside_fails(copy, name):
    def add_asset(meta_graph):
        meta_graph.asset_file_def.add(filename=name).tensor_info.name = "x:0"

    found = failures(edit_graph(copy, add_asset), "self_contained")
    assert found["self_contained"] == f"the asset {name!r} is not in assets"


def test_a_link_to_another_place_fails(copy, tmp_path):
    file = next((copy / "variables").iterdir())
    shutil.move(file, tmp_path / file.name)
    file.symlink_to(tmp_path / file.name)
    assert "is a link to another place" in failures(copy)["self_contained"]


@pytest.mark.parametrize(
    "device", ["/device:CPU:1", "/device:GPU:0", "/job:worker/replica:0/task:1/device:CPU:0"]
)
def test_a_node_pinned_to_another_device_fails(copy, device):
    def pin(meta_graph):
        function_node(meta_graph, "StringLength").device = device

    found = failures(edit_graph(copy, pin), "one_device")
    assert found["one_device"] == f"1 nodes and variables are pinned to {device}"


@pytest.mark.parametrize("device", ["", "/device:CPU:0", "/job:localhost/replica:0/task:0/cpu:0"])
def test_a_node_pinned_to_the_first_cpu_passes(copy, device):
    def pin(meta_graph):
        function_node(meta_graph, "StringLength").device = device

    assert failures(edit_graph(copy, pin), "one_device") == {}


# Variables ----------------------------------------------------------------------------------------


def save_with_variables(path, **others):
    """An export whose translator adds a variable to the score, and that stores others."""
    module = tf.Module()
    module.used = tf.Variable([0.0], name="used")
    for name, value in others.items():
        setattr(module, name, tf.Variable(value, name=name))

    def translate(text):
        translation, score = trimmed(text)
        return translation, score + module.used

    return save(path, translate, module=module)


def test_variables_that_are_read_pass(tmp_path):
    path = save_with_variables(tmp_path / "1")
    assert failures(path) == {}
    assert any(node.op == "VarHandleOp" for node in read_graph(path).graph_def.node)


def test_a_stored_variable_that_nothing_reads_fails(tmp_path):
    found = failures(save_with_variables(tmp_path / "1", adam_momentum=[1.0, 2.0]))
    assert found == {"variables": "1 stored tensors that no signature reads, such as adam_momentum"}


def test_slots_of_an_optimizer_fail(tmp_path):
    """Which tracking the trained model itself, or its optimizer, brings along."""
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    module = tf.Module()
    module.used = [variable.value for variable in model.trainable_variables]
    module.slots = [variable.value for variable in model.optimizer.variables]

    def translate(text):
        translation, score = trimmed(text)
        return translation, score + 0.0 * (score[:, None] @ module.used[0])[:, 0] + module.used[1]

    found = failures(save(tmp_path / "1", translate, module=module))
    assert list(found) == ["variables"] and "6 stored tensors" in found["variables"]


def test_a_variable_that_is_not_restored_fails(tmp_path):
    path = save_with_variables(tmp_path / "1")

    def add_variable(meta_graph):
        nodes = meta_graph.graph_def.node
        left = nodes.add(name="left_behind")
        left.CopyFrom(next(node for node in nodes if node.op == "VarHandleOp"))
        left.name = "left_behind"
        left.attr["shared_name"].s = b"left_behind"
        called = meta_graph.signature_def["serving_default"].outputs["score"].name.split(":")[0]
        next(node for node in nodes if node.name == called).input.append("^left_behind")

    found = failures(edit_graph(path, add_variable))
    assert found == {"variables": "1 variables without a value, such as left_behind"}
