"""The ways onto several hosts: their own commands run here, with stubs for Slurm and the worker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from keras_transformer.cli import COMMANDS
from keras_transformer.command_line import command_line

ROOT = Path(__file__).parent.parent
SLURM = ROOT / "deploy" / "slurm" / "train.sbatch"
KUBERNETES = ROOT / "deploy" / "kubernetes-training" / "train.yaml"
PAGE = (ROOT / "docs" / "many-hosts.md").read_text(encoding="utf-8")
SECONDS = 20

# A worker that writes down how it was called. Told to end, it ends with SAVED; else, once there is
# a file `go`, with its content.
WORKER = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
def end(number, frame): sys.exit(int(os.environ.get("SAVED", "0")))
signal.signal(signal.SIGTERM, end)
call = {"config": config, "arguments": sys.argv[1:], "pid": os.getpid()}
pathlib.Path(f"new{index}").write_text(json.dumps(call))
os.rename(f"new{index}", f"call{index}.json")
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(json.loads(open("go").read())[index])
"""
# As the real one: a task for each node with its number, all killed when one fails; the highest
# exit code. (SIGTERM to it would kill the tasks; nobody may send it.)
SRUN = """
import os, subprocess, sys, time
words = sys.argv[1:]
options = []
while words[0].startswith("--"): options.append(words.pop(0))
assert set(options) == {"--kill-on-bad-exit=1", "--cpus-per-task=3"}, options
tasks = [subprocess.Popen(words, env={**os.environ, "SLURM_PROCID": str(i)}) for i in range(2)]
while any(task.poll() is None for task in tasks):
    if any(task.poll() for task in tasks): [task.kill() for task in tasks]
    time.sleep(0.02)
sys.exit(max(task.returncode if task.returncode >= 0 else 128 - task.returncode for task in tasks))
"""
SCONTROL = """
import sys
if sys.argv[1:] == ["show", "hostnames", "node[07-08]"]: print("node07\\nnode08")
else: open("scontrol", "a").write(" ".join(sys.argv[1:]))
"""
SCANCEL = """
import json, os, signal, sys
assert sys.argv[1:] == ["--signal=TERM", "4242"]
for i in range(2): os.kill(json.load(open(f"call{i}.json"))["pid"], signal.SIGTERM)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with stubs of all programs first on the PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stubs = {"keras-transformer": WORKER, "srun": SRUN, "scontrol": SCONTROL, "scancel": SCANCEL}
    for name, text in stubs.items():
        (programs / name).write_text(f"#!{sys.executable}{text}")
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started():
    processes = []

    def start(command, **environment):
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(*paths):
    end = time.monotonic() + SECONDS
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, paths
        time.sleep(0.02)


def ended(process):
    _, error = process.communicate(timeout=SECONDS)
    return process.returncode, error


def let_go(folder, codes):
    (folder / "new").write_text(json.dumps(codes))
    (folder / "new").rename(folder / "go")


def calls(folder, count):
    paths = [folder / f"call{index}.json" for index in range(count)]
    wait_for(*paths)
    return [json.loads(path.read_text()) for path in paths]


# Slurm


@pytest.fixture
def job(here, started):
    """The batch script as Slurm starts it, with two nodes."""
    words = ["bash", str(SLURM), "my recipe.yaml", "runs/mine", "training.steps=9"]
    return started(
        words, SLURM_JOB_ID="4242", SLURM_JOB_NODELIST="node[07-08]", SLURM_CPUS_PER_TASK="3"
    )


def test_slurm_workers_find_each_other(here, job):
    found = calls(here, 2)
    for index, call in enumerate(found):
        assert call["config"] == {
            "cluster": {"worker": ["node07:24242", "node08:24242"]},
            "task": {"type": "worker", "index": index},
        }
        assert call["arguments"] == [
            *("train", "my recipe.yaml", "--run-dir", "runs/mine", "training.steps=9")
        ]
        options = command_line(COMMANDS).parse_args(call["arguments"])
        assert options.overrides == ["training.steps=9"]
    let_go(here, [0, 0])
    assert ended(job) == (0, "")
    assert not (here / "scontrol").exists()


@pytest.mark.parametrize("codes", [[1, 0], [0, 2]])
def test_a_slurm_job_that_fails_is_not_queued_again(here, job, codes):
    calls(here, 2)
    let_go(here, codes)
    assert ended(job)[0] in (max(codes), 137)
    assert not (here / "scontrol").exists()


@pytest.mark.parametrize("saved", [0, 1])
def test_a_slurm_job_whose_time_is_up_saves_and_goes_into_the_queue_again(
    here, started, monkeypatch, saved
):
    monkeypatch.setenv("SAVED", str(saved))
    job = started(
        ["bash", str(SLURM), "recipe.yaml", "run"],
        **{"SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": "node[07-08]", "SLURM_CPUS_PER_TASK": "3"},
    )
    calls(here, 2)
    job.send_signal(signal.SIGUSR1)  # to the batch shell alone
    code, error = ended(job)
    assert (code == 0) == (saved == 0), error
    assert (here / "scontrol").exists() == (saved == 0)
    if saved == 0:
        assert (here / "scontrol").read_text() == "requeue 4242"


def test_slurm_is_asked_for_what_the_script_relies_on():
    options = re.findall(r"^#SBATCH (\S+)$", SLURM.read_text(), re.M)
    assert {
        *("--ntasks-per-node=1", "--requeue", "--signal=B:USR1@120", "--open-mode=append")
    } <= set(options)
    assert subprocess.run(["bash", SLURM], capture_output=True, text=True).stderr.endswith(
        "RECIPE is missing\n"
    )


# Kubernetes


def manifests():
    objects = yaml.safe_load_all(KUBERNETES.read_text())
    return {each["kind"]: each for each in objects}


def training_job():
    return manifests()["Job"]["spec"]


def worker_container():
    (only,) = training_job()["template"]["spec"]["containers"]
    return only


SHELLS = [shell for shell in ("dash", "bash", "sh") if shutil.which(shell)]


@pytest.fixture
def pod(here, started):
    """Starts the container of a pod, in a shell of one's choice, with `here` as the volume."""

    def start(index, shell="sh", workers="3"):
        program, *words = worker_container()["command"]
        assert program == "sh"
        command = [shell, *words, *worker_container()["args"]]
        return started(command, JOB_COMPLETION_INDEX=str(index), WORKERS=workers)

    return start


