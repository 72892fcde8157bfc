"""Table 1 measured: exponents, fair times, peaks of memory, and the bounds that are promised."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import InputError
from keras_transformer.diagnosis import complexity, complexity_memory
from keras_transformer.diagnosis.complexity import (
    fastest,
    fitted_exponent,
    measure_complexity,
    measure_times,
)
from keras_transformer.diagnosis.complexity_memory import peak_memory
from keras_transformer.layers import MultiHeadAttention

MEBIBYTE = 2**20


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.15, 2.0])
def test_an_exponent_is_found_again(exponent):
    sizes = [128, 256, 512, 1024, 2048]
    noise = np.random.default_rng(1).uniform(0.99, 1.01, len(sizes))
    values = [3e-5 * size**exponent * factor for size, factor in zip(sizes, noise, strict=True)]
    assert fitted_exponent(sizes, values) == pytest.approx(exponent, abs=0.03)


def test_only_the_larger_half_counts():
    assert fitted_exponent([1, 2, 4, 8], [100, 100, 16, 64]) == pytest.approx(2)
    assert fitted_exponent([1, 2, 4], [100, 4, 16]) == pytest.approx(2)
    assert fitted_exponent([1, 2], [3, 6]) == pytest.approx(1)
    assert fitted_exponent([1, 2], [0, 6]) is None


def test_calls_take_turns_and_the_least_time_counts():
    order = []
    pauses = {"a": iter([0, 0.05, 0.001, 0.05]), "b": iter([0, 0.02, 0.02, 0.02])}

    def call(name):
        order.append(name)
        time.sleep(next(pauses[name]))

    seconds = fastest({name: lambda name=name: call(name) for name in pauses}, repeats=3, turn=0)
    assert order == ["a", "b"] * 4
    assert 0.001 <= seconds["a"] < 0.02 <= seconds["b"] < 0.1


def test_a_short_call_is_made_again_until_its_turn_is_over():
    order = []
    calls = {
        "short": lambda: (order.append("short"), time.sleep(0.004)),
        "long": lambda: (order.append("long"), time.sleep(0.03)),
    }
    fastest(calls, repeats=1, turn=0.02)
    assert order[:2] == ["short", "long"]
    assert 2 <= order[2:].count("short") <= 5
    assert order[-1] == "long"
    assert order.count("long") == 2


def test_the_result_holds_every_figure_and_is_json(monkeypatch):
    monkeypatch.setattr(complexity, "peak_memory", lambda name, n, *_: 1024 * n**2)
    monkeypatch.setattr(complexity, "PATH_LENGTHS", (4, 9))
    told, layers = [], ["convolution", "chunked-self-attention"]
    result = measure_complexity([16, 32, 64], [8, 16], 4, layers, repeats=1, progress=told.append)
    assert json.loads(json.dumps(result)) == result
    assert list(result["layers"]) == layers
    assert result["settings"] | {"length": 32, "width": 16, "window": 4} == result["settings"]
    for layer in result["layers"].values():
        assert len(layer["seconds_by_length"]) == len(layer["peak_bytes_by_length"]) == 3
        assert len(layer["seconds_by_width"]) == 2
        assert all(seconds > 0 for seconds in layer["seconds_by_length"])
        assert layer["exponents"]["peak_bytes_by_length"]["measured"] == pytest.approx(2)
        assert layer["path_length"]["measured"] == layer["path_length"]["expected"]
    convolution = result["layers"]["convolution"]
    assert convolution["dilated_path_length"]["measured"] == [2, 2]
    assert len(told) == 5


def without_memory(result):
    layer = result["layers"]["convolution"]
    peaks = layer["exponents"]["peak_bytes_by_length"]
    return layer["peak_bytes_by_length"] is None and peaks["measured"] is None


def test_memory_is_left_out_where_it_is_not_wanted_or_the_system_does_not_tell(monkeypatch):
    monkeypatch.setattr(complexity, "PATH_LENGTHS", (4,))
    monkeypatch.setattr(complexity, "peak_memory", None)
    arguments = {"lengths": [16, 32], "widths": [8, 16], "layers": ["convolution"], "repeats": 1}
    result = measure_complexity(**arguments, memory=False, length=8, width=4)
    assert without_memory(result)
    assert result["settings"]["length"] == 8
    assert result["settings"]["width"] == 4
    monkeypatch.setattr(complexity, "can_measure_memory", lambda: False)
    assert without_memory(measure_complexity(**arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [512, 256]}, r"lengths must be at least two .* Received: 512, 256"),
        ({"lengths": [256, 256]}, "each larger than the one before"),
        ({"lengths": [256]}, "at least two"),
        ({"lengths": [0, 256]}, "lengths must be an integer of at least 1. Received: 0"),
        ({"widths": [64, 32]}, "widths must be"),
        ({"layers": ["gru"]}, "layers must be of .* Received: 'gru'"),
        ({"window": 1}, "window must be at least 2"),
        ({"repeats": 0}, "repeats must be"),
        ({"lengths": [64, 10**12]}, "lengths must be at most 1048576. Received: 1000000000000$"),
        ({"widths": [64, 10**20]}, "widths must be at most 1048576. Received: 1000"),
        ({"length": 10**12}, "length must be at most"),
        ({"kernel": 10**20 + 1}, "kernel must be at most"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(arguments, message, monkeypatch):
    monkeypatch.setattr(complexity, "peak_memory", None)
    with pytest.raises(InputError, match=message):
        measure_complexity(**arguments)


def test_what_does_not_fit_into_memory_is_named(monkeypatch):
    def full(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    with monkeypatch.context() as patch:
        patch.setattr(complexity, "compiled_layer", lambda *_: full)
        with pytest.raises(
            InputError,
            match="lengths must fit into memory: recurrent of width 4 does not. Received: 16$",
        ):
            measure_times(["recurrent"], [(16, 4)])
    with monkeypatch.context() as patch:
        patch.setattr(complexity, "compiled_layer", full)
        with pytest.raises(InputError, match="widths must fit .* Received: 4$"):
            measure_times(["recurrent"], [(16, 4)])
    monkeypatch.setattr(complexity.tf.random, "normal", full)
    with pytest.raises(InputError, match="lengths must fit .* an input of width 4 .*: 16$"):
        measure_times(["convolution"], [(16, 4)])


def test_the_process_that_measures_memory_finds_modules_as_this_one_does(monkeypatch):
    asked = []

    def run(command, env, **options):
        asked.append((command, env))
        return subprocess.CompletedProcess(command, 0, "12\n", "")

    monkeypatch.setattr(complexity_memory.subprocess, "run", run)
    assert peak_memory("convolution", 16, 4) == 12
    ((command, env),) = asked
    assert json.loads(command[-2]) == [place for place in sys.path if isinstance(place, str)]
    assert env.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
    assert "-P" in command


@pytest.mark.slow
def test_a_peak_is_what_a_layer_takes():
    scores = 2048 * 2048 * 4  # one head's float32
    assert scores <= peak_memory("self-attention", 2048, 64) <= 3 * scores
    assert peak_memory("convolution", 2048, 64) < scores / 4


@pytest.mark.slow
def test_a_process_that_ends_is_an_error_that_names_the_length():
    with pytest.raises(InputError, match="self-attention of width 64 ended .* Received: 2097152$"):
        peak_memory("self-attention", 2**21, 64)  # 17 terabytes of scores


@pytest.mark.slow
def test_chunked_attention_at_8192_takes_a_tenth_of_full_attentions_memory():
    full = peak_memory("self-attention", 8192, 512)
    chunked = peak_memory("chunked-self-attention", 8192, 512)
    assert full >= 8 * 8192**2 * 4  # the scores of 8 heads
    assert chunked <= full / 10, f"{chunked / MEBIBYTE:.0f} of {full / MEBIBYTE:.0f} MiB"


@pytest.mark.slow
def test_chunked_attention_saves_memory_in_training_too():
    # Half as long as what docs/complexity.md quotes: full attention would take 6.5 GB there.
    full = peak_memory("self-attention", 4096, 512, backward=True)
    chunked = peak_memory("chunked-self-attention", 4096, 512, backward=True)
    assert chunked <= full / 5, f"{chunked / MEBIBYTE:.0f} of {full / MEBIBYTE:.0f} MiB"


@pytest.mark.slow
def test_chunked_attentions_memory_grows_with_the_length_and_not_its_square():
    short, long = (peak_memory("chunked-self-attention", n, 512) for n in (2048, 8192))
    assert long <= 6 * short  # 4 times as long; TensorFlow takes memory in steps


@pytest.mark.slow
def test_chunked_attention_at_8192_equals_full_attention():
    x = np.random.default_rng(1).standard_normal((1, 8192, 512), "float32")
    full, chunked = MultiHeadAttention(8, 64), MultiHeadAttention(8, 64, chunk=256)
    for layer in (full, chunked):
        layer.build(x.shape, x.shape)
    chunked.set_weights(full.get_weights())
    difference = chunked(x, x).numpy() - full(x, x).numpy()
    assert np.abs(difference).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_windowed_attentions_time_grows_with_an_exponent_of_at_most_1_15(backward):
    name, lengths = "restricted-self-attention", [1024, 2048, 4096, 8192, 16384]
    seconds = measure_times([name], [(n, 256) for n in lengths], backward=backward)
    times = [seconds[name, n, 256] for n in lengths]
    exponent = np.polyfit(np.log(lengths), np.log(times), 1)[0]
    assert exponent <= 1.15, times
