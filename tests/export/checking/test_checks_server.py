"""The gates on what TensorFlow Serving demands: each fails on what was planted for it."""

import pytest
import tensorflow as tf
from planted_exports import INPUTS, failures, save, trimmed, write_warm_up
from tensorflow_serving.apis import prediction_log_pb2

from export.warm_up import WARM_UP_REQUESTS, write_warm_up_requests

pytestmark = pytest.mark.usefixtures("no_compiler")


# Batches ------------------------------------------------------------------------------------------


def test_rows_that_depend_on_the_filler_fail(tmp_path):
    """As the mean over a batch does, of which a server may have filled half."""

    def translate(text):
        translation, score = trimmed(text)
        # Batches of any size but those that the server fills up to are right.
        is_filled = tf.reduce_any(tf.equal(tf.size(text), [4, 8, 16]))
        return translation, tf.where(is_filled, score - 0.5, score)

    found = failures(save(tmp_path / "1", translate))
    assert "server_batching" in found and "batch_mates" not in found
    assert "alone and in a batch of (2, 1) filled to 4 gave score" in found["server_batching"]


def test_a_row_that_repeats_the_one_before_must_get_what_that_got(tmp_path):
    """Filler rows do so."""

    def translate(text):
        translation, score = trimmed(text)
        last = tf.concat([text[1:], tf.fill([tf.minimum(1, tf.size(text))], "none")], axis=0)
        return tf.where(tf.equal(text, last), "again", translation), score

    found = failures(save(tmp_path / "1", translate))
    assert list(found) == ["server_batching"]


def test_an_output_with_another_leading_dimension_cannot_be_split(tmp_path):
    def flatten(out):
        return {**out, "scores": tf.reshape(out["scores"], [-1, 1])}

    found = failures(
        save(tmp_path / "1", change={"n_best": flatten}), "server_batching", "rest_rows"
    )
    assert found["server_batching"].startswith("n_best: 1 rows in, scores has shape (2, 1)")
    assert "inconsistent batch size" in found["rest_rows"]


# JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have_fail(tmp_path, value):
    def spoil(out):
        return {**out, "log_probability": tf.fill(tf.shape(out["log_probability"]), value)}

    found = failures(save(tmp_path / "1", change={"score": spoil}))
    for name in ("rest_rows", "rest_columns"):
        assert "score: the answer is no legal JSON" in found[name]
    assert {"any_bytes", "score"} <= set(found)


def test_answers_that_differ_from_call_to_call_fail(tmp_path):
    def translate(text):
        translation, score = trimmed(text)
        return translation, score + tf.cast(tf.timestamp() % 1, tf.float32) * 1e3

    found = failures(save(tmp_path / "1", translate))
    assert "what was read back is not what was written" in found["rest_rows"]
    assert "what was read back is not what was written" in found["rest_columns"]


# Warm-up ------------------------------------------------------------------------------------------


def write_records(path, *records):
    with tf.io.TFRecordWriter(str(path / WARM_UP_REQUESTS)) as writer:
        for record in records:
            writer.write(record)


def columns(name, *texts):
    return [(name, {key: each for key in INPUTS[name]}) for each in texts]


@pytest.mark.parametrize("what", ["missing", "cut", "no records", "no messages", "another type"])
def test_a_file_that_is_none_fails(copy, what):
    file = copy / WARM_UP_REQUESTS
    if what == "missing":
        file.unlink()
    elif what == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    elif what == "no records":
        file.write_bytes(b"text\n" * 100)
    elif what == "no messages":
        write_records(copy, b"\xff\xff\xff")
    else:
        log = prediction_log_pb2.PredictionLog()
        log.classify_log.request.model_spec.name = "translator"
        write_records(copy, log.SerializeToString())
    assert list(failures(copy, "warm_up")) == ["warm_up"]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "0 requests; the server takes 1 to 1000"),
        (columns("score", ["two"]) * 1001, "1001 requests; the server takes 1 to 1000"),
        ([("serve", {"text": ["two"]})], "request 1 is for serve, which is not exported"),
        ([("score", {"source": ["two"]})], "request 1 for score sends ['source']"),
        (
            [("n_best", {"text": ["two"], "more": ["two"]})],
            "request 1 for n_best sends ['more', 'text']",
        ),
        (
            columns("n_best", ["two"], ["three " * 20], [""]),
            "no request for serving_default has an empty text",
        ),
    ],
)
def test_requests_that_the_server_refuses_fail(copy, requests, message):
    write_warm_up_requests(copy, requests)
    assert failures(copy, "warm_up") == {"warm_up": message}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((["two"], ["three " * 20], ["a", "b"]), "an empty text"),
        ((["two"], [""], ["a", "b"]), "a short and a long text"),
        ((["two"], ["three " * 20], [""]), "a batch"),
    ],
)
def test_a_kind_of_request_that_is_missing_fails(copy, texts, message):
    requests = [each for name in INPUTS for each in columns(name, *texts)]
    write_warm_up_requests(copy, requests)
    assert failures(copy, "warm_up") == {"warm_up": f"no request for serving_default has {message}"}


def test_a_request_that_fails_when_it_runs_fails(tmp_path):
    def translate(text):
        no_long = tf.reduce_all(tf.strings.length(text) != len("three six " * 20))
        with tf.control_dependencies([tf.debugging.Assert(no_long, ["planted"])]):
            return trimmed(tf.identity(text))

    path = save(tmp_path / "1", translate)
    write_warm_up(path)
    found = failures(path)
    assert list(found) == ["warm_up"]
    assert found["warm_up"].startswith("request 2 for serving_default fails: ")


def test_a_request_without_a_signature_means_the_default(copy):
    names = [*INPUTS]
    texts = (["two"], ["three " * 20], [""], ["a", "b"])
    requests = [each for name in names for each in columns(name, *texts)]
    requests[0] = ("", requests[0][1])
    write_warm_up_requests(copy, requests)
    assert failures(copy, "warm_up") == {}
