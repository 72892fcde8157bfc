"""Workers that meet: threads stand in for the processes."""

import socket
import threading
import time

import pytest

from keras_transformer.errors import InputError
from trainers.rendezvous import meet


@pytest.fixture
def addresses():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [f"127.0.0.1:{port}", "127.0.0.1:1", "127.0.0.1:2"]


class Worker(threading.Thread):
    """A worker in a thread, which can be told to stop."""

    def __init__(self, addresses, index):
        super().__init__(daemon=True)
        self.addresses, self.index = addresses, index
        self.stop, self.result = threading.Event(), None
        self.start()

    def run(self):
        self.result = meet(self.addresses, self.index, self.stop.is_set)

    def ended(self, seconds=10.0):
        self.join(seconds)
        assert not self.is_alive()
        return self.result


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_all_go_when_the_last_one_is_there(addresses, order):
    *early, last = order
    workers = [Worker(addresses, index) for index in early]
    time.sleep(0.5)
    assert all(worker.is_alive() for worker in workers)
    workers.append(Worker(addresses, last))
    assert [worker.ended() for worker in workers] == [True, True, True]
    # TensorFlow's server takes the port at once.
    port = int(addresses[0].partition(":")[2])
    socket.create_server(("", port)).close()


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_is_stopped_waits_no_more(addresses, index):
    worker = Worker(addresses, index)
    time.sleep(0.3)
    worker.stop.set()
    assert worker.ended(3.0) is False


def test_a_worker_that_is_stopped_while_it_is_connected(addresses):
    chief, worker = Worker(addresses, 0), Worker(addresses, 1)
    time.sleep(0.5)
    worker.stop.set()
    assert worker.ended(3.0) is False
    # The chief has noticed: one that comes again and the third make all.
    others = [Worker(addresses, 2)]
    time.sleep(0.7)
    assert chief.is_alive()
    others.append(Worker(addresses, 1))
    assert [each.ended() for each in (chief, *others)] == [True, True, True]


def test_strangers_are_sent_away(addresses):
    chief = Worker(addresses, 0)
    time.sleep(0.3)
    port = int(addresses[0].partition(":")[2])
    for words in (b"GET / HTTP/1.0\r\n\r\n", b"keras-transformer worker 9\n", b""):
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(10) == b""
    assert [each.ended() for each in (Worker(addresses, 1), Worker(addresses, 2), chief)] == [
        True
    ] * 3


def test_whoever_comes_when_the_server_of_tensorflow_is_there_goes_on(addresses):
    port = int(addresses[0].partition(":")[2])
    with socket.create_server(("127.0.0.1", port)) as server:
        worker = Worker(addresses, 1)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"\x00\x00\x18\x04")
            assert worker.ended() is True


def test_a_port_that_is_taken_is_named(addresses):
    port = int(addresses[0].partition(":")[2])
    with socket.create_server(("", port)), pytest.raises(InputError, match="free port.*in use"):
        meet(addresses, 0, lambda: False)
