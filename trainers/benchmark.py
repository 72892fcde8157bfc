"""Speed of training and of decoding, on random sentences without padding."""

from __future__ import annotations

import statistics
import time
from importlib.metadata import version
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import (
    SmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
)
from keras_transformer.search import beam_search
from keras_transformer.search_rules import SearchRules

# Ids below are pad, start, end and unknown.
_FIRST_WORD = 4
_END = 2


def measure_train(
    layers: int,
    d_model: int,
    d_ff: int,
    heads: int,
    vocabulary_size: int,
    batch: int,
    length: int,
    steps: int,
    warm_up: int,
    dtype: str,
    threads: int = 0,
) -> dict[str, Any]:
    """Target tokens per second of training steps, as `fit` takes them.

    Args:
        layers: int. N of encoder and decoder.
        d_model: int.
        d_ff: int.
        heads: int.
        vocabulary_size: int. Shared by source, target and output.
        batch: int. Sentences a batch.
        length: int. Tokens of every source and target sentence.
        steps: int. Steps that are timed.
        warm_up: int. Steps before them.
        dtype: `"float32"` or `"bfloat16"` (the policy mixed_bfloat16).
        threads: int. Processor cores to use; 0 means all.

    Returns:
        A dict; the figures are of the median step.
    """
    _limit_threads(threads)
    config = _config(layers, d_model, d_ff, heads, vocabulary_size)
    model = Transformer(config, dtype="mixed_bfloat16" if dtype == "bfloat16" else dtype)
    model.compile(
        optimizer=keras.optimizers.Adam(
            TransformerSchedule(d_model), beta_1=0.9, beta_2=0.98, epsilon=1e-9
        ),
        loss=SmoothedCrossEntropy(0.1),
        jit_compile=False,
    )
    words = np.random.default_rng(1).integers(
        _FIRST_WORD, vocabulary_size, (3, batch, length), np.int32
    )
    inputs = {"source": words[0], "target": words[1]}
    dataset = tf.data.Dataset.from_tensors((inputs, words[2])).repeat()
    timer = _StepTimer()
    model.fit(dataset, steps_per_epoch=warm_up + steps, shuffle=False, callbacks=[timer], verbose=0)
    seconds = timer.seconds[warm_up:]
    return {
        "benchmark": "train",
        "target_tokens_per_second": batch * length / statistics.median(seconds),
        "seconds_per_step": statistics.median(seconds),
        "fastest_step": min(seconds),
        "slowest_step": max(seconds),
        **_about(model),
    }


def measure_decode(
    layers: int,
    d_model: int,
    d_ff: int,
    heads: int,
    vocabulary_size: int,
    batch: int,
    source_length: int,
    beam_size: int,
    new_tokens: int,
    repeats: int,
    warm_up: int,
    dtype: str,
    threads: int = 0,
) -> dict[str, Any]:
    """Target tokens per second of beam search that takes exactly `new_tokens` steps.

    Args:
        layers: int. N of encoder and decoder.
        d_model: int.
        d_ff: int.
        heads: int.
        vocabulary_size: int. Shared by source, target and output.
        batch: int. Sentences a batch.
        source_length: int. Tokens of every source sentence.
        beam_size: int.
        new_tokens: int. Steps; the end token is suppressed before the last.
        repeats: int. Searches that are timed.
        warm_up: int. Searches before them.
        dtype: `"float32"` or `"bfloat16"`.
        threads: int. Processor cores to use; 0 means all.

    Returns:
        A dict; the figures are of the median search.
    """
    _limit_threads(threads)
    config = _config(layers, d_model, d_ff, heads, vocabulary_size)
    model = Transformer(config, dtype="mixed_bfloat16" if dtype == "bfloat16" else dtype)
    source = np.random.default_rng(1).integers(
        _FIRST_WORD, vocabulary_size, (batch, source_length), np.int32
    )

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def search(source):
        step, state = model.start_decoding(source, beam_size)
        no_end = tf.one_hot(_END, vocabulary_size, on_value=-1e9, off_value=0.0)

        def step_without_end(tokens, index, state):
            logits, state = step(tokens, index, state)
            return logits + no_end, state

        return beam_search(
            step_without_end,
            state,
            beam_size=beam_size,
            maximum_lengths=tf.fill([tf.shape(source)[0]], new_tokens),
            rules=SearchRules(),
        )

    result = search(tf.constant(source))
    if not np.all(result.lengths[:, 0] == new_tokens):
        raise RuntimeError(f"Expected {new_tokens} steps. Received: {result.lengths[:, 0]}")
    seconds = []
    for _ in range(warm_up + repeats):
        start = time.perf_counter()
        search(tf.constant(source)).scores.numpy()
        seconds.append(time.perf_counter() - start)
    seconds = seconds[warm_up:]
    median = statistics.median(seconds)
    return {
        "benchmark": "decode",
        "target_tokens_per_second": batch * new_tokens / median,
        "seconds": median,
        "milliseconds_per_step": 1000 * median / new_tokens,
        "fastest_run": min(seconds),
        "slowest_run": max(seconds),
        **_about(model),
    }


class _StepTimer(keras.callbacks.Callback):
    """Seconds of each training step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


def _limit_threads(threads: int) -> None:
    """Sets the number of cores, which TensorFlow allows before its first use and never after."""
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def _config(
    layers: int, d_model: int, d_ff: int, heads: int, vocabulary_size: int
) -> TransformerConfig:
    return TransformerConfig(
        vocabulary_size,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        num_heads=heads,
    )


def _about(model: Transformer) -> dict[str, Any]:
    return {
        "system": "keras_transformer",
        "parameters": model.count_params(),
        "versions": {name: version(name) for name in ("keras-transformer", "keras", "tensorflow")},
    }
