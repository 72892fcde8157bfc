"""Stands in for TensorFlow Serving's REST API.

Rules and words are those of tensorflow/serving's json_tensor.cc and http_rest_api_handler.cc.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from served_model import Disconnected, Model, Refused, Status

# From the server's http_rest_api_util.cc; what is not named is a 500.
HTTP_STATUSES = {
    Status.INVALID_ARGUMENT: 400,
    Status.NOT_FOUND: 404,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.FAILED_PRECONDITION: 412,
    Status.UNIMPLEMENTED: 501,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 504,
}


class _HttpServer(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, model: Model, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.model = model
        self.connections: list[socket.socket] = []

    def handle_error(self, request, client_address) -> None:
        """A client that goes before its answer comes is no fault of the double's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Ends as a process does: with the connections that clients keep for later."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer
    _predict_path = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:predict")
    _status_path = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+))?")

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.connection)

    def do_POST(self) -> None:  # noqa: N802  the base class's name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        match = self._predict_path.fullmatch(self.path)
        self._answer(match, lambda: self._predict(match, body))

    def do_GET(self) -> None:  # noqa: N802
        match = self._status_path.fullmatch(self.path)
        self._answer(match, lambda: self._model_status(match))

    def log_message(self, *arguments) -> None:
        """Tests print what they want to say themselves."""

    def _answer(self, match: re.Match | None, reply: Callable[[], bytes]) -> None:
        try:
            if match is None:
                raise Refused(
                    Status.INVALID_ARGUMENT, f"Malformed request: {self.command} {self.path}"
                )
            self._send(200, reply())
        except Refused as refused:
            error = json.dumps({"error": refused.message}, ensure_ascii=False)
            self._send(HTTP_STATUSES.get(refused.status, 500), error.encode())
        except Disconnected as disconnected:
            self._send(200, b"{}" + b" " * 1000, end_after=disconnected.after)

    def _send(self, status: int, body: bytes, end_after: int | None = None) -> None:
        head = (
            f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.wfile.write((head.encode() + body)[:end_after])
        self.close_connection = end_after is not None

    def _model_status(self, match: re.Match) -> bytes:
        self.server.model.find(match[1], int(match[2]) if match[2] else None)
        version = {
            "version": str(self.server.model.version),
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return json.dumps({"model_version_status": [version]}).encode()

    def _predict(self, match: re.Match, body: bytes) -> bytes:
        model = self.server.model
        try:
            request = json.loads(body)
        except ValueError as error:
            raise Refused(Status.INVALID_ARGUMENT, f"JSON Parse error: {error}") from error
        if not isinstance(request, dict):
            raise Refused(Status.INVALID_ARGUMENT, f"JSON Value: {request} Is not object")
        model.find(match[1], int(match[2]) if match[2] else None, match[3])
        signature = request.get("signature_name") or "serving_default"
        definition = model.signature(
            signature,
            Refused(
                Status.INVALID_ARGUMENT,
                f'Serving signature name: "{signature}" not found in signature def',
            ),
        )
        if ("instances" in request) == ("inputs" in request):
            message = (
                "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to "
                "exist"
                if "inputs" in request
                else "Missing 'inputs' or 'instances' key"
            )
            raise Refused(Status.INVALID_ARGUMENT, message)
        names = sorted(definition.inputs)
        if "instances" in request:
            outputs = model.run(signature, _rows(request["instances"], names))
            return _row_reply(outputs)
        return _columnar_reply(model.run(signature, _columns(request["inputs"], names)))


def _rows(instances: Any, names: list[str]) -> dict[str, np.ndarray]:
    if not isinstance(instances, list):
        raise Refused(Status.INVALID_ARGUMENT, "Excepting 'instances' to be an list/array")
    if not instances:
        raise Refused(Status.INVALID_ARGUMENT, "No values in 'instances' array")
    named = [isinstance(row, dict) and set(row) != {"b64"} for row in instances]
    if len(names) > 1 and not named[0]:
        raise Refused(
            Status.INVALID_ARGUMENT,
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map",
        )
    for number, (row, is_named) in enumerate(zip(instances, named, strict=True)):
        if is_named != named[0]:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"Expecting {'object' if named[0] else 'value'} at item {number} of input list",
            )
        if is_named and set(row) != set(names):
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"Failed to process element: {number} of 'instances' list. JSON object: "
                f"{json.dumps(row)} keys must be equal to: {','.join(names)}",
            )
    return {
        name: _strings([row[name] for row in instances] if named[0] else instances)
        for name in names
    }


