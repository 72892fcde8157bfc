"""Small models, batches and helpers that several tests use."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig, build_transformer
from keras_transformer.layers import StackArguments

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def small_config(**changes) -> TransformerConfig:
    sizes = {
        "vocabulary_size": 20,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 4,
        "dropout": 0.0,
    }
    return TransformerConfig(**{**sizes, **changes})


def small_model(dtype=None, **changes) -> Transformer:
    """A model whose every weight is random, so that no bias or gain goes untested."""
    model = build_transformer(small_config(**changes), dtype=dtype)
    randomize(model)
    return model


def small_arguments(**changes) -> StackArguments:
    return StackArguments(
        **{"d_model": 8, "d_ff": 12, "num_heads": 2, "d_k": 3, "d_v": 5, **changes}
    )


def randomize(layer, seed: int = 5) -> None:
    """Moves gains, biases and other vectors away from 1 and 0."""
    random = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        if len(variable.shape) == 1:
            variable.assign(variable.numpy() + random.normal(0, 0.3, variable.shape))


def padded_ids(lengths, width: int, seed: int = 0, vocabulary_size: int = 20) -> np.ndarray:
    """Random words (ids from 4 on) of the given lengths, padded with 0 to `width`: int32 [B, W]."""
    random = np.random.default_rng(seed)
    ids = random.integers(4, vocabulary_size, (len(lengths), width))
    return (ids * (np.arange(width) < np.asarray(lengths)[:, None])).astype("int32")


def small_batch(source_lengths=(7, 4, 5), target_lengths=(3, 6, 5), extra: int = 0, seed: int = 0):
    """`({"source", "target"}, labels)`, each padded `extra` more than the longest needs."""
    source = padded_ids(source_lengths, max(source_lengths) + extra, seed)
    labels = padded_ids(target_lengths, max(target_lengths) + extra, seed + 1)
    target = np.roll(labels, 1, axis=1)
    target[:, 0] = 1
    target *= labels != 0
    return {"source": source, "target": target.astype("int32")}, labels


def weights_by_path(layer) -> dict[str, np.ndarray]:
    """Path below `layer` -> float32 array."""
    prefix = "" if isinstance(layer, keras.Model) else f"{layer.name}/"
    return {v.path.removeprefix(prefix): v.numpy() for v in layer.trainable_variables}


def rewind_dropout(layer) -> None:
    """Sets the state of every dropout so that the next call draws what it drew the last time."""
    states = [v for v in layer.non_trainable_variables if "seed_generator" in v.path]
    for number, state in enumerate(states):
        state.assign([number + 1, 0])


def functional(layer_or_function, *shapes, dtype="float32") -> keras.Model:
    """A functional model around a layer, one input a shape (without the batch)."""
    inputs = [keras.Input(shape, dtype=dtype) for shape in shapes]
    return keras.Model(inputs, layer_or_function(*inputs))


def result_and_gradients(layer, x, in_graph=False, **arguments):
    """The result, and the gradients of a function of it by inputs and weights."""

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = layer(x, x, **arguments)
            if arguments.get("return_attention_weights"):
                result = result[0]
            loss = tf.reduce_sum(tf.sin(tf.cast(result, tf.float32)))
        variables = [variable.value for variable in layer.trainable_variables]
        return [result, *tape.gradient(loss, [x, *variables])]

    return (tf.function(run) if in_graph else run)(tf.constant(x))