@pytest.mark.parametrize("shell", SHELLS)
def test_pods_find_each_other(here, pod, shell):
    pods = [pod(index, shell) for index in range(3)]
    for index, call in enumerate(calls(here, 3)):
        hosts = [f"training-{i}.training:2222" for i in range(3)]
        task = {"type": "worker", "index": index}
        assert call["config"] == {"cluster": {"worker": hosts}, "task": task}
        assert call["arguments"] == ["train", *worker_container()["args"]]
        assert command_line(COMMANDS).parse_args(call["arguments"]).recipe == "recipe.yaml"
    let_go(here, [0, 1, 2])
    assert [ended(each) for each in pods] == [(0, ""), (1, ""), (2, "")]


@pytest.mark.parametrize("shell", SHELLS)
def test_when_one_pod_is_told_to_end_no_index_counts_as_done(here, pod, shell):
    pods = [pod(index, shell, "2") for index in range(2)]
    calls(here, 2)
    time.sleep(0.05)  # a mark from a later tick of the clock than the start
    pods[1].send_signal(signal.SIGTERM)
    assert ended(pods[1]) == (75, "")
    # The other worker was told by the first and has saved too.
    let_go(here, [0, 0])
    assert ended(pods[0]) == (75, "")

    # The pods in their place know the mark for an old one.
    for path in here.glob("call*.json"):
        path.unlink()
    (here / "go").unlink()
    time.sleep(0.05)
    pods = [pod(index, shell, "2") for index in range(2)]
    calls(here, 2)
    let_go(here, [0, 0])
    assert [ended(each) for each in pods] == [(0, ""), (0, "")]


def test_a_failure_stays_one_when_a_pod_is_told_to_end(here, pod, monkeypatch):
    monkeypatch.setenv("SAVED", "1")
    alone = pod(0, workers="1")
    calls(here, 1)
    alone.send_signal(signal.SIGTERM)
    assert ended(alone) == (1, "")


def test_the_manifest_agrees_with_itself():
    found = manifests()
    assert {kind: each["apiVersion"] for kind, each in found.items()} == {
        "Job": "batch/v1",
        "Service": "v1",
    }
    spec, container = training_job(), worker_container()
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(environment["WORKERS"]) > 1
    service = found["Service"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    template = spec["template"]
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    # An index's host name is that of the Job and its number; its domain is the Service's name.
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    script = container["command"][2]
    job_name = found["Job"]["metadata"]["name"]
    (host, port) = re.findall(r'"(\S+)-\$index\.\S+?:(\d+)\\"', script.replace('\\"', '"', 1))[0]
    assert host == job_name
    assert [int(port)] == [each["containerPort"] for each in container["ports"]]
    assert [int(port)] == [each["port"] for each in service["spec"]["ports"]]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}
    assert set(mounted) == set(volumes)
    assert mounted["data"] == container["workingDir"]
    assert f"`{volumes['data']['persistentVolumeClaim']['claimName']}`" in PAGE


def test_pods_that_end_are_replaced_but_for_bad_input():
    spec = training_job()
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # or no policy is allowed
    bad_input, disruption, saved = spec["podFailurePolicy"]["rules"]
    assert bad_input["action"] == "FailJob"
    assert bad_input["onExitCodes"] == {"operator": "In", "values": [2]}
    assert disruption["action"] == saved["action"] == "Ignore"
    assert disruption["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert saved["onExitCodes"] == {"operator": "In", "values": [75]}
    # A lost worker ends all others with 1: several losses must fit.
    assert spec["backoffLimit"] >= 5 * spec["completions"]


# The page


def test_the_page_names_files_that_exist():
    named = set(re.findall(r"\bdeploy/[\w./-]+\w", PAGE))
    assert {str(path.relative_to(ROOT)) for path in (SLURM, KUBERNETES)} <= named
    assert all((ROOT / name).exists() for name in named)


def test_the_configuration_of_the_page_is_json_for_two_workers():
    texts = re.findall(r"TF_CONFIG='(.+?)'", PAGE)
    assert [json.loads(text)["task"]["index"] for text in texts] == [0, 1]
    (cluster,) = {json.dumps(json.loads(text)["cluster"]) for text in texts}
    assert len(json.loads(cluster)["worker"]) == 2
