"""Which devices train: all visible GPUs, or the CPU, of this host or of several."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_transformer.errors import InputError
from trainers.workers import Workers


def create_strategy(
    devices: Sequence[str] | None = None, workers: Workers | None = None
) -> tf.distribute.Strategy:
    """The distribution strategy of a run.

    More than one device trains under `MirroredStrategy`: every device holds all weights, each
    batch is divided among them, and their gradients are added up. Several workers do the same
    under `MultiWorkerMirroredStrategy`, each with all its visible GPUs or its CPU. One device
    needs no strategy.

    Args:
        devices: names such as `"GPU:0"` or `"CPU:1"`. `None` means all visible GPUs, or the CPU
            where there is none. `"CPU:1"` and later are logical devices on the one CPU, which try
            out a distributed run without GPUs.
        workers: `Workers`, or None for one process. Several have met, see `rendezvous`.

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        InputError: where a device does not exist, or devices are named for several workers.

    Example:

    >>> create_strategy(["CPU:0"]).num_replicas_in_sync
    1
    """
    if workers is not None and workers.count > 1:
        if devices is not None:
            raise InputError(
                "training.devices must be null where TF_CONFIG names several workers, each of "
                "which takes the GPUs that CUDA_VISIBLE_DEVICES leaves it. Received: "
                f"{', '.join(devices)}"
            )
        with workers.watched(), _keeping_handlers():
            try:
                return tf.distribute.MultiWorkerMirroredStrategy()
            except tf.errors.UnknownError as error:
                raise InputError(
                    "TF_CONFIG must give this worker a free port of this host. Received: "
                    f"{workers.addresses[workers.index]} ({error.message})"
                ) from error
    if devices is None:
        devices = [f"GPU:{i}" for i, _ in enumerate(tf.config.list_physical_devices("GPU"))]
    devices = [device.upper() for device in devices]
    if len(set(devices)) != len(devices):
        raise InputError(f"training.devices must differ. Received: {', '.join(devices)}")
    _split_cpu(sum(device.startswith("CPU:") for device in devices))
    available = [
        device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()
    ]
    for device in devices:
        if device not in available:
            raise InputError(
                f"training.devices must be among {', '.join(available)}. Received: {device}"
            )
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy(devices)
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(f"/device:{devices[0]}")
    return tf.distribute.get_strategy()


def local_replicas(strategy: tf.distribute.Strategy, workers: Workers) -> range:
    """The replicas of this worker among those of all, which all have as many.

    Example:

    >>> local_replicas(create_strategy(["CPU:0"]), Workers({}))
    range(0, 1)
    """
    count = strategy.num_replicas_in_sync // workers.count
    return range(workers.index * count, (workers.index + 1) * count)


@contextlib.contextmanager
def _keeping_handlers() -> Iterator[None]:
    """Puts the process's signal handlers back: TensorFlow's server takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _split_cpu(count: int) -> None:
    """Makes `count` logical devices of the CPU, which TensorFlow allows before its first use."""
    if count < 2:
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError:
        # TensorFlow has started: whether its devices suffice is checked by the caller.
        return
