import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import requests
from grpc_double import grpc_double
from rest_double import rest_double
from served_model import Disconnected, Model, Trouble

from export.serving.client import ServingClient
from export.serving.rest_transport import RestTransport
from export.serving.server_address import ServerAddress, ServerUnavailable, ServingError


@pytest.fixture(scope="module")
def url(session):
    with rest_double(Model(session)) as url:
        yield url


class Odd:
    """A session with the outputs that are hard to write in JSON."""

    def __init__(self, session, **outputs):
        self.signatures = session.signatures
        self.outputs = outputs

    def run(self, signature, text):
        return self.outputs


@contextlib.contextmanager
def scripted(body, status=200, headers=()):
    """A server that answers with one body; gives its URL and the list of what it was sent."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):  # noqa: N802
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, json.loads(sent)))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(url, timeout=10.0, signature="serving_default", **inputs):
    transport = RestTransport(ServerAddress.parse(url, "translator"), timeout)
    try:
        return transport.predict(signature, inputs or {"text": [b"one"]})
    finally:
        transport.close()


def post(url, body, path="/v1/models/translator:predict"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(url + path, data=data, timeout=20)


def test_the_double_answers_rows_with_rows(url, session):
    texts = ["one two", "", "fünf"]
    expected = session.run("serving_default", text=texts)
    for instances in (texts, [{"text": text} for text in texts]):
        reply = post(url, {"instances": instances}).json()
        assert list(reply) == ["predictions"]
        for row, prediction in enumerate(reply["predictions"]):
            assert set(prediction) == set(expected)
            assert prediction["translation"].encode() == expected["translation"][row]
            assert prediction["score"] == pytest.approx(float(expected["score"][row]), abs=1e-4)


def test_the_double_answers_columns_with_columns(url, session):
    texts = ["one two", "", "fünf"]
    expected = session.run("n_best", text=texts)
    for inputs in (texts, {"text": texts}, {"text": texts, "unheard": 3}):
        reply = post(url, {"signature_name": "n_best", "inputs": inputs}).json()
        assert set(reply["outputs"]) == set(expected)
        found = reply["outputs"]["translations"]
        assert [[text.encode() for text in row] for row in found] == [
            list(row) for row in expected["translations"]
        ]


def test_the_double_s_single_output_has_no_name(session):
    with rest_double(Model(Odd(session, label=np.array([b"a"], object)))) as url:
        assert post(url, {"instances": ["x"]}).json() == {"predictions": ["a"]}
        assert post(url, {"inputs": ["x"]}).json() == {"outputs": ["a"]}


def test_the_double_decodes_base64(url):
    plain = post(url, {"inputs": ["fünf sechs"]}).json()
    assert post(url, {"inputs": [{"b64": "ZsO8bmYgc2VjaHM="}]}).json() == plain
    assert post(url, {"instances": [{"b64": "ZsO8bmYgc2VjaHM="}]}).status_code == 200


def test_the_double_writes_what_is_no_json(session):
    odd = Odd(
        session,
        half=np.array([b"f\xc3"], object),
        raw_bytes=np.array([b"f\xc3"], object),
        score=np.array([np.nan], np.float32),
    )
    with rest_double(Model(odd)) as url:
        content = post(url, {"inputs": ["x"]}).content
    assert content == b'{"outputs": {"half": ["f\xc3"], "raw_bytes": [{"b64": "ZsM="}], ' + (
        b'"score": [NaN]}}'
    )


def test_the_double_has_a_status(url):
    status = requests.get(url + "/v1/models/translator", timeout=20).json()
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert requests.get(url + "/v1/models/translator/versions/1", timeout=20).status_code == 200
    assert requests.get(url + "/v1/models/x", timeout=20).status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"instances": []}, "No values in 'instances' array"),
        ({"instances": "one"}, "Excepting 'instances' to be an list/array"),
        ({"instances": ["a"], "inputs": ["a"]}, "expecting only one of 'inputs' or 'instances'"),
        ({"text": ["a"]}, "Missing 'inputs' or 'instances' key"),
        ({"instances": ["a", {"text": "b"}]}, "Expecting value at item 1"),
        ({"instances": [{"text": "a"}, "b"]}, "Expecting object at item 1"),
        ({"instances": [{"text": "a", "more": "b"}]}, "keys must be equal to: text"),
        ({"instances": [3]}, "JSON Value: 3 is not of expected type: string"),
        ({"inputs": {"words": ["a"]}}, "Missing named input: text in 'inputs' object."),
        ({"inputs": {"text": "a"}}, "is not a list"),
        ({"inputs": [{"b64": "-_=="}]}, "Unable to base64 decode"),
        ({"inputs": [{"b46": "YQ=="}]}, "not formatted correctly for base64 data"),
        ({"inputs": ["a"], "signature_name": "x"}, 'Serving signature name: "x" not found in sig'),
        ({"inputs": ["a"], "signature_name": "score"}, "expecting an object as multiple input"),
        ({"instances": ["a"], "signature_name": "score"}, "expecting list of objects"),
        (b"{", "JSON Parse error"),
        ([1], "Is not object"),
    ],
)
def test_the_double_refuses_what_the_server_refuses(url, body, said):
    response = post(url, body)
    assert response.status_code == 400
    assert said in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/models/x:predict", 404, "Servable not found for request: Latest(x)"),
        (
            "/v1/models/translator/versions/2:predict",
            404,
            "Servable not found for request: Specific(translator, 2)",
        ),
        ("/v1/models/translator:explain", 400, "Malformed request: POST /v1/models/translator:e"),
        ("/v2/models/translator:predict", 400, "Malformed request: POST /v2"),
    ],
)
def test_the_double_refuses_other_paths(url, path, status, said):
    response = post(url, {"inputs": ["a"]}, path)
    assert response.status_code == status
    assert response.json()["error"].startswith(said)


def test_the_double_s_rows_need_outputs_of_as_many_rows(session):
    odd = Odd(session, a=np.ones(1, np.float32), b=np.ones(2, np.float32))
    with rest_double(Model(odd)) as url:
        response = post(url, {"instances": ["x"]})
        assert response.status_code == 400
        assert "b has inconsistent batch size: 2 expecting: 1" in response.json()["error"]
        assert post(url, {"inputs": ["x"]}).status_code == 200


def test_a_request_is_columnar_and_bytes_go_as_base64():
    reply = b'{"outputs": {"a": [], "b": []}}'
    with scripted(reply) as (url, received):
        ask(url + "/v1/models/de%20en/versions/3", signature="n_best", text=['ü\0"'.encode()])
        ask(url + "/v1/models/de/labels/new", text=[b"a\xed\xa0\x80", b""], more=[b"b", b"\xff"])
    assert received == [
        (
            "/v1/models/de%20en/versions/3:predict",
            {"signature_name": "n_best", "inputs": {"text": ['ü\0"']}},
        ),
        (
            "/v1/models/de/labels/new:predict",
            {
                "signature_name": "serving_default",
                "inputs": {"text": [{"b64": "Ye2ggA=="}, ""], "more": ["b", {"b64": "/w=="}]},
            },
        ),
    ]


def test_a_reply_becomes_arrays():
    body = """{"outputs": {"texts": [["ü", "\\ud83d\\ude42"], ["", {"b64": "/w=="}]],
        "numbers": [1, 2], "scores": [1.5, 2], "small": [1e-30], "flags": [true, false],
        "none": [], "rows of none": [[], []], "scalar": 2.5}}"""
    with scripted(body.encode()) as (url, _):
        outputs = ask(url)
    assert outputs["texts"].tolist() == [["ü".encode(), "🙂".encode()], [b"", b"\xff"]]
    shapes = {name: (values.dtype, values.shape) for name, values in outputs.items()}
    assert shapes == {
        "texts": (np.object_, (2, 2)),
        "numbers": (np.int32, (2,)),
        "scores": (np.float32, (2,)),
        "small": (np.float32, (1,)),
        "flags": (np.bool_, (2,)),
        "none": (np.object_, (0,)),
        "rows of none": (np.object_, (2, 0)),
        "scalar": (np.float32, ()),
    }
    assert outputs["scores"].tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>It works!</html>", "must answer in JSON. Received: .*It works"),
        (b"", "must answer in JSON"),
        (b"[" * 100_000, "must answer in JSON"),
        (b'{"outputs": {"a": ["f\xc3"], "b": [1]}}', "must answer in UTF-8. .*byte 0xc3"),
        (b'{"predictions": ["a"]}', "must answer with named outputs"),
        (b'{"outputs": ["a"]}', "must answer with named outputs"),
        (b'["outputs"]', "must answer with named outputs"),
        (b'{"outputs": {"a": [[1], [1, 2]]}}', "whole tensors. Received: rows of different"),
        (b'{"outputs": {"a": [[1], 2]}}', "whole tensors. Received: rows of different lengths"),
        (b'{"outputs": {"a": [1, [2]]}}', r"whole tensors. Received: values of .*'int', 'list'"),
        (b'{"outputs": {"a": ["1", 2]}}', r"whole tensors. Received: values of .*'bytes', 'int'"),
        (b'{"outputs": {"a": [true, 2]}}', r"whole tensors. Received: values of .*'bool', 'int'"),
        (b'{"outputs": {"a": [null]}}', r"whole tensors. Received: values of .*'NoneType'"),
        (b'{"outputs": {"a": [{"b": 1}]}}', r"whole tensors. Received: values of .*'dict'"),
        (b'{"outputs": {"a": [{"b64": "?"}]}}', "whole tensors"),
        (b'{"outputs": {"a": [{"b64": 1}]}}', "whole tensors"),
        (b'{"outputs": {"a": [99999999999]}}', "whole tensors"),
    ],
)
def test_a_reply_that_is_none_is_an_error(body, said):
    with scripted(body) as (url, _), pytest.raises(ServingError, match=said):
        ask(url)


def test_half_a_surrogate_pair_is_no_utf8():
    body = rb'{"outputs": {"translation": ["a\ud83d"], "score": [1.0]}}'
    with (
        scripted(body) as (url, _),
        ServingClient(url) as client,
        pytest.raises(ServingError, match="must return translation of .* as UTF-8"),
    ):
        client.predict("serving_default", text=["a"])


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_in_trouble_may_be_asked_again(status):
    with (
        scripted(b"<h1>later</h1>", status) as (url, _),
        pytest.raises(ServerUnavailable, match=f"^HTTP {status}: <h1>later</h1>$"),
    ):
        ask(url)


@pytest.mark.parametrize("status", [201, 301, 307, 400, 401, 404, 412, 413, 500])
def test_any_other_status_is_final(status):
    headers = [("Location", "http://127.0.0.1:1/")]
    with (
        scripted(b'{"error": "not\\nso"}', status, headers) as (url, received),
        pytest.raises(ServingError, match=f"must accept .* Received: HTTP {status}: not so$"),
    ):
        ask(url)
    assert len(received) == 1


def test_a_long_error_is_cut():
    with scripted(b"x" * 10_000, 400) as (url, _), pytest.raises(ServingError) as raised:
        ask(url)
    assert len(str(raised.value)) < 600
    assert str(raised.value).endswith("xxx...")


# Before any answer, within its headers, and within its body.
@pytest.mark.parametrize("after", [0, 30, 300])
def test_a_connection_that_breaks_may_be_asked_again(session, after):
    trouble = Trouble(failures=[Disconnected(after)])
    with rest_double(Model(session, trouble)) as url:
        with pytest.raises(ServerUnavailable):
            ask(url)
        assert ask(url)["score"].shape == (1,)


def test_nobody_there_may_be_asked_again():
    with pytest.raises(ServerUnavailable, match="refused"):
        ask("http://127.0.0.1:1")


def test_the_port_of_the_grpc_api_is_told_apart(session):
    said = "must speak HTTP.* 8501, and 8500 is for grpc://"
    with grpc_double(Model(session)) as url, pytest.raises(ServingError, match=said):
        ask(url.replace("grpc://", "http://"))


def test_https_speaks_tls(url):
    with pytest.raises(ServingError, match="must be reachable.*SSL"):
        ask(url.replace("http://", "https://"))
