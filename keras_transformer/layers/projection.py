"""A linear map of the last axis, computed as one flat matrix product."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.errors import check_sizes


@keras.saving.register_keras_serializable(package="keras_transformer")
class Projection(keras.layers.Layer):
    """Linear map of the last axis: x W + b, the projections of sections 3.2.2 and 3.3.

    A sequence [B, T, d] is flattened to [B * T, d] first, so that the product and its gradient are
    each one matrix product and not one a sentence.

    Args:
        width: int. Size of the last axis of the result.
        activation: name of an activation of Keras, `"gelu_sigmoid"`, or None.
        use_bias: bool. Whether b is added.
        initializer_gain: float. Multiplies the standard deviation of Glorot's uniform initializer.

    Call arguments:
        inputs: float tensor [..., d].

    Returns:
        Tensor [..., width].

    Raises:
        InputError: where `width` is below 1.

    Example:

    >>> import numpy as np
    >>> tuple(Projection(3)(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 3)
    """

    def __init__(
        self,
        width: int,
        activation: str | None = None,
        use_bias: bool = True,
        initializer_gain: float = 1.0,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(width=width)
        self.width = width
        self.activation = activation
        self._activate = (
            gelu_sigmoid if activation == "gelu_sigmoid" else keras.activations.get(activation)
        )
        self.use_bias = use_bias
        self.initializer_gain = initializer_gain
        self.supports_masking = True

    def build(self, input_shape):
        # Glorot: variance 2 / (fan_in + fan_out) times gain^2.
        initializer = keras.initializers.VarianceScaling(
            scale=self.initializer_gain**2, mode="fan_avg", distribution="uniform"
        )
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.width), initializer=initializer, name="kernel"
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, inputs):
        shape = ops.shape(inputs)
        # [..., d] -> [M, d] -> [M, width] -> [..., width]
        result = ops.matmul(ops.reshape(inputs, (-1, inputs.shape[-1])), self.kernel)
        if self.bias is not None:
            result = ops.add(result, self.bias)
        result = self._activate(result)
        return ops.reshape(result, (*shape[:-1], self.width))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.width)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "width": self.width,
            "activation": self.activation,
            "use_bias": self.use_bias,
            "initializer_gain": self.initializer_gain,
        }


def gelu_sigmoid(x):
    """x sigmoid(1.702 x), an approximation of gelu (Hendrycks and Gimpel, 2016, section 2)."""
    return x * ops.sigmoid(1.702 * x)
