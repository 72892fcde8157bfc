"""A loaded model as TensorFlow Serving guards it, for the doubles of its two APIs.

It has the server's rules for requests and its words for what is wrong with them, from
tensorflow/serving's predict_util.cc. It batches nothing, watches no folder and has one version.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

Status = grpc.StatusCode

# Clients reach the doubles where the environment has a proxy, too.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1"


class Refused(Exception):
    """A status and a message instead of an answer."""

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


UNAVAILABLE = Refused(Status.UNAVAILABLE, "The batch scheduling queue is full")


class Disconnected(Exception):
    """REST only: the connection ends after this many bytes of the reply, headers counted."""

    def __init__(self, after: int = 0) -> None:
        super().__init__(after)
        self.after = after


@dataclass
class Trouble:
    """What befalls requests.

    Attributes:
        failures: exceptions for the first requests, one each; then the server is well.
        delay: seconds before the answer to each request, by the number of the request.
        requests: Predict requests so far.
        most_at_a_time: of them, those that were under way together.
    """

    failures: Sequence[Exception] = ()
    delay: Callable[[int], float] = lambda number: 0.0
    requests: int = 0
    most_at_a_time: int = 0
    _under_way: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def request(self) -> Iterator[None]:
        with self._lock:
            number = self.requests
            self.requests += 1
            self._under_way += 1
            self.most_at_a_time = max(self.most_at_a_time, self._under_way)
        try:
            time.sleep(self.delay(number))
            if number < len(self.failures):
                raise self.failures[number]
            yield
        finally:
            with self._lock:
                self._under_way -= 1


class Model:
    """A loaded model under a name and a version, with what both APIs ask of it."""

    def __init__(
        self, session: Any, trouble: Trouble | None = None, name="translator", version=1
    ) -> None:
        self.session = session
        self.trouble = trouble or Trouble()
        self.name = name
        self.version = version
        # A Python session holds the interpreter's lock for much of a run; more of them at a time
        # only wait for one another.
        self._runs = threading.Semaphore(2)

    def find(self, name: str, version: int | None = None, label: str | None = None) -> None:
        if not name:
            raise Refused(Status.INVALID_ARGUMENT, "ModelSpec has no name specified.")
        if label:
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"Unrecognized servable version label: {label}",
            )
        if name != self.name or version not in (None, self.version):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise Refused(Status.NOT_FOUND, f"Servable not found for request: {wanted}")

    def signature(self, name: str, missing: Refused) -> Any:
        try:
            return self.session.signatures[name]
        except KeyError:
            raise missing from None

    def run(self, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs with what the signature takes: no input more or less, of its dtypes and shapes."""
        definition = self.signature(
            signature,
            Refused(Status.FAILED_PRECONDITION, f'Serving signature key "{signature}" not found.'),
        )
        sent, needed = set(inputs), set(definition.inputs)
        if len(sent) != len(needed):
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"input size does not match signature: {len(sent)}!={len(needed)} "
                f"len({braces(sent)}) != len({braces(needed)}). Sent extra: "
                f"{braces(sent - needed)}. Missing but required: {braces(needed - sent)}.",
            )
        for name in sent - needed:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"input tensor alias not found in signature: {name}. Inputs expected to be in "
                f"the set {braces(needed)}.",
            )
        for name, array in inputs.items():
            info = definition.inputs[name]
            expected, received = tf.dtypes.as_dtype(info.dtype), tf.dtypes.as_dtype(array.dtype)
            if expected != received:
                raise Refused(
                    Status.INVALID_ARGUMENT,
                    f"Expects arg[0] to be {expected.name} but {received.name} is provided",
                )
            if not tf.TensorShape(info.tensor_shape).is_compatible_with(array.shape):
                raise Refused(Status.INVALID_ARGUMENT, f"{name} has the shape {list(array.shape)}")
        with self.trouble.request(), self._runs:
            return self.session.run(signature, **inputs)


def braces(names: set[str]) -> str:
    return f"{{{','.join(sorted(names))}}}"