def _columns(inputs: Any, names: list[str]) -> dict[str, np.ndarray]:
    if not isinstance(inputs, dict):
        if len(names) > 1:
            raise Refused(
                Status.INVALID_ARGUMENT,
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map",
            )
        inputs = {names[0]: inputs}
    for name in names:
        if name not in inputs:
            raise Refused(
                Status.INVALID_ARGUMENT, f"Missing named input: {name} in 'inputs' object."
            )
    # As the server, which looks only for the inputs that it knows.
    return {name: _strings(inputs[name]) for name in names}


def _strings(values: Any) -> np.ndarray:
    """Rank-1 strings, the only inputs of an export."""
    if not isinstance(values, list):
        raise Refused(Status.INVALID_ARGUMENT, f"JSON Value: {values} is not a list")
    texts = []
    for value in values:
        if isinstance(value, dict):
            if set(value) != {"b64"} or not isinstance(value["b64"], str):
                raise Refused(
                    Status.INVALID_ARGUMENT,
                    f"JSON Value: {json.dumps(value)} not formatted correctly for base64 data",
                )
            try:
                texts.append(base64.b64decode(value["b64"], validate=True))
            except ValueError as error:
                raise Refused(Status.INVALID_ARGUMENT, "Unable to base64 decode") from error
        elif isinstance(value, str):
            texts.append(value.encode(errors="surrogatepass"))
        else:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"JSON Value: {json.dumps(value)} is not of expected type: string",
            )
    return np.array(texts, dtype=object)


def _row_reply(outputs: dict[str, np.ndarray]) -> bytes:
    rows = None
    for name, values in outputs.items():
        if values.ndim == 0:
            raise Refused(Status.INVALID_ARGUMENT, f"Tensor name: {name} has no shape information ")
        if rows not in (None, len(values)):
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"Tensor name: {name} has inconsistent batch size: {len(values)} expecting: {rows}",
            )
        rows = len(values)
    parts = []
    for row in range(rows or 0):
        if len(outputs) > 1:
            named = {name: values[row] for name, values in outputs.items()}
            parts.append(_object(named))
        else:
            ((name, values),) = outputs.items()
            parts.append(_json(values[row], name))
    return b'{"predictions": [' + b", ".join(parts) + b"]}"


def _columnar_reply(outputs: dict[str, np.ndarray]) -> bytes:
    if len(outputs) > 1:
        return b'{"outputs": ' + _object(outputs) + b"}"
    ((name, values),) = outputs.items()
    return b'{"outputs": ' + _json(values, name) + b"}"


def _object(named: dict[str, Any]) -> bytes:
    return b"{" + b", ".join(b'"%s": ' % k.encode() + _json(v, k) for k, v in named.items()) + b"}"


def _json(value: Any, name: str) -> bytes:
    """As the server writes: strings without a look at their encoding, NaN as it is."""
    if isinstance(value, np.ndarray):
        return b"[" + b", ".join(_json(item, name) for item in value) + b"]"
    if isinstance(value, bytes):
        if name.endswith("_bytes"):
            return b'{"b64": "' + base64.b64encode(value) + b'"}'
        # One character for one byte there and back leaves the bytes as they are.
        return json.dumps(value.decode("latin-1"), ensure_ascii=False).encode("latin-1")
    if isinstance(value, np.floating):
        return json.dumps(float(value)).encode()
    return json.dumps(value.item()).encode()


@contextlib.contextmanager
def rest_double(model: Model, port: int = 0) -> Iterator[str]:
    """A server in this process; gives its URL."""
    server = _HttpServer(model, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.close()
        thread.join()
