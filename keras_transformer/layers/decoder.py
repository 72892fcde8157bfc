"""One decoder layer, and the stack of N, whole or one step at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.stack import Stack, StackArguments


class KeysValues(NamedTuple):
    """Projected keys [..., h, S, d_k] and values [..., h, S, d_v] of one attention."""

    keys: Any
    values: Any


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(keras.layers.Layer):
    """Causal self-attention, encoder-decoder attention and feed-forward, from section 3.1.

    Args:
        arguments: `StackArguments` (or a dict of them): the sizes and rates of every sub-layer.

    Call arguments:
        inputs: float tensor [B, T, d_model].
        memory: float tensor [B, S, d_model], the encoder's output.
        memory_attention_mask: boolean tensor that broadcasts to [B, num_heads, T, S], True = may
            attend. The self-attention is always causal.
        training: bool. Whether dropout is active.
        return_attention_weights: bool. Whether the weights are returned too.

    Returns:
        Tensor [B, T, d_model]; with `return_attention_weights`, a tuple of it, float32
        self-attention weights [B, num_heads, T, T], and encoder-decoder attention weights
        [B, num_heads, T, S].

    Example:

    >>> import numpy as np
    >>> layer = DecoderLayer(StackArguments(d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8))
    >>> y, memory = np.ones((1, 3, 16), "float32"), np.ones((1, 5, 16), "float32")
    >>> y, self_weights, cross_weights = layer(y, memory, return_attention_weights=True)
    >>> tuple(y.shape), tuple(cross_weights.shape)
    ((1, 3, 16), (1, 2, 3, 5))

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(self, arguments: StackArguments | dict, **kwargs) -> None:
        super().__init__(**kwargs)
        self.arguments = StackArguments.of(arguments)
        policy = self.dtype_policy
        for attention in ("self_attention", "cross_attention"):
            arguments = getattr(self.arguments, attention)()
            layer = MultiHeadAttention(**arguments, dtype=policy, name=attention)
            setattr(self, attention, layer)
        self.feed_forward = FeedForward(
            **self.arguments.feed_forward(), dtype=policy, name="feed_forward"
        )
        for sublayer in ("self_attention", "cross_attention", "feed_forward"):
            name = f"{sublayer}_residual"
            layer = Residual(**self.arguments.residual(), dtype=policy, name=name)
            setattr(self, name, layer)
        self.supports_masking = True

    def build(self, inputs_shape, memory_shape):
        self.self_attention.build(inputs_shape, inputs_shape)
        self.cross_attention.build(inputs_shape, memory_shape)
        self.feed_forward.build(inputs_shape)
        for residual in (
            self.self_attention_residual,
            self.cross_attention_residual,
            self.feed_forward_residual,
        ):
            residual.build(inputs_shape)

    def call(
        self,
        inputs,
        memory,
        memory_attention_mask=None,
        training=None,
        return_attention_weights=False,
    ):
        def self_attend(x):
            return self.self_attention(
                x,
                x,
                causal=True,
                training=training,
                return_attention_weights=return_attention_weights,
            )

        def cross_attend(x):
            return self.cross_attention(
                x,
                memory,
                attention_mask=memory_attention_mask,
                training=training,
                return_attention_weights=return_attention_weights,
            )

        def feed_forward(x):
            return self.feed_forward(x, training=training)

        x = self.self_attention_residual(inputs, sublayer=self_attend, training=training)
        if return_attention_weights:
            x, self_weights = x
        x = self.cross_attention_residual(x, sublayer=cross_attend, training=training)
        if return_attention_weights:
            x, cross_weights = x
        x = self.feed_forward_residual(x, sublayer=feed_forward, training=training)
        return (x, self_weights, cross_weights) if return_attention_weights else x

    def step(self, inputs, cache: KeysValues, cache_mask, memory: KeysValues, memory_mask):
        """One position of K hypotheses for each sentence, from cached keys and values.

        Args:
            inputs: float tensor [N, K, d_model], the newest position of each hypothesis.
            cache: keys [N, h, t * K, d_k] and values [N, h, t * K, d_v] of the t positions before,
                no more than the window holds.
            cache_mask: boolean tensor [N, 1, K, (t + 1) * K], which of the cached positions and
                the newest ones are a hypothesis' own.
            memory: keys [N, h, S, d_k] and values [N, h, S, d_v] of the encoder's output.
            memory_mask: boolean tensor [N, 1, 1, S].

        Returns:
            A tuple: tensor [N, K, d_model], and the cache with this position added.
        """
        grown = cache
        window = self.arguments.attention_window
        # What is outside the window leaves the cache.
        kept = slice(None) if window is None else slice(-window * inputs.shape[1], None)

        # In both attentions the hypotheses of a sentence are query rows over what they share.
        def self_attend(x):
            nonlocal grown
            newest = self.self_attention.project_memory(x)
            grown = KeysValues(
                *(
                    ops.concatenate([past, new], axis=2)[:, :, kept]  # [N, h, (t + 1) * K, d]
                    for past, new in zip(cache, newest, strict=True)
                )
            )
            return self.self_attention.attend_step(x, *grown, mask=cache_mask)

        def cross_attend(x):
            return self.cross_attention.attend_step(x, *memory, mask=memory_mask)

        x = self.self_attention_residual(inputs, sublayer=self_attend)
        x = self.cross_attention_residual(x, sublayer=cross_attend)
        x = self.feed_forward_residual(x, sublayer=self.feed_forward)
        return x, grown

    def compute_output_spec(
        self,
        inputs,
        memory,
        memory_attention_mask=None,
        training=None,
        return_attention_weights=False,
    ):
        result = keras.KerasTensor(inputs.shape, self.compute_dtype)
        if not return_attention_weights:
            return result
        batch, target_length, _ = inputs.shape
        heads = self.arguments.num_heads
        return (
            result,
            keras.KerasTensor((batch, heads, target_length, target_length), "float32"),
            keras.KerasTensor((batch, heads, target_length, memory.shape[1]), "float32"),
        )

    def get_config(self) -> dict:
        return {**super().get_config(), "arguments": self.arguments.to_dict()}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """N decoder layers, with a final LayerNorm where they are pre-norm (section 3.1).

    Args:
        num_layers: int. N.
        arguments: `StackArguments` (or a dict of them).

    Call arguments:
        inputs: float tensor [B, T, d_model], the target shifted right, embedded with positions.
        memory: float tensor [B, S, d_model], the encoder's output.
        memory_attention_mask: boolean tensor that broadcasts to [B, num_heads, T, S], True = may
            attend. The self-attention is always causal.
        training: bool. Whether dropout is active.

    Returns:
        Tensor [B, T, d_model].

    Example:

    >>> import numpy as np
    >>> decoder = Decoder(2, StackArguments(d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8))
    >>> y, memory = np.ones((1, 3, 16), "float32"), np.ones((1, 5, 16), "float32")
    >>> tuple(decoder(y, memory).shape)
    (1, 3, 16)
    """

    layer_class = DecoderLayer

    def build(self, inputs_shape, memory_shape):
        self.build_stack(inputs_shape, memory_shape)

    def call(self, inputs, memory, memory_attention_mask=None, training=None):
        x = inputs
        for layer in self.stack:
            x = layer(x, memory, memory_attention_mask=memory_attention_mask, training=training)
        return self.finish(x)

    def with_attention_weights(self, inputs, memory, memory_attention_mask=None, training=None):
        """As a call, but returns a tuple: the result, and each layer's two kinds of weights."""
        x, all_self_weights, all_cross_weights = inputs, [], []
        for layer in self.stack:
            x, self_weights, cross_weights = layer(
                x,
                memory,
                memory_attention_mask=memory_attention_mask,
                training=training,
                return_attention_weights=True,
            )
            all_self_weights.append(self_weights)
            all_cross_weights.append(cross_weights)
        return self.finish(x), all_self_weights, all_cross_weights

    def project_memory(self, memory) -> list[KeysValues]:
        """Each layer's keys and values of the encoder's output: computed once a sentence."""
        return [KeysValues(*layer.cross_attention.project_memory(memory)) for layer in self.stack]

    def empty_cache(self, sentences) -> list[KeysValues]:
        """Each layer's cache before the first step: keys and values of no position."""
        arguments = self.arguments

        def empty(width):
            shape = (sentences, arguments.num_heads, 0, width)
            return ops.zeros(shape, dtype=self.compute_dtype)

        return [KeysValues(empty(arguments.d_k), empty(arguments.d_v)) for _ in self.stack]

    def step(self, inputs, caches, ancestors, memories, memory_mask):
        """One position of K hypotheses for each sentence, through all layers.

        The cache of a sentence holds the keys and values of every hypothesis that was ever open,
        K at each position. Which of them are a hypothesis' own, `ancestors` says: a search that
        drops and branches hypotheses reorders these small numbers, and never the keys and values.

        Args:
            inputs: float tensor [N, K, d_model], the newest position of each hypothesis.
            caches: each layer's `KeysValues`, [N, h, t * K, d].
            ancestors: int tensor [N, K, t]: for each hypothesis and position, which of the K
                entries is its own.
            memories: each layer's `KeysValues` of the encoder's output.
            memory_mask: boolean tensor [N, 1, 1, S].

        Returns:
            A tuple: tensor [N, K, d_model], the caches and the ancestors with this position
            added.
        """
        sentences, beam_size = ops.shape(inputs)[0], inputs.shape[1]
        newest = ops.broadcast_to(ops.arange(beam_size)[None, :, None], (sentences, beam_size, 1))
        ancestors = ops.concatenate([ancestors, newest], axis=2)  # [N, K, t + 1]
        if self.arguments.attention_window is not None:  # t counts no more than the window then
            ancestors = ancestors[:, :, -self.arguments.attention_window :]
        # [N, K, t + 1, K] -> [N, 1, K, (t + 1) * K]
        is_own = ops.equal(ancestors[..., None], ops.arange(beam_size))
        cache_mask = ops.reshape(is_own, (sentences, 1, beam_size, -1))
        x, new_caches = inputs, []
        for layer, cache, memory in zip(self.stack, caches, memories, strict=True):
            x, cache = layer.step(x, cache, cache_mask, memory, memory_mask)
            new_caches.append(cache)
        return self.finish(x), new_caches, ancestors

    def compute_output_shape(self, inputs_shape, memory_shape):
        return tuple(inputs_shape)
