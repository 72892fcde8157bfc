"""Requests to TensorFlow Serving's gRPC API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from export.serving.server_address import ServerAddress, ServerUnavailable, ServingError, one_line

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that comes back is found within a second; the defaults grow to two minutes.
    # min_reconnect_backoff_ms is left alone: in truth it is the time that a connection may take.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Where the name has several addresses, as a headless service of Kubernetes has, requests are
    # spread over them; gRPC's default stays with the first.
    ("grpc.lb_policy_name", "round_robin"),
)
# UNAVAILABLE: no connection, one that broke, or a full queue. CANCELLED: the server shuts down.
# RESOURCE_EXHAUSTED: all its threads are taken.
_TRY_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
# What gRPC reports, as UNAVAILABLE, where the other side answers in HTTP/1.
_OTHER_PROTOCOL = ("http1.x server", "Expected SETTINGS frame")


class GrpcTransport:
    """A channel to a server; may be used by several threads at once.

    Args:
        address: `ServerAddress` with the scheme grpc or grpcs.
        timeout: float. Seconds for each request.
    """

    def __init__(self, address: ServerAddress, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        if address.has_tls:
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.secure_channel(address.location, credentials, _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.location, _OPTIONS)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[bytes]]
    ) -> dict[str, np.ndarray]:
        """Sends one request, once.

        Raises:
            ServerUnavailable: where the same request may succeed later.
            ServingError: where it will not.
        """
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._address.model
        request.model_spec.signature_name = signature
        if self._address.version is not None:
            request.model_spec.version.value = self._address.version
        if self._address.label is not None:
            request.model_spec.version_label = self._address.label
        for name, texts in inputs.items():
            # As objects: NumPy's own byte strings lose the zero bytes at their ends.
            array = np.array(texts, dtype=object)
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array, tf.string))
        try:
            reply = self._stub.Predict(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise self._meaning(error) from error
        try:
            return {name: tf.make_ndarray(tensor) for name, tensor in reply.outputs.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise ServingError(
                f"{self._address} must answer with whole tensors. Received: {one_line(error)}"
            ) from error

    def _meaning(self, error: grpc.RpcError) -> Exception:
        said = f"{error.code().name}: {one_line(error.details())}"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServingError(
                f"{self._address} must answer within the timeout of {self._timeout:g} s. "
                f"Received: {said}"
            )
        if any(words in said for words in _OTHER_PROTOCOL):
            return ServingError(
                f"{self._address} must speak gRPC; TF Serving's port for it is 8500, and 8501 is "
                f"for http://. Received: {said}"
            )
        if error.code() in _TRY_AGAIN:
            return ServerUnavailable(said)
        return ServingError(f"{self._address} must accept the request. Received: {said}")

    def close(self) -> None:
        """Closes the channel; requests that wait for an answer fail."""
        self._channel.close()
