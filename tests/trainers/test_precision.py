from types import SimpleNamespace

import pytest
import tensorflow as tf

from trainers import precision
from trainers.precision import resolve_precision


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_a_named_policy_is_itself(name):
    assert resolve_precision(name) == name


@pytest.mark.parametrize(
    ("cpu_info", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", "mixed_bfloat16"),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", "mixed_bfloat16"),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n", "float32"),
        ("model name\t: a CPU with avx512_bf16 in its name\nflags\t\t: fpu\n", "float32"),
    ],
)
def test_auto_follows_the_cpu_where_there_is_no_gpu(tmp_path, monkeypatch, cpu_info, expected):
    file = tmp_path / "cpuinfo"
    file.write_text(cpu_info)
    monkeypatch.setattr(precision, "_CPU_INFO", file)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert resolve_precision("auto") == expected


def test_auto_is_float32_where_the_system_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "_CPU_INFO", tmp_path / "missing")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert resolve_precision("auto") == "float32"


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [([(8, 0), (9, 0)], "mixed_bfloat16"), ([(8, 0), (7, 5)], "float32"), ([None], "float32")],
)
def test_auto_needs_every_gpu_to_be_made_for_it(monkeypatch, capabilities, expected):
    gpus = [SimpleNamespace(details=value) for value in capabilities]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda gpu: {"compute_capability": gpu.details} if gpu.details else {},
    )
    assert resolve_precision("auto") == expected
