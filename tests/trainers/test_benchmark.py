"""The benchmarks measure what they say, on models of the shape that they are given."""

import pytest
import tensorflow as tf

from keras_transformer import TransformerConfig, build_transformer
from trainers import benchmark
from trainers.benchmark import measure_decode, measure_train

SHAPE = {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "vocabulary_size": 50}


def parameters():
    config = TransformerConfig(
        50, num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2
    )
    return build_transformer(config).count_params()


def check_about(result):
    assert result["parameters"] == parameters()
    assert result["system"] == "keras_transformer"
    assert set(result["versions"]) == {"keras-transformer", "keras", "tensorflow"}


def test_training_takes_steps_of_the_batch():
    result = measure_train(**SHAPE, batch=3, length=5, steps=3, warm_up=2, dtype="bfloat16")
    seconds = result["seconds_per_step"]
    assert result["target_tokens_per_second"] == pytest.approx(15 / seconds)
    assert 0 < result["fastest_step"] <= seconds <= result["slowest_step"]
    check_about(result)


def test_the_first_steps_are_not_timed_and_the_cores_are_those_asked_for(monkeypatch):
    class Timer(benchmark._StepTimer):
        def on_train_end(self, logs=None):
            assert len(self.seconds) == 5
            self.seconds = [100.0, 100.0, 3.0, 1.0, 2.0]

    asked = []
    monkeypatch.setattr(benchmark, "_StepTimer", Timer)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", asked.append)
    shape = {**SHAPE, "batch": 3, "length": 5, "dtype": "float32"}
    result = measure_train(**shape, steps=3, warm_up=2, threads=1)
    assert asked == [1]
    assert (result["fastest_step"], result["seconds_per_step"], result["slowest_step"]) == (1, 2, 3)
    assert result["target_tokens_per_second"] == 7.5


def test_decoding_takes_all_its_steps():
    # It raises where a search ends before its last step.
    result = measure_decode(
        **SHAPE,
        batch=2,
        source_length=4,
        beam_size=3,
        new_tokens=6,
        repeats=2,
        warm_up=1,
        dtype="float32",
    )
    seconds = result["seconds"]
    assert result["target_tokens_per_second"] == pytest.approx(12 / seconds)
    assert result["milliseconds_per_step"] == pytest.approx(1000 * seconds / 6)
    assert 0 < result["fastest_run"] <= seconds <= result["slowest_run"]
    check_about(result)
