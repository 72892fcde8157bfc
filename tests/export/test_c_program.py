"""The C program that runs an export: what it reads, what it prints, and what it refuses."""

import subprocess

import numpy as np
import pytest
import tensorflow as tf

from export import c_program as module
from export.c_program import SOURCE, c_program, ops_library, run_in_c
from export.session import ExportSession


@pytest.fixture(scope="module")
def program():
    return c_program()


def call(program, *arguments, lines=b""):
    return subprocess.run(
        [program, *arguments], input=lines, env={"TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True
    )


ROWS = {
    "serving_default": [("two",), ("three six",), ("",), ("a\tb",)],
    "n_best": [("two",), ("🙂 ß",)],
    "score": [("two", "zwei"), ("", ""), ("three six", "drei\tsechs")],
    "align": [("two", "zwei"), ("three six two", "")],
}


@pytest.mark.parametrize("signature", ROWS)
def test_it_gives_the_sessions_outputs_of_all_dtypes_and_ranks(program, good, signature):
    rows = ROWS[signature]
    session = ExportSession(good)
    (found,) = run_in_c(program, good, signature, rows)
    names = sorted(session.signatures[signature].inputs)
    expected = session.run(signature, **dict(zip(names, zip(*rows, strict=True), strict=True)))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        np.testing.assert_array_equal(found[name], value)


def test_lines_run_in_batches(program, good):
    rows = [(f"number {i}",) for i in range(5)]
    batches = run_in_c(program, good, "serving_default", rows, batch_size=2)
    assert [len(batch["score"]) for batch in batches] == [2, 2, 1]
    together = np.concatenate([batch["translation"] for batch in batches])
    assert together.tolist() == [row[0].encode() for row in rows]


def test_no_line_is_one_empty_batch(program, good):
    (batch,) = run_in_c(program, good, "serving_default", [])
    assert {name: value.shape for name, value in batch.items()} == {
        "score": (0,),
        "translation": (0,),
        "truncated": (0,),
    }


def test_what_it_prints(program, good):
    arguments = (ops_library(), good, "serving_default", "2")
    done = call(program, *arguments, lines=b"two\r\n\nthree\0 six")
    assert done.stdout.decode().split("\n") == [
        *("score float32 2", "-3", "-0", "translation string 2", "two", ""),
        *("truncated bool 2", "false", "false"),
        *("score float32 1", "-10", "translation string 1", "three\0 six"),
        *("truncated bool 1", "false", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: run_saved_model OPS_LIBRARY MODEL SIGNATURE [BATCH_SIZE] < LINES"),
        (["library", "model", "serving_default"], "library: "),
        (["LIBRARY", "nowhere", "serving_default"], "nowhere: Could not find SavedModel"),
        (["LIBRARY", "GOOD", "other"], "other: is no signature of this model"),
        (["LIBRARY", "GOOD", "score"], "standard input: has a line with too few tabs"),
        (["LIBRARY", "GOOD", "score", "0"], "BATCH_SIZE: must be 1 to 1048576"),
    ],
)
def test_what_it_refuses(program, good, arguments, message):
    names = {"LIBRARY": ops_library(), "GOOD": good}
    done = call(program, *(names.get(name, name) for name in arguments), lines=b"two\n")
    assert done.returncode == 1 and message in done.stderr.decode() and done.stdout == b""


def save(path, function, dtype=tf.string):
    serve = tf.function(function, input_signature=[tf.TensorSpec([None], dtype, name="text")])
    holder = tf.Module()
    holder.serve = serve
    tf.saved_model.save(holder, str(path), {"serving_default": serve})
    return path


def test_it_has_xla_off_as_a_server_has(program, tmp_path):
    """Else it would not show that an export needs none."""

    @tf.function(jit_compile=True)
    def compiled(x):
        return x * 2.0

    path = save(
        tmp_path, lambda text: {"y": compiled(tf.cast(tf.strings.length(text), tf.float32))}
    )
    with pytest.raises(RuntimeError, match="XLA compilation disabled"):
        run_in_c(program, path, "serving_default", [("two",)])


@pytest.mark.parametrize(
    ("function", "dtype", "message"),
    [
        (lambda text: {"y": text + "\n"}, tf.string, "y: holds a line feed"),
        (lambda text: {"y": tf.strings.to_number(text, tf.int64)}, tf.string, "y: is neither"),
        (lambda text: {"y": text}, tf.float32, "text: is no string tensor"),
    ],
)
def test_tensors_that_it_cannot_read_or_print(program, tmp_path, function, dtype, message):
    with pytest.raises(RuntimeError, match=message):
        run_in_c(program, save(tmp_path, function, dtype), "serving_default", [("2",)])


def test_it_is_compiled_once_a_process(program):
    assert c_program() is program and program.exists()


def test_without_a_compiler_there_is_none(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert c_program.__wrapped__() is None


def test_what_the_compiler_says_is_raised(monkeypatch, tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("int main(void) { return x; }\n")
    monkeypatch.setattr(module, "SOURCE", source)
    with pytest.raises(RuntimeError, match="broken.c:1:.*error"):
        c_program.__wrapped__()


def test_its_source_is_within_the_house_rules():
    lines = SOURCE.read_text().split("\n")
    assert len(lines) < 400 and max(map(len, lines)) <= 100
