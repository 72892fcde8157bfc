"""Requests that TensorFlow Serving sends to a version before it answers with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from export.session import ExportSession
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator

# Where TensorFlow Serving looks for them.
WARM_UP_REQUESTS = "assets.extra/tf_serving_warmup_requests"

_LONG_TOKENS = 100
_BATCH_SENTENCES = 32

Columns = dict[str, list[str]]


def warm_up_columns(
    translator: Translator, sample: Sequence[str], inputs: Mapping[str, Sequence[str]]
) -> list[tuple[str, Columns]]:
    """For each signature a short text, a long one, an empty one and a batch.

    Args:
        translator: `Translator`. Its translations go with the texts where a signature wants both.
        sample: texts like those to be served.
        inputs: for each signature the names of its inputs.

    Returns:
        A list of tuples: a signature's name, and the texts of each of its inputs.
    """
    words = sorted((text for text in sample if text.strip()), key=len)
    batch = [words[i % len(words)] for i in range(_BATCH_SENTENCES)]
    texts = [[words[0]], [_long_text(translator, words)], [""], batch]
    results = [[found[0].text for found in translator.translate(each)] for each in texts]
    return [
        # The translations go nowhere where a signature wants texts alone.
        (signature, dict(zip(names, columns, strict=False)))
        for signature, names in inputs.items()
        for columns in zip(texts, results, strict=True)
    ]


def write_warm_up_requests(path: Path, requests: Sequence[tuple[str, Columns]]) -> None:
    """Writes requests into a version as TFRecords of `PredictionLog`.

    Args:
        path: path of the version.
        requests: as `warm_up_columns` returns them.
    """
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    file = path / WARM_UP_REQUESTS
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, columns in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "translator"  # any name: the server knows whose file it is
            request.model_spec.signature_name = signature
            for name, texts in columns.items():
                values = np.array([text.encode() for text in texts], dtype=object)
                request.inputs[name].CopyFrom(tf.make_tensor_proto(values, tf.string))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())


def run_warm_up_requests(path: Path, session: ExportSession) -> int:
    """Runs each request of a version as a server does that loads it; returns how many they are.

    Raises:
        InputError: where one cannot be read or fails.
    """
    from tensorflow_serving.apis import prediction_log_pb2

    number = 0
    file = path / WARM_UP_REQUESTS
    try:
        for record in tf.data.TFRecordDataset(str(file)):
            number += 1
            request = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            request = request.predict_log.request
            columns = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            session.run(request.model_spec.signature_name, **columns)
    except Exception as error:  # protobuf's and TensorFlow's errors of many kinds
        message = str(error).strip().split("\n")[0]
        raise InputError(
            f"Each warm-up request must run. Received from request {number} of {file}: "
            f"{type(error).__name__}: {message}"
        ) from error
    return number


def _long_text(translator: Translator, words: Sequence[str]) -> str:
    """A text repeated to 50 to 100 tokens, or half of what is read and more."""
    limit = min(_LONG_TOKENS, translator.maximum_source_length)
    text = words[-1]
    while len(translator.tokenizer.source.encode(text)) < limit // 2:
        text = f"{text} {text}"
    return text
