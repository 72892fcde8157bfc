"""Several worker processes of one training run on this machine. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, NoReturn

# Workers that did not end by themselves when one had failed get SIGTERM, and then so long at most.
_TERMINATION_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ONE_AT_A_TIME = threading.Lock()


class _Ended(NamedTuple):
    """A worker has ended, with `returncode` as `subprocess.Popen` has it."""

    worker: int
    returncode: int


class _Signalled(NamedTuple):
    """The launcher has been sent a signal."""

    number: int


def launch(
    command: Sequence[str],
    workers: int,
    *,
    environment: Mapping[str, str] | None = None,
    grace_seconds: float = 60.0,
) -> int:
    """Runs a command as several workers on this machine, until all of them have ended.

    Each worker finds in TF_CONFIG the addresses of all of them, on free ports of the loopback
    interface, and its own place among them. Worker 0 has this process's stdout and stderr; what
    the others write goes to stderr, each line after `worker 1: `.

    When one ends otherwise than with exit code 0, that is said at once. The others, which miss it
    and say so, have `grace_seconds` to end by themselves; then they get SIGTERM, and SIGKILL.
    SIGTERM and SIGINT are passed on, once, as SIGTERM: workers save and end with 0. A SIGINT after
    that kills them. On Linux workers end with this process, whatever ends it. The main thread alone
    can call this, for it alone is sent signals.

    Args:
        command: program and arguments, the same for all.
        workers: int, how many, at least 1.
        environment: environment of the workers; `None` means that of this process.
        grace_seconds: float, how long the others may go on when one has failed.

    Returns:
        0 where all workers ended with 0, but 130 after a SIGINT (Ctrl-C), as shells have it. Else
        the exit code of the first that ended otherwise, 1 where a signal ended it.

    Raises:
        InputError: where `workers` is below 1, or TF_CONFIG is already set.

    Example:

    >>> import sys
    >>> program = "import os; os.environ['TF_CONFIG']"
    >>> launch([sys.executable, "-c", program], 2)
    0
    """
    environment = dict(os.environ if environment is None else environment)
    if workers < 1:
        _refuse("The number of workers must be at least 1", workers)
    if "TF_CONFIG" in environment:
        _refuse(
            "TF_CONFIG must not be set where workers are started on this machine",
            environment["TF_CONFIG"],
        )
    # Handlers and threads put what happens into the one queue that the watcher reads; a handler
    # may interrupt a SimpleQueue at any place.
    events: queue.SimpleQueue[_Ended | _Signalled] = queue.SimpleQueue()
    processes: list[subprocess.Popen[bytes]] = []
    with _signals_into(events), _reserved_addresses(workers) as addresses:
        try:
            for worker in range(workers):
                task = {"type": "worker", "index": worker}
                cluster = json.dumps({"cluster": {"worker": addresses}, "task": task})
                process = _start(command, {**environment, "TF_CONFIG": cluster}, worker)
                processes.append(process)
                threading.Thread(
                    target=_wait_for, args=(process, worker, events), daemon=True
                ).start()
            return _Watcher(processes, grace_seconds).watch(events)
        finally:
            # Empty-handed unless something went wrong here.
            for process in processes:
                _kill(process)


class _Watcher:
    """Waits until all workers have ended, and sees to it that they do when one has failed."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], grace_seconds: float) -> None:
        self.processes = processes
        self.grace_seconds = grace_seconds
        self.running = set(range(len(processes)))
        self.code = 0
        self.asked_to_end = False
        self.code_of_success = 0
        self.deadline: float | None = None  # of the workers that run, once one has failed

    def watch(self, events: queue.SimpleQueue[_Ended | _Signalled]) -> int:
        while self.running:
            left = None if self.deadline is None else max(0, self.deadline - time.monotonic())
            try:
                event = events.get(timeout=left)
            except queue.Empty:
                self.end_the_rest()
                continue
            if isinstance(event, _Ended):
                self.ended(event)
            else:
                self.signalled(event.number)
        return self.code or self.code_of_success

    def ended(self, event: _Ended) -> None:
        self.running.remove(event.worker)
        if event.returncode == 0:
            return
        text = f"worker {event.worker} {_how_it_ended(event.returncode)}"
        if self.code == 0:
            self.code = max(event.returncode, 0) or 1
            self.deadline = time.monotonic() + self.grace_seconds
            if self.running:
                text += f"; the others have {self.grace_seconds:g} seconds to end"
        _say(text)

    def signalled(self, number: int) -> None:
        if not self.asked_to_end:
            _say(f"{signal.Signals(number).name}: asking all workers to save and end")
            self.code_of_success = 128 + number if number == signal.SIGINT else 0
            self.terminate()
        elif number == signal.SIGINT:
            _say("SIGINT: killing all workers")
            self.kill()

    def end_the_rest(self) -> None:
        names = ", ".join(f"worker {worker}" for worker in sorted(self.running))
        if self.asked_to_end:
            _say(f"{names} did not end: SIGKILL")
            self.deadline = None
            self.kill()
        else:
            _say(f"{names} did not end: SIGTERM")
            self.deadline = time.monotonic() + min(self.grace_seconds, _TERMINATION_SECONDS)
            self.terminate()

    def terminate(self) -> None:
        self.asked_to_end = True
        for worker in self.running:
            self.processes[worker].send_signal(signal.SIGTERM)

    def kill(self) -> None:
        for worker in self.running:
            _kill(self.processes[worker])


