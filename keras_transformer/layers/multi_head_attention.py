"""Multi-head attention: whole, some queries at a time, or within a window."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.config import CHOICES
from keras_transformer.errors import InputError, check_choice, check_sizes
from keras_transformer.layers.attention import weighted_values
from keras_transformer.layers.chunked_attention import chunked_attention
from keras_transformer.layers.compatibility import additive, dot_product, scaled_dot_product
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masks import causal_mask, window_mask
from keras_transformer.layers.projection import Projection
from keras_transformer.layers.windowed_attention import Window, windowed_attention


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention with free `num_heads`, `d_k` and `d_v`, from section 3.2.2 of the paper.

    Queries, keys and values are projected `num_heads` times, attend, and are projected back to the
    width of the query. The three wirings of section 3.2.3 are all calls of this layer:

    - encoder self-attention: `attention(x, x, attention_mask=padding_mask(source))`,
    - decoder self-attention: `attention(y, y, causal=True)`,
    - encoder-decoder attention: `attention(y, memory, attention_mask=padding_mask(source))`.

    Step-by-step decoding calls `project_memory` once for what does not change and `attend_step`
    for each step.

    Attention over n positions holds n * n weights a head. With `window` it costs O(r n d), the
    restricted self-attention of section 4; with `chunk` it gives the same as without, and holds
    `chunk` * n weights.

    Args:
        num_heads: int. h.
        d_k: int. Width of a head's queries and keys.
        d_v: int or None. Width of a head's values. Defaults to `d_k`.
        dropout: float. Rate on the attention weights.
        use_bias: bool. Whether the four projections have biases.
        initializer_gain: float. Multiplies the Glorot standard deviation of the projections.
        compatibility: `"scaled_dot_product"` as the paper, `"dot_product"` without the scale, or
            `"additive"`, which has a vector a head more.
        window: int or None. r: a position attends to r positions centered around it (r // 2
            before, (r - 1) // 2 after it), or where `causal` to the last r. For self-attention.
        chunk: int or None. Most queries at a time. Without effect where there is a `window`.

    Call arguments:
        query: float tensor [B, T, d_model].
        memory: float tensor [B, S, d_memory], what is attended to.
        attention_mask: boolean tensor that broadcasts to [B, num_heads, T, S], True = may attend.
            With `window` the same for all queries: [B, 1, 1, S].
        memory_mask: boolean tensor [B, S], True = real: Keras' implicit mask of `memory`, merged
            with `attention_mask`.
        causal: bool. Whether later positions are hidden too.
        training: bool. Whether dropout is active.
        return_attention_weights: bool. Whether the weights are returned too.

    Returns:
        Tensor [B, T, d_model]; with `return_attention_weights`, a tuple of it and the float32
        weights [B, num_heads, T, S] (before dropout).

    Raises:
        InputError: where a size is below 1, or `compatibility` is another; with `window`, where
            `attention_mask` hides other keys for each query, or query and memory differ in length.

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
        compatibility: str = "scaled_dot_product",
        window: int | None = None,
        chunk: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(num_heads=num_heads, d_k=d_k, d_v=d_v, window=window, chunk=chunk)
        check_choice("compatibility", compatibility, CHOICES["compatibility"])
        self.num_heads = num_heads
        self.d_k = d_k
        self.d_v = d_v or d_k
        self.dropout = dropout
        self.use_bias = use_bias
        self.initializer_gain = initializer_gain
        self.compatibility = compatibility
        self.window = window
        self.chunk = chunk
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
        self._parameters = ()  # of the compatibility function
        if self.compatibility == "additive":
            vectors = self.add_weight(
                shape=(h, self.d_k),
                initializer=keras.initializers.RandomNormal(stddev=self.d_k**-0.5),
                name="compatibility",
            )
            self._parameters = (vectors,)

    def project_memory(self, memory):
        """Keys [B, h, S, d_k] and values [B, h, S, d_v] of a memory [B, S, d_memory]."""
        return self._split(self._key(memory)), self._split(self._value(memory))

    def attend(
        self,
        query,
        keys,
        values,
        mask=None,
        training=None,
        causal=False,
        return_attention_weights=False,
    ):
        """Attends from the positions of a sequence to projected keys and values.

        Args:
            query: float tensor [B, T, d_model].
            keys: float tensor [B, h, S, d_k].
            values: float tensor [B, h, S, d_v].
            mask: boolean tensor that broadcasts to [B, h, T, S], or None.
            training: bool.
            causal: bool. Whether later positions are hidden too.
            return_attention_weights: bool. Whether to compute the weights where the result does
                not need all of them at once.

        Returns:
            A tuple: the result [B, T, d_model], and the weights [B, h, T, S] or None.
        """
        query = self._split(self._query(query))
        mask = None if mask is None else ops.convert_to_tensor(mask)
        parameters = [tf.convert_to_tensor(variable.value) for variable in self._parameters]
        is_dropping = training and self._weights_dropout is not None
        is_dropping = is_dropping and self._weights_dropout.is_active
        seed = self._weights_dropout.next_seed() if is_dropping else None

        def part(first, part_mask, rows, *others):
            """Result and weights of the queries from position `first` on."""
            dropout = None
            if is_dropping:
                # The same when a chunk is computed a second time, on the way back.
                part_seed = tf.random.experimental.stateless_fold_in(seed, first)

                def dropout(weights):
                    return self._weights_dropout.drop(weights, part_seed)

            part_keys, part_values, *parameters = others
            scores = self._scores(rows, part_keys, *parameters)
            return weighted_values(scores, part_values, part_mask, dropout)

        if return_attention_weights or (self.window or self.chunk) is None:
            whole_mask = self._whole_mask(mask, causal, ops.shape(keys)[2])
            heads, weights = part(0, whole_mask, query, keys, values, *parameters)
            return self._joined(heads), weights
        if self.window is not None:
            if None not in (query.shape[2], keys.shape[2]) and query.shape[2] != keys.shape[2]:
                raise InputError(
                    "A window is for self-attention: query and memory must be of one length. "
                    f"Received: {query.shape[2]} and {keys.shape[2]}"
                )
            heads = windowed_attention(
                lambda rows, near_keys, near_values, near_mask: part(
                    0, near_mask, rows, near_keys, near_values, *parameters
                )[0],
                Window.of(self.window, causal),
                *(query, keys, values),
                _key_mask(mask, ops.shape(keys)[2]),
            )
        else:
            heads = chunked_attention(
                lambda first, rows, *others: part(
                    first, _rows_mask(mask, causal, first, rows, keys), rows, *others
                )[0],
                self.chunk,
                *(query, keys, values, *parameters),
            )
        return self._joined(heads), None

    def attend_step(self, query, keys, values, mask=None):
        """Attends from one position of K hypotheses to cached keys and values.

        Args:
            query: float tensor [N, K, d_model].
            keys: float tensor [N, h, S, d_k].
            values: float tensor [N, h, S, d_v].
            mask: boolean tensor that broadcasts to [N, h, K, S]: it alone says which keys are
                attended to.

        Returns:
            Float tensor [N, K, d_model].
        """
        scores = self._scores(self._split(self._query(query)), keys, *self._parameters)
        return self._joined(weighted_values(scores, values, mask)[0])

    def call(
        self,
        query,
        memory,
        attention_mask=None,
        memory_mask=None,
        causal=False,
        training=None,
        return_attention_weights=False,
    ):
        mask = attention_mask
        if memory_mask is not None:
            memory_mask = ops.expand_dims(memory_mask, (1, 2))  # [B, S] -> [B, 1, 1, S]
            mask = memory_mask if mask is None else ops.logical_and(mask, memory_mask)
        keys, values = self.project_memory(memory)
        result, weights = self.attend(
            query, keys, values, mask, training, causal, return_attention_weights
        )
        return (result, weights) if return_attention_weights else result

    def _scores(self, query, key, *parameters):
        """[B, h, ..., T, d_k] and [B, h, ..., S, d_k] -> [B, h, ..., T, S]."""
        if self.compatibility == "additive":
            return additive(query, key, *parameters)
        if self.compatibility == "dot_product":
            return dot_product(query, key)
        return scaled_dot_product(query, key)

    def _whole_mask(self, mask, causal, length):
        """What all queries at once may attend to, window and causality included."""
        if self.window is not None:
            nearby = window_mask(length, Window.of(self.window, causal))
        elif causal:
            nearby = causal_mask(length)
        else:
            return mask
        return nearby if mask is None else ops.logical_and(mask, nearby)

    def _joined(self, heads):
        """[B, h, T, d_v] -> [B, T, h, d_v] -> [B, T, h * d_v] -> [B, T, d_model]."""
        heads = ops.transpose(heads, (0, 2, 1, 3))
        batch, length = ops.shape(heads)[0], ops.shape(heads)[1]
        return self._output(ops.reshape(heads, (batch, length, self.num_heads * self.d_v)))

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
        causal=False,
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
            "compatibility": self.compatibility,
            "window": self.window,
            "chunk": self.chunk,
        }


def _is_same_for_all_queries(mask) -> bool:
    return len(mask.shape) < 2 or mask.shape[-2] == 1


def _key_mask(mask, length):
    """A mask of keys alone as [B or 1, h or 1, 1, S]; None for none."""
    if mask is None:
        return None
    if not _is_same_for_all_queries(mask):
        raise InputError(
            "attention_mask must be the same for all queries, [B, 1, 1, S], where there is a "
            f"window. Received: shape {tuple(mask.shape)}"
        )
    while len(mask.shape) < 4:
        mask = mask[None]
    # One value may stand for all keys.
    return ops.logical_and(mask, ops.ones((1, 1, 1, length), dtype="bool"))


def _rows_mask(mask, causal, first, rows, keys):
    """What some queries [B, h, c, d_k], from position `first` on, may attend to."""
    count = ops.shape(rows)[2]
    if mask is not None and not _is_same_for_all_queries(mask):
        # Rows that fill up the last chunk are cut off at the end, whatever they see.
        padding = [[0, 0]] * (len(mask.shape) - 2) + [[0, count], [0, 0]]
        mask = tf.pad(mask, padding)[..., first : first + count, :]
    if not causal:
        return mask
    positions = first + ops.arange(count)
    seen = ops.arange(ops.shape(keys)[2]) <= positions[:, None]  # [c, S]
    return seen if mask is None else ops.logical_and(mask, seen)
