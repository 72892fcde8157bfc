"""The position-wise feed-forward network."""

from __future__ import annotations

import keras

from keras_transformer.errors import check_sizes
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.projection import Projection


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 at each position, from section 3.3 of the paper.

    Args:
        d_ff: int. Inner width.
        activation: name of the activation between the two maps.
        dropout: float. Rate after the activation; the paper has none.
        initializer_gain: float. Multiplies the Glorot standard deviation of both maps.

    Call arguments:
        inputs: float tensor [B, T, d_model].
        training: bool. Whether dropout is active.

    Returns:
        Tensor [B, T, d_model].

    Raises:
        InputError: where `d_ff` is below 1.

    Example:

    >>> import numpy as np
    >>> tuple(FeedForward(d_ff=32)(np.ones((1, 5, 8), "float32")).shape)
    (1, 5, 8)

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(
        self,
        d_ff: int,
        activation: str = "relu",
        dropout: float = 0.0,
        initializer_gain: float = 1.0,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(d_ff=d_ff)
        self.d_ff = d_ff
        self.activation = activation
        self.dropout = dropout
        self.initializer_gain = initializer_gain
        self.supports_masking = True
        self._dropout = None
        if dropout:
            self._dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape):
        self._inner = Projection(
            self.d_ff,
            activation=self.activation,
            initializer_gain=self.initializer_gain,
            dtype=self.dtype_policy,
            name="inner",
        )
        self._inner.build(input_shape)
        self._outer = Projection(
            input_shape[-1],
            initializer_gain=self.initializer_gain,
            dtype=self.dtype_policy,
            name="outer",
        )
        self._outer.build((*input_shape[:-1], self.d_ff))

    def call(self, inputs, training=None):
        x = self._inner(inputs)
        if self._dropout is not None:
            x = self._dropout(x, training=training)
        return self._outer(x)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "d_ff": self.d_ff,
            "activation": self.activation,
            "dropout": self.dropout,
            "initializer_gain": self.initializer_gain,
        }
