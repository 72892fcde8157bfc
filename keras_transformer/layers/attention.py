"""Scaled dot-product attention and multi-head attention."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.errors import check_sizes
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.projection import Projection

# Taken from the scores of hidden keys. In float32 what is left has an exponential that is exactly 0
# beside any real score.
HIDDEN = 1e30


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, from section 3.2.1 of the paper.

    The softmax is computed in float32. Hidden keys get weight exactly 0; a query that may attend
    to no key gets zeros.

    Args:
        query: float tensor [..., T, d_k].
        key: float tensor [..., S, d_k].
        value: float tensor [..., S, d_v].
        mask: boolean tensor that broadcasts to [..., T, S], True = may attend.
        dropout: callable on the weights, or None.

    Returns:
        A tuple: the result [..., T, d_v], and the weights [..., T, S] before dropout.

    Example:

    >>> import numpy as np
    >>> x = np.ones((1, 3, 4), "float32")
    >>> result, weights = scaled_dot_product_attention(x, x, x)
    >>> np.round(weights[0, 0], 2).tolist()
    [0.33000001311302185, 0.33000001311302185, 0.33000001311302185]
    """
    d_k = query.shape[-1]
    # The queries are scaled and not the scores, which are the larger tensor.
    # tf.matmul reads the keys transposed where they lie; ops.matmul would have them copied.
    scores = tf.matmul(query * d_k**-0.5, key, transpose_b=True)
    scores = ops.cast(scores, "float32")
    if mask is not None:
        # A difference: TensorFlow would fuse a sum into the product before it, and the fused one
        # takes up to 200 times as long on a CPU where one mask serves the whole batch.
        scores = scores - ops.where(mask, 0.0, HIDDEN)
    # Not ops.softmax, which warns where there is a single key.
    weights = tf.nn.softmax(scores, axis=-1)
    if mask is not None:
        # Where all keys are hidden the softmax is uniform over them, and must be zero instead.
        has_key = ops.cast(ops.any(mask, axis=-1, keepdims=True), weights.dtype)
    dropped = weights if dropout is None else dropout(weights)
    result = ops.matmul(ops.cast(dropped, value.dtype), value)
    if mask is not None:
        weights = weights * has_key
        result = result * ops.cast(has_key, result.dtype)
    return result, weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention with free `num_heads`, `d_k` and `d_v`, from section 3.2.2 of the paper.

    Queries, keys and values are projected `num_heads` times, attend, and are projected back to the
    width of the query. The three wirings of section 3.2.3 are all calls of this layer:

    - encoder self-attention: `attention(x, x, attention_mask=padding_mask(source))`,
    - decoder self-attention: `attention(y, y, attention_mask=causal_mask(length))`,
    - encoder-decoder attention: `attention(y, memory, attention_mask=padding_mask(source))`.

    Step-by-step decoding calls `project_memory` once for what does not change and `attend` for
    each step.

    Args:
        num_heads: int. h.
        d_k: int. Width of a head's queries and keys.
        d_v: int or None. Width of a head's values. Defaults to `d_k`.
        dropout: float. Rate on the attention weights.
        use_bias: bool. Whether the four projections have biases.
        initializer_gain: float. Multiplies the Glorot standard deviation of the projections.

    Call arguments:
        query: float tensor [B, T, d_model].
        memory: float tensor [B, S, d_memory], what is attended to.
        attention_mask: boolean tensor that broadcasts to [B, num_heads, T, S], True = may attend.
        memory_mask: boolean tensor [B, S], True = real: Keras' implicit mask of `memory`, merged
            with `attention_mask`.
        training: bool. Whether dropout is active.
        return_attention_weights: bool. Whether the weights are returned too.

    Returns:
        Tensor [B, T, d_model]; with `return_attention_weights`, a tuple of it and the float32
        weights [B, num_heads, T, S] (before dropout).

    Raises:
        InputError: where a size is below 1.

    Example:

    >>> import numpy as np
    >>> attention = MultiHeadAttention(num_heads=2, d_k=8)
    >>> y = np.random.rand(1, 5, 16).astype("float32")
    >>> memory = np.random.rand(1, 7, 16).astype("float32")
    >>> result, weights = attention(y, memory, return_attention_weights=True)
    >>> tuple(result.shape), tuple(weights.shape)
    ((1, 5, 16), (1, 2, 5, 7))

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(
        self,
        num_heads: int,
        d_k: int,
        d_v: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        initializer_gain: float = 1.0,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(num_heads=num_heads, d_k=d_k, d_v=d_v)
        self.num_heads = num_heads
        self.d_k = d_k
        self.d_v = d_v or d_k
        self.dropout = dropout
        self.use_bias = use_bias
        self.initializer_gain = initializer_gain
        self.supports_masking = True
        # A layer would add a node for every call; rate 0 needs none.
        self._weights_dropout = (
            Dropout(dropout, dtype="float32", name="dropout") if dropout else None
        )

    def build(self, query_shape, memory_shape):
        def projection(width: int, name: str, input_shape) -> Projection:
            layer = Projection(
                width,
                use_bias=self.use_bias,
                initializer_gain=self.initializer_gain,
                dtype=self.dtype_policy,
                name=name,
            )
            layer.build(input_shape)
            return layer

        h = self.num_heads
        self._query = projection(h * self.d_k, "query", query_shape)
        self._key = projection(h * self.d_k, "key", memory_shape)
        self._value = projection(h * self.d_v, "value", memory_shape)
        self._output = projection(query_shape[-1], "output", (None, None, h * self.d_v))

    def project_memory(self, memory):
        """Keys [B, h, S, d_k] and values [B, h, S, d_v] of a memory [B, S, d_memory]."""
        return self._split(self._key(memory)), self._split(self._value(memory))

    def attend(self, query, keys, values, mask=None, training=None):
        """Attends from `query` [B, T, d_model] to projected keys and values.

        Returns the result [B, T, d_model] and the weights [B, h, T, S].
        """
        dropout = None
        if self._weights_dropout is not None and training:
            dropout = self._weights_dropout_in_training
        heads, weights = scaled_dot_product_attention(
            self._split(self._query(query)), keys, values, mask, dropout
        )
        # [B, h, T, d_v] -> [B, T, h, d_v] -> [B, T, h * d_v]
        heads = ops.transpose(heads, (0, 2, 1, 3))
        batch, length = ops.shape(heads)[0], ops.shape(heads)[1]
        heads = ops.reshape(heads, (batch, length, self.num_heads * self.d_v))
        return self._output(heads), weights

    def call(
        self,
        query,
        memory,
        attention_mask=None,
        memory_mask=None,
        training=None,
        return_attention_weights=False,
    ):
        mask = attention_mask
        if memory_mask is not None:
            memory_mask = ops.expand_dims(memory_mask, (1, 2))  # [B, S] -> [B, 1, 1, S]
            mask = memory_mask if mask is None else ops.logical_and(mask, memory_mask)
        keys, values = self.project_memory(memory)
        result, weights = self.attend(query, keys, values, mask, training)
        return (result, weights) if return_attention_weights else result

    def _weights_dropout_in_training(self, weights):
        return self._weights_dropout(weights, training=True)

    def _split(self, x):
        """[B, T, h * d] -> [B, T, h, d] -> [B, h, T, d]."""
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (batch, length, self.num_heads, x.shape[-1] // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def compute_output_spec(
        self,
        query,
        memory,
        attention_mask=None,
        memory_mask=None,
        training=None,
        return_attention_weights=False,
    ):
        result = keras.KerasTensor(query.shape, self.compute_dtype)
        if not return_attention_weights:
            return result
        weights = (query.shape[0], self.num_heads, query.shape[1], memory.shape[1])
        return result, keras.KerasTensor(weights, "float32")

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "initializer_gain": self.initializer_gain,
        }
