"""Signals that ask a run to stop: they wait for it, and are as before when it has ended."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from small_runs import environment

from trainers.stop_signal import StopSignal

HANDLERS = (signal.SIGTERM, signal.SIGINT)


def handlers():
    return [signal.getsignal(number) for number in HANDLERS]


@pytest.mark.parametrize("number, exit_code", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_only_sets_a_flag(number, exit_code):
    before = handlers()
    with StopSignal() as stop:
        assert stop.requested is None
        assert handlers() != before
        os.kill(os.getpid(), number)
        assert stop.requested == number
        assert stop.exit_code == exit_code
    assert handlers() == before
    assert stop.requested == number  # still known to who looks afterwards


def test_the_first_signal_is_the_one_that_counts():
    with StopSignal() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert stop.requested == signal.SIGTERM


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_is_for_those_who_will_not_wait(first):
    before = handlers()
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)
        assert first == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.requested == first
    assert handlers() == before


def test_handlers_come_back_after_an_error_and_where_one_stands_in_another():
    before = handlers()
    with pytest.raises(OSError), StopSignal():
        raise OSError
    assert handlers() == before
    with StopSignal() as outer:
        with StopSignal() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert (outer.requested, inner.requested) == (signal.SIGINT, signal.SIGTERM)
    assert handlers() == before


def test_outside_of_the_main_thread_it_does_nothing():
    before, seen = handlers(), []

    def work():
        with StopSignal() as stop:
            seen.extend([handlers(), stop.requested, stop.exit_code])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, None, 0]


PROGRAM = """
import sys, time
from trainers.stop_signal import StopSignal
with StopSignal() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print("saved", stop.requested.name)
sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize("number, exit_code", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_process_ends_as_it_chooses(number, exit_code):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == f"saved {number.name}\n"
    assert process.wait() == exit_code
