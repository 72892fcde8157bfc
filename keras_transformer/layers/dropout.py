"""Dropout that draws 16 random bits an element."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_transformer.errors import InputError

# Values of 16 random bits; the rate is rounded to a multiple of one part of it.
_VALUES = 2**16


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Layer):
    """Sets elements to 0 at random and scales up the others, from section 5.4 of the paper.

    The same as `keras.layers.Dropout` with a rate rounded to 1 / 65536. It draws half as many
    random numbers, which on a CPU are a tenth of a training step, and every replica of a
    distribution strategy draws its own.

    Args:
        rate: float in [0, 1). Share of the elements that become 0.
        seed: int or None.

    Call arguments:
        inputs: float tensor.
        training: bool. Whether to drop anything.

    Returns:
        Tensor of the shape and dtype of the inputs.

    Raises:
        InputError: where the rate is outside [0, 1).

    Example:

    >>> import numpy as np
    >>> dropout = Dropout(0.5, seed=1)
    >>> x = dropout(np.ones((100, 100), "float32"), training=True)
    >>> 0.45 < float((x.numpy() == 0).mean()) < 0.55, float(x.numpy().max())
    (True, 2.0)

    References:
        - Srivastava et al., 2014, [Dropout: A Simple Way to Prevent Neural Networks from
          Overfitting](https://jmlr.org/papers/v15/srivastava14a.html)
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs) -> None:
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise InputError(f"rate must be at least 0 and below 1. Received: {rate!r}")
        self.rate = rate
        self.seed = seed
        self._threshold = min(round(rate * _VALUES), _VALUES - 1)
        if self._threshold:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True
        self.built = True

    def call(self, inputs, training=False):
        if not training or not self.is_active:
            return inputs
        return self.drop(inputs, self.next_seed())

    @property
    def is_active(self) -> bool:
        """Whether the rate, rounded, drops anything in training."""
        return self._threshold > 0

    def next_seed(self):
        """What `drop` draws from, int32 [2]: another one each time and on every replica."""
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        replicas = tf.distribute.get_replica_context()
        if replicas is not None and replicas.num_replicas_in_sync > 1:
            seed += tf.stack([0, replicas.replica_id_in_sync_group])
        return seed

    def drop(self, inputs, seed):
        """Drops the elements that a seed says: the same ones for the same seed and shape."""
        size = tf.size(inputs)
        # One draw of 32 bits serves two elements.
        draws = tf.random.stateless_uniform(
            [(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32
        )
        bits = tf.reshape(tf.bitcast(draws, tf.uint16), [-1])[:size]
        is_kept = tf.reshape(bits >= tf.constant(self._threshold, tf.uint16), tf.shape(inputs))
        scale = _VALUES / (_VALUES - self._threshold)
        return inputs * (tf.cast(is_kept, inputs.dtype) * tf.cast(scale, inputs.dtype))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
