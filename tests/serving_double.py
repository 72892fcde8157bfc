"""A stand-in for TensorFlow Serving in this process, or in one that can be killed.

python serving_double.py EXPORT grpc|rest PORT
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpc_double import grpc_double
from rest_double import rest_double
from served_model import Model, Trouble

from export.serving.client import ServingClient
from export.session import ExportSession

DOUBLES = {"grpc": grpc_double, "rest": rest_double}
ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def serving(
    api: str, session: Any, trouble: Trouble | None = None, path: str = "", **options: Any
) -> Iterator[ServingClient]:
    """A double in this process, and a client of it."""
    options = {"retry_seconds": 10.0, **options}
    with (
        DOUBLES[api](Model(session, trouble)) as url,
        ServingClient(url + path, **options) as client,
    ):
        yield client


class ServerProcess:
    """A double in a process of its own, which keeps its port from one start to the next."""

    def __init__(self, export: Path, api: str) -> None:
        self.export = export
        self.api = api
        self.port = free_port()
        self._process: subprocess.Popen | None = None

    def start(self) -> str:
        """Starts it and waits until it serves; gives its URL."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.export), self.api, str(self.port)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        url = self._process.stdout.readline().strip()
        assert url, f"the server ended with code {self._process.wait()}"
        return url

    def kill(self) -> None:
        """SIGKILL: it has no time to answer or to say goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main(export: str, api: str, port: str) -> None:
    """Serves until it is killed."""
    model = Model(ExportSession(export))
    model.session.run("serving_default", text=["warm"])
    with DOUBLES[api](model, int(port)) as url:
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
