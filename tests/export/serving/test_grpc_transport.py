import concurrent.futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import any_pb2
from grpc_double import grpc_double
from rest_double import rest_double
from served_model import Model, Refused, Status, Trouble
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from export.serving.grpc_transport import GrpcTransport
from export.serving.server_address import ServerAddress, ServerUnavailable, ServingError


@pytest.fixture(scope="module")
def url(session):
    with grpc_double(Model(session)) as url:
        yield url


@pytest.fixture(scope="module")
def stub(url):
    """The official client of the double, without ours."""
    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def request_for(signature="", name="translator", output_filter=(), **inputs):
    request = predict_pb2.PredictRequest(output_filter=output_filter)
    request.model_spec.name = name
    request.model_spec.signature_name = signature
    for key, values in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(values))
    return request


def refusal(stub, request):
    with pytest.raises(grpc.RpcError) as raised:
        stub.Predict(request, timeout=20)
    return raised.value.code(), raised.value.details()


def transport_to(url, timeout=10.0, model="translator"):
    return GrpcTransport(ServerAddress.parse(url, model), timeout)


class Scripted(prediction_service_pb2_grpc.PredictionServiceServicer):
    """A server that answers with one reply, whatever it is asked, and keeps the requests."""

    def __init__(self, reply):
        self.reply = reply
        self.requests = []

    def Predict(self, request, context):  # noqa: N802
        self.requests.append(request)
        return self.reply


