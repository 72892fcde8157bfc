"""The gate on the requests that TensorFlow Serving sends to a version before it answers with it."""

from __future__ import annotations

import tensorflow as tf

from export.checking.contract import DEFAULT, SIGNATURES
from export.checking.examined import ExaminedExport, GateFailed, Row, first_dimension
from export.warm_up import WARM_UP_REQUESTS

# As many as the server takes; more are an error.
_MOST_WARM_UP_REQUESTS = 1000


def warm_up(export: ExaminedExport) -> str:
    """Each warm-up request runs, and a short, a long and an empty text and a batch are there."""
    from tensorflow_serving.apis import prediction_log_pb2

    file = export.path / WARM_UP_REQUESTS
    if not file.is_file():
        raise GateFailed(f"{WARM_UP_REQUESTS} is missing")
    requests = []
    for record in tf.data.TFRecordDataset(str(file)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        if (kind := log.WhichOneof("log_type")) != "predict_log":
            raise GateFailed(f"request {len(requests) + 1} is of the type {kind}, not predict_log")
        requests.append(log.predict_log.request)
    if not 1 <= len(requests) <= _MOST_WARM_UP_REQUESTS:
        raise GateFailed(f"{len(requests)} requests; the server takes 1 to 1000")
    rows: dict[str, list[list[Row]]] = {}
    for number, request in enumerate(requests, 1):
        signature = request.model_spec.signature_name or DEFAULT
        if signature not in export.signatures:
            raise GateFailed(f"request {number} is for {signature}, which is not exported")
        names = SIGNATURES[signature].inputs
        if set(request.inputs) != set(names):
            raise GateFailed(f"request {number} for {signature} sends {sorted(request.inputs)}")
        columns = [tf.make_ndarray(request.inputs[name]) for name in names]
        found: list[Row] = list(zip(*(column.tolist() for column in columns), strict=True))
        try:
            first_dimension(export.run(signature, found), len(found), signature)
        except GateFailed:
            raise
        except Exception as error:
            raise GateFailed(f"request {number} for {signature} fails: {error}") from error
        rows.setdefault(signature, []).append(found)
    for signature in export.signatures:
        _check_kinds(signature, rows.get(signature, []))
    return f"{len(requests)} requests, all run"


def _check_kinds(signature: str, requests: list[list[Row]]) -> None:
    single = sorted(len(request[0][0]) for request in requests if len(request) == 1)
    lengths = [length for length in single if length > 0]
    for kind, is_there in (
        ("an empty text", 0 in single),
        ("a short and a long text", bool(lengths) and lengths[-1] >= 2 * lengths[0]),
        ("a batch", any(len(request) > 1 for request in requests)),
    ):
        if not is_there:
            raise GateFailed(f"no request for {signature} has {kind}")
