"""The devices of a run: what a recipe can name, and what is refused."""

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from trainers.strategy import create_strategy


@pytest.fixture(autouse=True)
def started():
    """TensorFlow has started, as it may have before a library user asks for devices."""
    tf.constant(0) + 1


def test_without_names_a_machine_without_gpus_needs_no_strategy(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert create_strategy(None) is tf.distribute.get_strategy()
    assert create_strategy(None).num_replicas_in_sync == 1


def test_all_visible_gpus_are_taken(monkeypatch):
    asked = []
    names = ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1", "/device:GPU:2"]

    class Device:
        def __init__(self, name):
            self.name = name

    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: [object()] * 3 if kind == "GPU" else []
    )
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: [*map(Device, names)])
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", asked.append)
    create_strategy(None)
    assert asked == [["GPU:0", "GPU:1", "GPU:2"]]


def test_one_device_by_name_in_any_case():
    for name in ("CPU:0", "cpu:0"):
        strategy = create_strategy([name])
        assert strategy.num_replicas_in_sync == 1
        (device,) = strategy.extended.worker_devices
        assert device.endswith("/device:CPU:0")


@pytest.mark.parametrize("name", ["GPU:7", "CPU:1", "TPU:0", "gpu", ""])
def test_a_device_that_does_not_exist_is_named_with_those_that_do(name):
    with pytest.raises(InputError) as caught:
        create_strategy([name])
    assert str(caught.value).startswith("training.devices must be among CPU:0")
    assert str(caught.value).endswith(f"Received: {name.upper()}")


def test_the_cpu_cannot_be_divided_once_tensorflow_has_started():
    with pytest.raises(InputError, match="among CPU:0.*Received: CPU:1"):
        create_strategy(["CPU:0", "CPU:1"])


def test_a_device_named_twice_is_refused():
    with pytest.raises(InputError, match="must differ. Received: CPU:0, CPU:0"):
        create_strategy(["CPU:0", "cpu:0"])