def _start(
    command: Sequence[str], environment: Mapping[str, str], worker: int
) -> subprocess.Popen[bytes]:
    """Starts a worker by way of `_become` below, which ties its life to that of this process."""
    output: dict[str, Any] = {}
    if worker > 0:
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        # A group of its own for each. A terminal sends the SIGINT of Ctrl-C to every process of
        # the launcher's group: workers in it would get that and what the launcher passes on, two
        # requests for one key, and would end without having saved. Also, all that a worker has
        # started can be killed with it.
        process_group=0,
        **output,
    )


def _wait_for(
    process: subprocess.Popen[bytes],
    worker: int,
    events: queue.SimpleQueue[_Ended | _Signalled],
) -> None:
    """Waits in a thread for the end of a worker, so that the first to end is the first known."""
    relay = None
    if process.stdout is not None:
        relay = threading.Thread(target=_relay, args=(process.stdout, worker), daemon=True)
        relay.start()
    returncode = process.wait()
    # What a worker has started and left behind would keep memory, and its end of the pipe.
    _kill_group(process.pid)
    if relay is not None:
        relay.join(timeout=1)  # Its last words come before the news of its end.
    events.put(_Ended(worker, returncode))


def _relay(output: IO[bytes], worker: int) -> None:
    """Writes each line of a worker to stderr, after its name."""
    with output:
        for line in output:
            # Of what a progress bar has written over itself, a terminal would show the last.
            text = line.rstrip(b"\r\n").rpartition(b"\r")[2].decode(errors="replace")
            # Where nobody reads stderr any more, the worker must not wait for a reader.
            with contextlib.suppress(OSError, ValueError):
                _say(f"worker {worker}: {text}")


def _say(text: str) -> None:
    # Worker 0 may have left a progress bar on a terminal's line: go to its start and clear it.
    start = "\r\033[K" if sys.stderr.isatty() else ""
    with _ONE_AT_A_TIME:  # Python's text streams lose what several threads write at once.
        sys.stderr.write(f"{start}{text}\n")
        sys.stderr.flush()


def _how_it_ended(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _kill_group(process.pid)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


@contextlib.contextmanager
def _signals_into(events: queue.SimpleQueue[_Ended | _Signalled]) -> Iterator[None]:
    """SIGTERM and SIGINT become events, for as long as workers run."""
    before = {
        number: signal.signal(number, lambda number, frame: events.put(_Signalled(number)))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _reserved_addresses(count: int) -> Iterator[list[str]]:
    """Addresses on free ports that no other program is given by chance while they are needed.

    A bound socket keeps its port from being handed out. With SO_REUSEADDR it still lets a server
    that asks for this very port have it, as TensorFlow's does, as long as it does not listen.
    """
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(count):
            reserved = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            addresses.append("{}:{}".format(*reserved.getsockname()))
        yield addresses


def _refuse(text: str, received: object) -> NoReturn:
    # The package imports TensorFlow, which a launcher that works has no use for.
    from keras_transformer.errors import InputError

    raise InputError(f"{text}. Received: {received}")


def _become(parent: int, command: Sequence[str]) -> NoReturn:
    """Makes this process, started by `_start`, end with its parent, and become the command.

    The system keeps the wish over an exec, so that the command has nothing to do for it. It is
    made here and not between fork and exec in the launcher, where threads make Python unsafe.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # It had ended before the wish was made.
            sys.exit(1)
    # Python ignores these two, and what is ignored stays so over an exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
