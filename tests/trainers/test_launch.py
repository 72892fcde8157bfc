"""Several workers on one machine: small programs stand for the workers, and need no TensorFlow."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from trainers import launch as launch_module
from trainers.launch import launch

ROOT = Path(launch_module.__file__).parents[1]
SECONDS = 20  # more than any test here needs, on a busy machine too
WORKER = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def say(text): print(text, file=sys.stderr, flush=True)
def touch(name): open(name, "w").close()
def wait_for(*names):
    while not all(map(os.path.exists, names)): time.sleep(0.01)
"""
# A worker that saves and ends when it gets SIGTERM, and notes how often it got one.
SAVING = """
def save(number, frame):
    with open(f"saved{task}", "a") as file: file.write("saved ")
    global saved
    saved = True
saved = False
signal.signal(signal.SIGTERM, save)
touch(f"ready{task}")
while not saved: time.sleep(0.01)
time.sleep(0.3)
"""
# The launcher as a program of its own, which a test can send signals.
LAUNCHER = """
import sys
from trainers.launch import launch
if __name__ == "__main__":
    code = launch(sys.argv[2:], int(sys.argv[1]))
    assert "tensorflow" not in sys.modules and "keras_transformer" not in sys.modules
    sys.exit(code)
"""


def program(text):
    return [sys.executable, "-c", WORKER + textwrap.dedent(text)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def started(here):
    """Starts launchers, and kills in the end what is left of them."""
    processes = []

    def start(text, workers=2):
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(workers), *program(text)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        # Without waiting for the end of what workers write: a test may have failed to end them.
        process.wait()
        process.stdout.close()
        process.stderr.close()


def wait_for(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_every_worker_finds_the_cluster_and_its_place(here):
    assert launch(program("json.dump(os.environ['TF_CONFIG'], open(f'{task}', 'w'))"), 3) == 0
    configs = [json.loads(json.loads((here / f"{i}").read_text())) for i in range(3)]
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": index} for index in range(3)
    ]
    (cluster,) = {json.dumps(config["cluster"]) for config in configs}
    addresses = json.loads(cluster)["worker"]
    ports = [int(address.removeprefix("127.0.0.1:")) for address in addresses]
    assert len(set(ports)) == 3 and min(ports) > 1023


def test_a_worker_can_listen_on_its_port_and_nobody_else_is_given_it(here):
    text = """
    import socket
    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    ports = [int(address.split(":")[1]) for address in addresses]
    for _ in range(200):
        other = socket.socket()
        other.bind(("127.0.0.1", 0))
        assert other.getsockname()[1] not in ports
    server = socket.create_server(("0.0.0.0", ports[task]))  # as TensorFlow: SO_REUSEADDR, all
    touch(f"listening{task}")
    wait_for("listening0", "listening1")
    client = socket.create_connection(("127.0.0.1", ports[1 - task]), timeout=5)
    server.accept()
    """
    assert launch(program(text), 2) == 0


def test_the_ports_are_free_again(here):
    text = "print(os.environ['TF_CONFIG'], file=open(f'{task}', 'w'))"
    assert launch(program(text), 1) == 0
    (address,) = json.loads((here / "0").read_text())["cluster"]["worker"]
    with socket.socket() as unlike_a_server:
        unlike_a_server.bind(("127.0.0.1", int(address.split(":")[1])))


def test_worker_0_writes_as_if_alone_and_the_others_after_their_name(here, capfd):
    text = r"""
    if task == 0:
        sys.stdout.write("result\n")
        sys.stderr.write("1/2\r2/2 bar\nend")
    else:
        os.write(2, b"1/2\r2/2 bar\r\nplain \xff\n\nwithout an end")
        os.write(1, b" and stdout")
    """
    assert launch(program(text), 2) == 0
    out, err = capfd.readouterr()
    assert out == "result\n"
    assert "1/2\r2/2 bar\nend" in err
    # Of what has been written over, the last alone; a byte that is no UTF-8 stops nothing.
    for line in ("2/2 bar", "plain \ufffd", "", "without an end and stdout"):
        assert f"worker 1: {line}\n" in err
    assert "worker 1: 1/2" not in err and "worker 0" not in err


def test_lines_of_several_workers_are_not_mixed(here, capfd):
    assert launch(program("for i in range(300): say(f'{task} {i}' + 'x' * 200)"), 3) == 0
    err = capfd.readouterr().err
    for worker in (1, 2):
        # The chief writes for itself, and may be within a line when another's comes.
        own = re.findall(rf"worker {worker}: (.*)\n", err)
        assert own == [f"{worker} {i}" + "x" * 200 for i in range(300)]


def test_a_line_takes_the_place_of_a_progress_bar_on_a_terminal(here):
    terminal, end = os.openpty()
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{LAUNCHER}"
    text = "if task == 1: wait_for('bar'); sys.exit(3)\nos.write(2, b'1/2 bar'); touch('bar')"
    subprocess.run([sys.executable, "-c", code, "2", *program(text)], stderr=end, timeout=SECONDS)
    os.close(end)
    shown = os.read(terminal, 1000)
    os.close(terminal)
    assert shown.startswith(b"1/2 bar\r\033[Kworker 1 ended with exit code 3")


@pytest.mark.parametrize("failing", [0, 1])
def test_the_code_of_the_first_failure_is_returned(here, capfd, failing):
    text = f"""
    if task == {failing}:
        sys.exit(2)
    wait_for("failed")
    sys.exit(1)
    """
    watching = f"worker {failing} ended with exit code 2; the others have 60 seconds to end\n"

    def failed(text):
        if text + "\n" == watching:
            (here / "failed").touch()
        said(text)

    said = launch_module._say
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_module, "_say", failed)
        assert launch(program(text), 2) == 2
    # It was said while the other worker was still running, which then could say its own.
    err = capfd.readouterr().err
    assert watching in err
    assert f"worker {1 - failing} ended with exit code 1\n" in err


