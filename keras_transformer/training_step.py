"""The training step: exact over replicas and accumulation, for `Transformer.train_step`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf


def sum_over_replicas(value: Any) -> Any:
    """The sum of a tensor, or of each tensor of a list, over all replicas of all hosts."""
    replicas = tf.distribute.get_replica_context()
    if replicas.num_replicas_in_sync == 1:
        return value
    return replicas.all_reduce(tf.distribute.ReduceOp.SUM, value)


def in_multi_worker_mode() -> bool:
    """Whether several processes train one model."""
    strategy = tf.distribute.get_strategy()
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and (
        strategy.extended._in_multi_worker_mode()
    )


def layer_of(variable: keras.Variable) -> str:
    """The layer of a model that a variable belongs to, such as `encoder/layer_0`."""
    first, *rest = variable.path.split("/")
    return f"{first}/{rest[0]}" if first in ("encoder", "decoder") else first


def layer_names(variables: Sequence[keras.Variable]) -> list[str]:
    """The layers that variables belong to, in their order."""
    return list(dict.fromkeys(map(layer_of, variables)))


def gradient_norms(
    gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]
) -> tf.Tensor:
    """The norm of the gradient of each of `layer_names`, float32 [layers]."""
    squares: dict[str, list[tf.Tensor]] = {}
    for gradient, variable in zip(gradients, variables, strict=True):
        square = 2 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))
        squares.setdefault(layer_of(variable), []).append(square)
    return tf.sqrt(tf.stack([tf.add_n(of_layer) for of_layer in squares.values()]))


def gradients_in_parts(
    model: keras.Model, batch: Sequence[tf.Tensor], parts: int, forward: Any
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Gradients of a sum over the rows of a batch, with the memory of one part of it.

    The parts run one after the other in a loop of the graph, so that what one needs is free for
    the next. Random seeds and metrics, which a loop of a replica cannot assign, are handed from
    part to part and assigned at the end.

    Args:
        model: `keras.Model`, whose variables all exist.
        batch: tensors [B, ...] that are divided by rows; rows of zeros fill up the last parts.
        parts: int. How many.
        forward: callable of a part's tensors. Returns what is differentiated, and what is summed
            up beside it, both scalars.

    Returns:
        A tuple: the gradients by the model's trainable variables, and the sum.
    """
    variables = model.trainable_variables

    def differentiated(*part: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape() as tape:
            objective, summand = forward(*part)
        gradients = tape.gradient(objective, [variable.value for variable in variables])
        return [tf.convert_to_tensor(gradient) for gradient in gradients], summand

    if parts == 1:
        return differentiated(*batch)
    states = [*model.non_trainable_variables, *model.metrics_variables]
    rows = tf.shape(batch[0])[0]
    size = (rows + parts - 1) // parts

    def divided(tensor: tf.Tensor) -> tf.Tensor:
        padding = [[0, size * parts - rows]] + [[0, 0]] * (tensor.shape.rank - 1)
        # [B, ...] -> [parts, size, ...]
        shape = tf.concat([[parts, size], tf.shape(tensor)[1:]], axis=0)
        return tf.reshape(tf.pad(tensor, padding), shape)

    pieces = [divided(tensor) for tensor in batch]

    def part(number, gradients, total, values):
        with keras.StatelessScope(state_mapping=zip(states, values, strict=True)) as scope:
            addends, summand = differentiated(*(piece[number] for piece in pieces))
        gradients = [sum(pair) for pair in zip(gradients, addends, strict=True)]
        values = [scope.get_current_value(state) for state in states]
        return number + 1, gradients, total + summand, values

    _, gradients, total, values = tf.while_loop(
        lambda number, *_: number < parts,
        part,
        (
            0,
            [tf.zeros(variable.shape, variable.dtype) for variable in variables],
            0.0,
            [tf.convert_to_tensor(state.value) for state in states],
        ),
        parallel_iterations=1,  # one part in memory at a time
    )
    for state, value in zip(states, values, strict=True):
        state.assign(value)
    return gradients, total


@contextlib.contextmanager
def summed_gradients(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Has an optimizer take gradients that are summed over the replicas already.

    Keras' optimizers clip what each replica hands them and then add that up. The norm of the
    whole gradient is only known after the sum, and a second sum would send all of it over the
    network once more.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner._all_reduce_sum_gradients = list
    try:
        yield
    finally:
        # The replicas of a process trace the step in turns, and meet where weights are updated:
        # when the first one is here, none is still before the sum.
        vars(inner).pop("_all_reduce_sum_gradients", None)
