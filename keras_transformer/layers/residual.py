"""Dropout, residual connection and layer normalization around a sub-layer."""

from __future__ import annotations

from collections.abc import Callable

import keras

from keras_transformer.config import CHOICES
from keras_transformer.errors import check_choice
from keras_transformer.layers.dropout import Dropout


@keras.saving.register_keras_serializable(package="keras_transformer")
class Residual(keras.layers.Layer):
    """Wraps a sub-layer as in section 3.1 of the paper: LayerNorm(x + Dropout(Sublayer(x))).

    With `norm="pre"` it is x + Dropout(Sublayer(LayerNorm(x))), which trains deep stacks more
    easily and needs one more LayerNorm at the end of the stack.

    Args:
        norm: `"post"` or `"pre"`.
        dropout: float. Rate on the sub-layer's output (section 5.4).
        epsilon: float. Added to the variance in LayerNorm.

    Call arguments:
        inputs: float tensor [B, T, d_model].
        sublayer: callable from such a tensor to such a tensor, or to a tuple of it and more.
        training: bool. Whether dropout is active.

    Returns:
        Tensor [B, T, d_model]; where the sub-layer returns a tuple, a tuple of it and whatever more
        the sub-layer returned.

    Raises:
        InputError: where `norm` is neither.

    Example:

    >>> import numpy as np
    >>> x = np.ones((1, 2, 4), "float32")
    >>> y = Residual()(x, sublayer=lambda x: 3 * x)
    >>> tuple(y.shape)
    (1, 2, 4)

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
        - Xiong et al., 2020, [On Layer Normalization in the Transformer
          Architecture](https://arxiv.org/abs/2002.04745)
    """

    def __init__(
        self, norm: str = "post", dropout: float = 0.0, epsilon: float = 1e-6, **kwargs
    ) -> None:
        super().__init__(**kwargs)
        check_choice("norm", norm, CHOICES["norm"])
        self.norm = norm
        self.dropout = dropout
        self.epsilon = epsilon
        self.supports_masking = True
        self._dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self._normalization = keras.layers.LayerNormalization(
            epsilon=epsilon, dtype=self.dtype_policy, name="normalization"
        )

    def build(self, input_shape):
        self._normalization.build(input_shape)

    def call(self, inputs, sublayer: Callable, training=None):
        result = sublayer(self._normalization(inputs) if self.norm == "pre" else inputs)
        more = ()
        if isinstance(result, tuple):
            result, *more = result
        result = inputs + self._dropout(result, training=training)
        if self.norm == "post":
            result = self._normalization(result)
        return (result, *more) if more else result

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "norm": self.norm,
            "dropout": self.dropout,
            "epsilon": self.epsilon,
        }