def test_a_killed_worker_is_named(here, capfd):
    text = "os.kill(os.getpid(), signal.SIGKILL) if task == 1 else (time.sleep(0.3), sys.exit(3))"
    assert launch(program(text), 2) == 1
    err = capfd.readouterr().err
    assert "worker 1 was killed by SIGKILL; the others have 60 seconds to end\n" in err
    assert err.endswith("worker 0 ended with exit code 3\n")


def test_the_rest_is_asked_to_end_after_the_grace_time(here, capfd):
    text = f"if task == 1: wait_for('ready0'); sys.exit(5)\n{SAVING}"
    assert launch(program(text), 2, grace_seconds=0.3) == 5
    assert (here / "saved0").read_text() == "saved "
    assert "worker 0 did not end: SIGTERM\n" in capfd.readouterr().err


def test_who_ignores_sigterm_is_killed_with_all_it_has_started(here, capfd):
    text = """
    if task == 1:
        wait_for("child")
        sys.exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        with open("new", "w") as file: file.write(f"{child} {os.getpid()}")
        os.rename("new", "child")
    time.sleep(600)
    """
    start = time.monotonic()
    assert launch(program(text), 2, grace_seconds=0.3) == 1
    assert time.monotonic() - start < SECONDS
    err = capfd.readouterr().err
    assert "worker 0 did not end: SIGTERM\nworker 0 did not end: SIGKILL\n" in err
    assert err.endswith("worker 0 was killed by SIGKILL\n")
    pids = (here / "child").read_text().split()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_what_a_worker_leaves_behind_does_not_hold_up_the_end(here):
    text = "if os.fork() == 0: time.sleep(600)\nopen(f'{os.getpid()}.pid', 'w')"
    assert launch(program(text), 2) == 0
    wait_for(lambda: not any(is_alive(path.stem) for path in here.glob("*.pid")))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_request_to_end_is_passed_on_once(here, started, number, code):
    process = started(SAVING)
    wait_for(lambda: (here / "ready0").exists() and (here / "ready1").exists())
    # As a terminal does it: to all of the launcher's group.
    os.killpg(process.pid, number)
    wait_for(lambda: (here / "saved0").exists() and (here / "saved1").exists())
    process.send_signal(signal.SIGTERM)  # A second one changes nothing.
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code, err
    assert [(here / f"saved{i}").read_text() for i in range(2)] == ["saved ", "saved "]
    assert err == f"{number.name}: asking all workers to save and end\n"


def test_a_second_ctrl_c_kills(here, started):
    process = started("signal.signal(15, lambda *_: touch(f'asked{task}'))\ntouch(f'{task}')\n"
                      "while True: time.sleep(600)")  # fmt: skip
    wait_for(lambda: (here / "0").exists() and (here / "1").exists())
    process.send_signal(signal.SIGINT)
    wait_for(lambda: (here / "asked0").exists() and (here / "asked1").exists())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "SIGINT: killing all workers\n" in err
    assert "worker 0 was killed by SIGKILL" in err and "worker 1 was killed by SIGKILL" in err


def test_no_worker_survives_the_launcher(here, started):
    process = started(
        "signal.signal(15, signal.SIG_IGN)\nopen(f'{os.getpid()}.pid', 'w')\ntime.sleep(600)", 3
    )
    wait_for(lambda: len(list(here.glob("*.pid"))) == 3)
    pids = [path.stem for path in here.glob("*.pid")]
    assert all(map(is_alive, pids))
    process.kill()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_a_worker_whose_launcher_has_already_ended_does_not_start(here):
    command = [sys.executable, "-I", "-S", launch_module.__file__, "1", "touch", "started"]
    assert subprocess.run(command, timeout=SECONDS).returncode == 1
    assert not (here / "started").exists()


def test_signals_are_as_before_when_it_has_ended(here):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert launch(["sh", "-c", "kill -PIPE $$"], 1) == 1  # not ignored, as Python has it
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_program_that_does_not_exist_is_named(here, capfd):
    assert launch(["no-such-program"], 1) == 1
    assert "no-such-program: No such file or directory\n" in capfd.readouterr().err


def test_what_cannot_be_started_is_refused(here, monkeypatch):
    with pytest.raises(InputError, match=r"must be at least 1\. Received: 0"):
        launch(program(""), 0)
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(InputError, match=r"TF_CONFIG must not be set .* Received: \{\}"):
        launch(program(""), 2)


def test_the_environment_is_the_one_given(here):
    environment = {"PATH": os.environ["PATH"], "ONLY": "this"}
    text = "sys.exit(os.environ['ONLY'] != 'this' or 'HOME' in os.environ)"
    assert launch(program(text), 1, environment=environment) == 0
