"""Stands in for TensorFlow Serving's gRPC API, with the official protos."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import tensorflow as tf
from served_model import Model, Refused, Status, braces
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)


class _Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model: Model) -> None:
        self._model = model

    def Predict(self, request, context):  # noqa: N802  the protocol's name
        try:
            return self._predict(request)
        except Refused as refused:
            context.abort(refused.status, refused.message)

    def GetModelMetadata(self, request, context):  # noqa: N802
        reply = get_model_metadata_pb2.GetModelMetadataResponse()
        try:
            self._model.find(request.model_spec.name)
        except Refused as refused:
            context.abort(refused.status, refused.message)
        reply.model_spec.name = self._model.name
        reply.model_spec.version.value = self._model.version
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, signature in self._model.session.signatures.items():
            signatures.signature_def[name].CopyFrom(signature)
        reply.metadata["signature_def"].Pack(signatures)
        return reply

    def _predict(self, request):
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        self._model.find(spec.name, version, spec.version_label)
        signature = spec.signature_name or "serving_default"
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        outputs = self._model.run(signature, inputs)
        for name in request.output_filter:
            if name not in outputs:
                raise Refused(
                    Status.INVALID_ARGUMENT,
                    f"output tensor alias not found in signature: {name} Outputs expected to be "
                    f"in the set {braces(set(outputs))}.",
                )
        reply = predict_pb2.PredictResponse()
        reply.model_spec.name = spec.name
        reply.model_spec.version.value = self._model.version
        reply.model_spec.signature_name = signature
        for name in request.output_filter or outputs:
            reply.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name]))
        return reply


@contextmanager
def grpc_double(model: Model, port: int = 0) -> Iterator[str]:
    """A server in this process; gives its URL."""
    pool = futures.ThreadPoolExecutor(64)
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(pool, options=options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_Servicer(model), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
        pool.shutdown()