@pytest.fixture
def scripted():
    """A function that starts such a server: reply -> (servicer, transport)."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    transports = []

    def start(reply, path=""):
        servicer = Scripted(reply)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, server)
        server.start()
        transports.append(transport_to(url + path))
        return servicer, transports[-1]

    yield start
    for transport in transports:
        transport.close()
    server.stop(0).wait()


def test_the_double_takes_no_name_for_serving_default(stub, session):
    reply = stub.Predict(request_for(text=["one two"]), timeout=20)
    assert reply.model_spec.name == "translator"
    assert reply.model_spec.version.value == 1
    assert reply.model_spec.signature_name == "serving_default"
    assert set(reply.outputs) == set(session.signatures["serving_default"].outputs)


def test_the_double_leaves_out_what_the_filter_does_not_name(stub):
    request = request_for("n_best", output_filter=["scores"], text=["one"])
    assert list(stub.Predict(request, timeout=20).outputs) == ["scores"]
    status, message = refusal(stub, request_for(output_filter=["scores"], text=["one"]))
    assert status is Status.INVALID_ARGUMENT
    assert message.startswith("output tensor alias not found in signature: scores Outputs expect")


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (
            request_for(name="x", text=["a"]),
            Status.NOT_FOUND,
            "Servable not found for request: Latest(x)",
        ),
        (
            request_for(name="", text=["a"]),
            Status.INVALID_ARGUMENT,
            "ModelSpec has no name specified.",
        ),
        (
            request_for("x", text=["a"]),
            Status.FAILED_PRECONDITION,
            'Serving signature key "x" not found.',
        ),
        (
            request_for(),
            Status.INVALID_ARGUMENT,
            "input size does not match signature: 0!=1 len({}) != len({text}). Sent extra: {}. "
            "Missing but required: {text}.",
        ),
        (
            request_for(text=["a"], more=["b"]),
            Status.INVALID_ARGUMENT,
            "input size does not match signature: 2!=1 len({more,text}) != len({text}). "
            "Sent extra: {more}. Missing but required: {}.",
        ),
        (
            request_for(words=["a"]),
            Status.INVALID_ARGUMENT,
            "input tensor alias not found in signature: words. Inputs expected to be in the set "
            "{text}.",
        ),
        (
            request_for(text=[1.0]),
            Status.INVALID_ARGUMENT,
            "Expects arg[0] to be string but float32 is provided",
        ),
        (request_for(text="a"), Status.INVALID_ARGUMENT, "text has the shape []"),
        (request_for(text=[["a"]]), Status.INVALID_ARGUMENT, "text has the shape [1, 1]"),
    ],
)
def test_the_double_refuses_what_the_server_refuses(stub, request_, status, said):
    assert refusal(stub, request_) == (status, said)


def test_the_double_knows_its_signatures(stub, session):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "translator"
    reply = stub.GetModelMetadata(request, timeout=20)
    packed = reply.metadata["signature_def"]
    assert isinstance(packed, any_pb2.Any)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(signatures)
    assert set(signatures.signature_def) == set(session.signatures)


def test_a_request_is_the_official_one(scripted):
    reply = predict_pb2.PredictResponse()
    servicer, transport = scripted(reply, "/v1/models/de/versions/3")
    assert transport.predict("n_best", {"text": [b"a\0", b"\xff", b""]}) == {}
    (request,) = servicer.requests
    assert request.model_spec.name == "de"
    assert request.model_spec.version.value == 3
    assert request.model_spec.signature_name == "n_best"
    assert list(request.inputs) == ["text"]
    array = tf.make_ndarray(request.inputs["text"])
    assert array.tolist() == [b"a\0", b"\xff", b""]


def test_a_request_names_a_label(scripted):
    servicer, transport = scripted(predict_pb2.PredictResponse(), "/v1/models/de/labels/new")
    transport.predict("serving_default", {"text": [b"a"]})
    assert servicer.requests[0].model_spec.version_label == "new"
    assert not servicer.requests[0].model_spec.HasField("version")


def test_a_request_without_texts_has_their_dtype_and_shape(scripted):
    servicer, transport = scripted(predict_pb2.PredictResponse())
    transport.predict("serving_default", {"text": []})
    array = tf.make_ndarray(servicer.requests[0].inputs["text"])
    assert (array.dtype, array.shape) == (np.object_, (0,))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (tf.resource, {}),
        (tf.float32, {"float_val": [1.0, 2.0]}),
        (tf.string, {"string_val": [b"a", b"b"]}),
        (tf.float32, {"tensor_content": b"123"}),
    ],
)
def test_a_reply_of_broken_tensors_is_an_error(scripted, dtype, values):
    reply = predict_pb2.PredictResponse()
    tensor = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, **values)
    tensor.tensor_shape.dim.add(size=1)
    reply.outputs["score"].CopyFrom(tensor)
    _, transport = scripted(reply)
    with pytest.raises(ServingError, match="must answer with whole tensors"):
        transport.predict("serving_default", {"text": [b"a"]})


@pytest.mark.parametrize(
    "status", [Status.UNAVAILABLE, Status.CANCELLED, Status.RESOURCE_EXHAUSTED]
)
def test_a_server_that_ends_may_be_asked_again(session, status):
    trouble = Trouble(failures=[Refused(status, "shutting down")])
    with grpc_double(Model(session, trouble)) as url:
        transport = transport_to(url)
        with pytest.raises(ServerUnavailable, match=f"^{status.name}: shutting down$"):
            transport.predict("serving_default", {"text": [b"one"]})
        assert transport.predict("serving_default", {"text": [b"one"]})["score"].shape == (1,)
        transport.close()


@pytest.mark.parametrize(
    "status",
    [Status.INTERNAL, Status.UNKNOWN, Status.PERMISSION_DENIED],
)
def test_any_other_status_is_final(session, status):
    trouble = Trouble(failures=[Refused(status, "no")])
    with grpc_double(Model(session, trouble)) as url:
        transport = transport_to(url)
        with pytest.raises(ServingError, match=f"Received: {status.name}: no$"):
            transport.predict("serving_default", {"text": [b"one"]})
        transport.close()


def test_requests_are_spread_over_the_addresses_of_a_name(session):
    """As those of a headless service are, by gRPC's own way to write several addresses."""
    models = [Model(session, Trouble()) for _ in range(2)]
    with grpc_double(models[0]) as one, grpc_double(models[1]) as other:
        ports = ",".join(url.removeprefix("grpc://") for url in (one, other))
        transport = GrpcTransport(ServerAddress("grpc", f"ipv4:{ports}", "translator"), 10.0)
        for _ in range(40):  # from the first ones on both connections are up
            transport.predict("serving_default", {"text": [b"one"]})
        transport.close()
    assert all(model.trouble.requests >= 5 for model in models)


def test_the_port_of_the_rest_api_is_told_apart(session):
    with rest_double(Model(session)) as url:
        transport = transport_to(url.replace("http://", "grpc://"))
        with pytest.raises(ServingError, match="must speak gRPC.* 8500, and 8501 is for http://"):
            transport.predict("serving_default", {"text": [b"one"]})
        transport.close()


def test_grpcs_speaks_tls(url):
    transport = transport_to(url.replace("grpc://", "grpcs://"), timeout=5)
    with pytest.raises(ServerUnavailable, match="(?i)ssl|tls|handshake"):
        transport.predict("serving_default", {"text": [b"one"]})
    transport.close()
