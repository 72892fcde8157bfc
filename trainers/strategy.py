"""Which devices train: all visible GPUs, or the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.errors import InputError


def create_strategy(devices: Sequence[str] | None = None) -> tf.distribute.Strategy:
    """The distribution strategy of a run.

    More than one device trains under `MirroredStrategy`: every device holds all weights, each
    batch is split over them, and their gradients are added up. One device needs no strategy.

    Args:
        devices: names such as `"GPU:0"` or `"CPU:1"`. `None` means all visible GPUs, or the CPU
            where there is none. `"CPU:1"` and later are logical devices on the one CPU, which try
            out a distributed run without GPUs.

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        InputError: where a device does not exist.

    Example:

    >>> create_strategy(["CPU:0"]).num_replicas_in_sync
    1
    """
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
