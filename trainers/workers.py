"""The processes that train one model together, and this one's place among them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator

import tensorflow as tf

from keras_transformer.errors import InputError

# What TensorFlow raises, on a worker that lives, when another one is gone.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
_JOBS = ("chief", "worker")
_TASK = r"/job:(worker|chief)/replica:\d+/task:(\d+)"


class WorkerLost(RuntimeError):
    """Another worker has ended, cannot be reached, or is behind: a new start may mend it."""


class Workers:
    """The workers of a run: one process, or the tasks that `TF_CONFIG` names.

    `TF_CONFIG` is TensorFlow's own: `{"cluster": {"worker": ["host:port", ...]}, "task": {"type":
    "worker", "index": 0}}`. The first worker is the chief, which prepares the data, writes the run
    directory, logs and validates.

    Args:
        environment: mapping with `TF_CONFIG`, by default the process's environment.

    Raises:
        InputError: where `TF_CONFIG` is not of this form.

    Example:

    >>> workers = Workers({})
    >>> workers.count, workers.is_chief
    (1, True)
    """

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        text = (os.environ if environment is None else environment).get("TF_CONFIG")
        # Tasks of the job `chief`, which come before those of the job `worker`.
        self.addresses, self.index, self._chiefs = _read(text) if text else ([], 0, 0)
        self.count = max(1, len(self.addresses))
        self.is_chief = self.index == 0
        self._strategy = self._vote = None

    def join(self, strategy: tf.distribute.Strategy) -> None:
        """Takes the strategy under which the workers train, by which they agree."""
        self._strategy = strategy
        self._vote = _voting(strategy)

    def agree(self, *wishes: bool) -> list[bool]:
        """Whether any worker wishes a thing; all get the same answer.

        Every worker must call it at the same points: it waits for the others.

        Args:
            *wishes: bools, as many on each worker.
        """
        if self.count == 1:
            return list(wishes)
        return [bool(votes) for votes in self._vote(tf.constant(wishes, tf.float64)).numpy()]

    def as_chief(self, *numbers: int) -> bool:
        """Whether all workers have the same numbers, below 2^53, as the chief has.

        Every worker must call it at the same points.
        """
        if self.count == 1:
            return True
        of_chief = [number if self.is_chief else 0 for number in numbers]
        sums = self._vote(tf.constant(of_chief, tf.float64)).numpy()
        # A worker with several replicas has voted once for each.
        replicas = self._strategy.num_replicas_in_sync // self.count
        (is_different,) = self.agree(list(sums) != [number * replicas for number in numbers])
        return not is_different

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Turns what TensorFlow raises when a worker is gone into `WorkerLost`."""
        try:
            yield
        except _LOST as error:
            if self.count == 1:
                raise
            raise WorkerLost(self._message(str(error))) from error

    def _message(self, text: str) -> str:
        """Who is gone, as far as TensorFlow says."""
        found = re.search(r"unhealthy[^\n]*\n((?:/job:\S+\n?)+)", text)
        tasks = dict.fromkeys(re.findall(_TASK, found[1] if found else text))
        places = [int(task) + (self._chiefs if job == "worker" else 0) for job, task in tasks]
        lost = [place for place in places if place != self.index and place < self.count]
        if not lost:
            lost = [index for index in range(self.count) if index != self.index]
        names = " or ".join(f"worker {i} ({self.addresses[i]})" for i in lost)
        reason = re.search(r"aborted by: (?:Collective ops is aborted by: )*(.*)", text)
        reason = (reason[1] if reason else text).partition("\n")[0].strip()
        return (
            f"{names} has ended or cannot be reached, so worker {self.index} stops. The "
            "checkpoints are whole: start the same command on all workers to go on from the last "
            f"one. Received: {reason}"
        )


def _read(text: str) -> tuple[list[str], int, int]:
    """The workers' addresses, this process's place among them, and how many are called chief."""
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        kinds = sorted(set(cluster) - set(_JOBS))
        addresses = [address for job in _JOBS for address in cluster.get(job, [])]
        if not addresses:
            return [], 0, 0
        chiefs = len(cluster.get("chief", []))
        index = int(task["index"])
        if task["type"] == "worker":
            index += chiefs
        is_known = task["type"] in cluster and 0 <= index < len(addresses)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host:port", ...]}, "task": '
            f'{{"type": "worker", "index": 0}}}}. Received: {text}'
        ) from error
    if kinds:
        raise InputError(
            f"TF_CONFIG must have a cluster of chief and worker alone. Received: {', '.join(kinds)}"
        )
    for address in addresses:
        if not re.fullmatch(r"\S+:\d+", str(address)):
            raise InputError(f"TF_CONFIG must have addresses host:port. Received: {address!r}")
    if not is_known:
        raise InputError(
            f"TF_CONFIG must have a task of its cluster, which has {len(addresses)} workers. "
            f"Received: {json.dumps(task)}"
        )
    return addresses, index, chiefs


def _voting(strategy: tf.distribute.Strategy):
    def add_up(wishes):
        replicas = tf.distribute.get_replica_context()
        # A copy lies on the replica's device, where an argument of a function is nowhere yet.
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(wishes))

    @tf.function(autograph=False)
    def vote(wishes):
        votes = strategy.run(add_up, args=(wishes,))
        return strategy.experimental_local_results(votes)[0]

    return vote
