"""Has workers meet before TensorFlow connects them, so that a worker that waits can be ended."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from keras_transformer.errors import InputError

_HELLO = b"keras-transformer worker "
_GO = b"go\n"
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_ANSWER = 5.0


def meet(addresses: list[str], index: int, is_stopped: Callable[[], bool]) -> bool:
    """Waits until all workers are there, however long that takes.

    TensorFlow waits too, but deaf to signals: there a worker whose peers are still to come could
    only be killed. The chief listens at its own address, which TensorFlow's server takes over.

    Args:
        addresses: `host:port` of each worker, the chief's first.
        index: int. This worker's place among them.
        is_stopped: callable that says, asked again and again, whether to wait no more.

    Returns:
        Whether all are there; False where `is_stopped` has ended it.

    Raises:
        InputError: where the chief's address cannot be listened at.
    """
    if index == 0:
        return _gather(addresses, is_stopped)
    return _report(addresses[0], index, is_stopped)


def _gather(addresses: list[str], is_stopped: Callable[[], bool]) -> bool:
    """The chief's part: keeps a connection to each of the others, then lets all go."""
    port = int(addresses[0].rpartition(":")[2])
    try:
        server = socket.create_server(("", port), backlog=len(addresses))
    except OSError as error:
        raise InputError(
            "TF_CONFIG must give this worker a free port of this host. "
            f"Received: {addresses[0]} ({error.strerror})"
        ) from error
    present: dict[int, socket.socket] = {}
    try:
        with server:
            server.settimeout(_SECONDS_BETWEEN_LOOKS)
            while len(present) < len(addresses) - 1:
                if is_stopped():
                    return False
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    pass
                else:
                    _greet(connection, present, len(addresses))
                # Who has ended meanwhile has to come again.
                for gone in [i for i, each in present.items() if _is_closed(each)]:
                    present.pop(gone).close()
        for connection in present.values():
            connection.sendall(_GO)
        return True
    finally:
        for connection in present.values():
            connection.close()


def _greet(connection: socket.socket, present: dict[int, socket.socket], count: int) -> None:
    """Reads who is there; anybody else is sent away."""
    connection.settimeout(_SECONDS_TO_ANSWER)
    try:
        line = connection.makefile("rb").readline(100)
    except OSError:
        line = b""
    number = line.removeprefix(_HELLO).strip()
    if line.startswith(_HELLO) and number.isdigit() and 0 < int(number) < count:
        if earlier := present.pop(int(number), None):
            earlier.close()
        present[int(number)] = connection
    else:
        connection.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(_SECONDS_TO_ANSWER)


def _report(chief: str, index: int, is_stopped: Callable[[], bool]) -> bool:
    """What the others do: tell the chief that they are there, until it lets them go."""
    host, _, port = chief.rpartition(":")
    while not is_stopped():
        try:
            with socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER) as connection:
                connection.sendall(_HELLO + f"{index}\n".encode())
                connection.settimeout(_SECONDS_BETWEEN_LOOKS)
                while not is_stopped():
                    try:
                        answer = connection.recv(len(_GO))
                    except TimeoutError:
                        continue
                    # Another answer is that of TensorFlow's server, which is there already.
                    if answer:
                        return True
                    break
        except OSError:  # not there yet, or gone again
            pass
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return False
