"""One encoder layer, and the stack of N."""

from __future__ import annotations

import keras

from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.stack import Stack, StackArguments


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(keras.layers.Layer):
    """Self-attention and feed-forward, each with its residual, from section 3.1 of the paper.

    Args:
        arguments: `StackArguments` (or a dict of them): the sizes and rates of every sub-layer.

    Call arguments:
        inputs: float tensor [B, S, d_model].
        attention_mask: boolean tensor that broadcasts to [B, num_heads, S, S], True = may attend;
            with a window the same for all queries, [B, 1, 1, S].
        training: bool. Whether dropout is active.
        return_attention_weights: bool. Whether the weights are returned too.

    Returns:
        Tensor [B, S, d_model]; with `return_attention_weights`, a tuple of it and the float32
        weights [B, num_heads, S, S].

    Example:

    >>> import numpy as np
    >>> layer = EncoderLayer(StackArguments(d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8))
    >>> x, weights = layer(np.ones((1, 3, 16), "float32"), return_attention_weights=True)
    >>> tuple(x.shape), tuple(weights.shape)
    ((1, 3, 16), (1, 2, 3, 3))

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(self, arguments: StackArguments | dict, **kwargs) -> None:
        super().__init__(**kwargs)
        self.arguments = StackArguments.of(arguments)
        policy = self.dtype_policy
        self.attention = MultiHeadAttention(
            **self.arguments.self_attention(), dtype=policy, name="self_attention"
        )
        self.attention_residual = Residual(
            **self.arguments.residual(), dtype=policy, name="self_attention_residual"
        )
        self.feed_forward = FeedForward(
            **self.arguments.feed_forward(), dtype=policy, name="feed_forward"
        )
        self.feed_forward_residual = Residual(
            **self.arguments.residual(), dtype=policy, name="feed_forward_residual"
        )
        self.supports_masking = True

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)
        self.attention_residual.build(input_shape)
        self.feed_forward.build(input_shape)
        self.feed_forward_residual.build(input_shape)

    def call(self, inputs, attention_mask=None, training=None, return_attention_weights=False):
        def attend(x):
            return self.attention(
                x,
                x,
                attention_mask=attention_mask,
                training=training,
                return_attention_weights=return_attention_weights,
            )

        def feed_forward(x):
            return self.feed_forward(x, training=training)

        x = self.attention_residual(inputs, sublayer=attend, training=training)
        if return_attention_weights:
            x, weights = x
        x = self.feed_forward_residual(x, sublayer=feed_forward, training=training)
        return (x, weights) if return_attention_weights else x

    def compute_output_spec(
        self, inputs, attention_mask=None, training=None, return_attention_weights=False
    ):
        result = keras.KerasTensor(inputs.shape, self.compute_dtype)
        if not return_attention_weights:
            return result
        batch, length, _ = inputs.shape
        weights = (batch, self.arguments.num_heads, length, length)
        return result, keras.KerasTensor(weights, "float32")

    def get_config(self) -> dict:
        return {**super().get_config(), "arguments": self.arguments.to_dict()}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """N encoder layers, with a final LayerNorm where they are pre-norm (section 3.1).

    Args:
        num_layers: int. N.
        arguments: `StackArguments` (or a dict of them).

    Call arguments:
        inputs: float tensor [B, S, d_model], embeddings with positions.
        attention_mask: boolean tensor that broadcasts to [B, num_heads, S, S], True = may attend.
        training: bool. Whether dropout is active.

    Returns:
        Tensor [B, S, d_model], the memory that the decoder attends to.

    Example:

    >>> import numpy as np
    >>> encoder = Encoder(2, StackArguments(d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8))
    >>> tuple(encoder(np.ones((1, 3, 16), "float32")).shape)
    (1, 3, 16)
    """

    layer_class = EncoderLayer

    def build(self, input_shape):
        self.build_stack(input_shape)

    def call(self, inputs, attention_mask=None, training=None):
        x = inputs
        for layer in self.stack:
            x = layer(x, attention_mask=attention_mask, training=training)
        return self.finish(x)

    def with_attention_weights(self, inputs, attention_mask=None, training=None):
        """As a call, but returns a tuple: the memory, and each layer's weights [B, h, S, S]."""
        x, all_weights = inputs, []
        for layer in self.stack:
            x, weights = layer(
                x,
                attention_mask=attention_mask,
                training=training,
                return_attention_weights=True,
            )
            all_weights.append(weights)
        return self.finish(x), all_weights
