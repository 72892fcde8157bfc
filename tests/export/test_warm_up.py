"""Warm-up requests, read back as TensorFlow Serving reads them."""

import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from export.session import ExportSession
from export.signatures import INPUTS
from export.warm_up import (
    WARM_UP_REQUESTS,
    run_warm_up_requests,
    warm_up_columns,
    write_warm_up_requests,
)
from keras_transformer.errors import InputError


def read(path):
    """The requests of a version: signature, and the texts of each input."""
    found = []
    for record in tf.data.TFRecordDataset(str(path / WARM_UP_REQUESTS)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        columns = {}
        for name, value in request.inputs.items():
            assert value.dtype == tf.string.as_datatype_enum
            columns[name] = [text.decode() for text in tf.make_ndarray(value)]
        found.append((request.model_spec.signature_name, columns))
    return found


@pytest.fixture(scope="module")
def requests(numbers_export):
    return read(numbers_export)


@pytest.fixture(scope="module")
def translator(numbers_run):
    return numbers_run.load_translator()


@pytest.mark.parametrize("signature", INPUTS)
def test_each_signature_gets_a_short_a_long_an_empty_text_and_a_batch(
    requests, signature, translator
):
    short, long, empty, batch = (columns for name, columns in requests if name == signature)
    tokenizer = translator.tokenizer.source
    first, *others = INPUTS[signature]
    assert [len(each[first]) for each in (short, long, empty, batch)] == [1, 1, 1, 32]
    assert len(tokenizer.encode(short[first][0])) < 5 < 10 < len(tokenizer.encode(long[first][0]))
    assert empty[first] == [""] and "" not in batch[first]
    for columns in (short, long, empty, batch):
        assert set(columns) == set(INPUTS[signature])
        # What goes with the texts are their translations.
        translations = [best[0].text for best in translator.translate(columns[first])]
        assert all(columns[name] == translations for name in others)


def test_there_are_not_more_than_a_server_takes(requests):
    assert len(requests) == 16


def test_all_run_in_a_session(numbers_export):
    assert run_warm_up_requests(numbers_export, ExportSession(numbers_export)) == 16


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([("serving_default", {"text": ["two"]}), ("other", {"text": ["two"]})], "request 2"),
        ([("serving_default", {"texts": ["two"]})], "request 1"),
        ([("score", {"source": ["two", "six"], "target": ["zwei"]})], "request 1"),
    ],
)
def test_a_request_that_fails_is_named(numbers_export, tmp_path, requests, message):
    write_warm_up_requests(tmp_path, requests)
    session = ExportSession(numbers_export)
    with pytest.raises(InputError, match=rf"must run\. Received from {message} of \S+: [^\n]+$"):
        run_warm_up_requests(tmp_path, session)


@pytest.mark.parametrize("content", [b"no record at all", b""])
def test_a_file_of_something_else_is_refused_or_empty(numbers_export, tmp_path, content):
    (tmp_path / WARM_UP_REQUESTS).parent.mkdir()
    (tmp_path / WARM_UP_REQUESTS).write_bytes(content)
    session = ExportSession(numbers_export)
    if not content:
        assert run_warm_up_requests(tmp_path, session) == 0
        return
    with pytest.raises(InputError, match="must run"):
        run_warm_up_requests(tmp_path, session)


def test_the_long_text_is_no_longer_than_is_read(numbers_run):
    translator = numbers_run.load_translator(maximum_source_length=5)
    columns = warm_up_columns(translator, ["two six", ""], {"serving_default": ("text",)})
    texts = [column["text"][0] for _, column in columns]
    assert texts[1].startswith("two six") and len(texts) == 4
    assert len(translator.tokenizer.source.encode(texts[1])) <= 10
