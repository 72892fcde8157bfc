"""Requests to TensorFlow Serving's REST API."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any
from urllib.parse import quote

import numpy as np
import requests
from urllib3.exceptions import ReadTimeoutError

from export.serving.server_address import ServerAddress, ServerUnavailable, ServingError, one_line

# Too many requests, and what a gateway says of a server that is not there or does not answer.
_TRY_AGAIN = (429, 502, 503, 504)
# No connection, or one that broke before the reply or in the middle of it.
_BROKEN = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
# TensorFlow's names of kinds of Python values, for the arrays that a JSON reply becomes; JSON has
# no dtypes, and the signatures of an export have these four.
_DTYPES = {bool: np.bool_, int: np.int32, float: np.float32, bytes: np.object_}


class RestTransport:
    """Sessions of HTTP with a server, one for each thread that uses it.

    The columnar format is spoken, `inputs` and `outputs`: it names inputs and outputs once and
    not in every row, has one shape for any number of inputs, and allows outputs of any shape. Its
    replies have two: several outputs come with their names and a single one without. No signature
    of an export has a single output.

    Args:
        address: `ServerAddress` with the scheme http or https.
        timeout: float. Seconds to connect, and seconds in which nothing of a reply comes.
    """

    def __init__(self, address: ServerAddress, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        url = f"{address.scheme}://{address.location}/v1/models/{quote(address.model, safe='')}"
        if address.version is not None:
            url += f"/versions/{address.version}"
        if address.label is not None:
            url += f"/labels/{quote(address.label, safe='')}"
        self._url = f"{url}:predict"
        self._local = threading.local()
        self._sessions: list[requests.Session] = []

    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[bytes]]
    ) -> dict[str, np.ndarray]:
        """Sends one request, once.

        Raises:
            ServerUnavailable: where the same request may succeed later.
            ServingError: where it will not.
        """
        columns = {name: [_as_json(text) for text in texts] for name, texts in inputs.items()}
        body = {"signature_name": signature, "inputs": columns}
        try:
            response = self._session().post(
                self._url,
                data=json.dumps(body, ensure_ascii=False).encode(),
                headers={"Content-Type": "application/json"},
                timeout=self._timeout,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise self._meaning(error) from error
        if response.status_code != 200:
            said = f"HTTP {response.status_code}: {_error_message(response)}"
            if response.status_code in _TRY_AGAIN:
                raise ServerUnavailable(said)
            raise ServingError(f"{self._address} must accept the request. Received: {said}")
        return self._outputs(response)

    def _outputs(self, response: requests.Response) -> dict[str, np.ndarray]:
        content = response.content
        try:
            reply = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if not {"Content-Length", "Transfer-Encoding"} & set(response.headers):
                # Python takes headers that break off for all of them, and what came for the body.
                raise ServerUnavailable("a reply that breaks off") from error
            expected = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
            raise ServingError(
                f"{self._address} must answer in {expected}. Received: {one_line(content[:60])} "
                f"({one_line(error)})"
            ) from error
        outputs = reply.get("outputs") if isinstance(reply, dict) else None
        if not isinstance(outputs, dict):
            raise ServingError(
                f"{self._address} must answer with named outputs. Received: "
                f"{one_line(content[:60])}"
            )
        try:
            return {name: _as_array(values) for name, values in outputs.items()}
        except (OverflowError, TypeError, ValueError) as error:
            raise ServingError(
                f"{self._address} must answer with whole tensors. Received: {one_line(error)}"
            ) from error

    def _meaning(self, error: requests.RequestException) -> Exception:
        causes = _causes(error)
        if any(isinstance(cause, ReadTimeoutError) for cause in causes):
            return ServingError(
                f"{self._address} must answer within the timeout of {self._timeout:g} s. "
                f"Received: {one_line(error)}"
            )
        if any(
            isinstance(cause, BadStatusLine) and not isinstance(cause, RemoteDisconnected)
            for cause in causes
        ):
            return ServingError(
                f"{self._address} must speak HTTP; TF Serving's port for it is 8501, and 8500 is "
                f"for grpc://. Received: {one_line(error)}"
            )
        # A certificate does not become better; a server that ends in the handshake comes back.
        is_refused = isinstance(error, requests.exceptions.SSLError) and not any(
            isinstance(cause, ssl.SSLEOFError) for cause in causes
        )
        if isinstance(error, _BROKEN) and not is_refused:
            return ServerUnavailable(one_line(error))
        return ServingError(f"{self._address} must be reachable. Received: {one_line(error)}")

    def _session(self) -> requests.Session:
        """This thread's session; requests does not promise that threads can share one."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._sessions.append(self._local.session)
        return self._local.session

    def close(self) -> None:
        """Closes the connections of all threads."""
        for session in self._sessions:
            session.close()


def _as_json(text: bytes) -> str | dict[str, str]:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(text).decode()}


def _as_array(values: Any) -> np.ndarray:
    """A tensor from JSON's nested lists, whose shape and kind of values must be one."""
    shape = []
    level = values
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    leaves = list(_leaves(values, shape))
    kinds = {type(leaf) for leaf in leaves}
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) > 1 or not kinds <= set(_DTYPES):
        raise ValueError(f"values of the kinds {sorted(kind.__name__ for kind in kinds)}")
    array = np.empty(len(leaves), dtype=_DTYPES[kinds.pop()] if kinds else np.object_)
    array[:] = leaves
    return array.reshape(shape)


def _leaves(values: Any, shape: Sequence[int]) -> Iterator[Any]:
    if not shape:
        if isinstance(values, str):
            yield values.encode(errors="surrogatepass")
        elif isinstance(values, dict) and set(values) == {"b64"}:
            yield base64.b64decode(values["b64"], validate=True)
        else:
            yield values
    elif isinstance(values, list) and len(values) == shape[0]:
        for value in values:
            yield from _leaves(value, shape[1:])
    else:
        raise ValueError("rows of different lengths")


def _error_message(response: requests.Response) -> str:
    """TF Serving's `{"error": ...}`, or the beginning of what else came, such as a page."""
    text = response.content.decode(errors="replace")
    try:
        return one_line(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return one_line(text)


def _causes(error: BaseException) -> list[BaseException]:
    """An exception, those it came from and those it wraps, as urllib3's do."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop()
        if isinstance(current, BaseException) and current not in seen:
            seen.append(current)
            waiting += [current.__cause__, current.__context__, *current.args]
    return seen
