"""What TF_CONFIG may say, and how a lost worker is named."""

import json

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from trainers.strategy import create_strategy, local_replicas
from trainers.workers import WorkerLost, Workers

ADDRESSES = ["a:1", "b:2", "c:3"]


def workers(kind="worker", index=0, **cluster):
    cluster = cluster or {"worker": ADDRESSES}
    task = {"type": kind, "index": index}
    return Workers({"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})})


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_without_a_cluster_there_is_one_worker(environment):
    alone = Workers(environment)
    assert (alone.count, alone.index, alone.is_chief) == (1, 0, True)
    assert alone.agree(True, False) == [True, False]


def test_the_first_worker_is_the_chief():
    assert [workers(index=i).is_chief for i in range(3)] == [True, False, False]
    assert workers(index=2).count == 3


def test_a_task_that_is_called_chief_comes_first():
    cluster = {"worker": ["a:1", "b:2"], "chief": ["z:9"]}
    chief, last = workers("chief", 0, **cluster), workers("worker", 1, **cluster)
    assert (chief.index, chief.is_chief, chief.addresses) == (0, True, ["z:9", "a:1", "b:2"])
    assert (last.index, last.is_chief) == (2, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG must be JSON such as"),
        ("[]", "TF_CONFIG must be JSON such as"),
        ('{"cluster": {"worker": ["a:1"]}}', "TF_CONFIG must be JSON such as"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}',
            "TF_CONFIG must be JSON such as",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            'a task of its cluster, which has 1 workers. Received: {"type": "worker", "index": 1}',
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}',
            "a task of its cluster",
        ),
        (
            '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}',
            "chief and worker alone. Received: ps",
        ),
    ],
)
def test_another_configuration_is_refused(text, message):
    with pytest.raises(InputError) as caught:
        Workers({"TF_CONFIG": text})
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_devices_cannot_be_named_for_several_workers():
    with pytest.raises(InputError, match="training.devices must be null.*Received: GPU:0"):
        create_strategy(["GPU:0"], workers())


def test_every_worker_has_its_own_replicas():
    class Strategy:
        num_replicas_in_sync = 6

    assert [list(local_replicas(Strategy(), workers(index=i))) for i in range(3)] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


UNHEALTHY = (
    "Graph execution error:\n\nCollective ops is aborted by: Error reported from "
    "/job:worker/task:2: The following tasks are unhealthy (stopped sending heartbeats):\n"
    "/job:worker/replica:0/task:1\nThe tasks have crashed. Check the task logs.\n"
    "\t [[{{node CollectiveReduceV2}}]] /job:worker/replica:0/task:0"
)
RESET = (
    "{{function_node x}} Collective ops is aborted by: Collective ops is aborted by: "
    "recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target "
    "/job:worker/replica:0/task:2 while calling"
)


@pytest.mark.parametrize(
    ("text", "lost", "reason"),
    [
        (UNHEALTHY, "worker 1 (b:2) has ended", "Error reported from /job:worker/task:2: The f"),
        (RESET, "worker 2 (c:3) has ended", "Received: recvmsg:Connection reset by peer"),
        ("Deadline", "worker 1 (b:2) or worker 2 (c:3) has ended", "Received: Deadline"),
    ],
)
def test_a_lost_worker_is_named(text, lost, reason):
    with pytest.raises(WorkerLost) as caught, workers().watched():
        raise tf.errors.UnavailableError(None, None, text)
    message = str(caught.value)
    assert message.startswith(lost) and reason in message
    assert "so worker 0 stops" in message and "start the same command on all workers" in message
    assert "\n" not in message


def test_what_one_process_raises_stays_as_it_is():
    with pytest.raises(tf.errors.InternalError), Workers({}).watched():
        raise tf.errors.InternalError(None, None, "a fault of an operation")


def test_exhausted_memory_is_no_lost_worker():
    with pytest.raises(tf.errors.ResourceExhaustedError), workers().watched():
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
