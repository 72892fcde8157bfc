"""What the encoder's and the decoder's stacks of N layers have in common."""

from __future__ import annotations

import dataclasses

import keras

from keras_transformer.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class StackArguments:
    """Sizes and rates of the sub-layers of one encoder or decoder layer.

    The fields are those of `TransformerConfig` that such a layer needs, d_k and d_v resolved.
    """

    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm: str = "post"
    layer_norm_epsilon: float = 1e-6
    activation: str = "relu"
    attention_bias: bool = False
    initializer_gain: float = 1.0
    compatibility: str = "scaled_dot_product"
    attention_window: int | None = None
    attention_chunk: int | None = None

    @classmethod
    def of(cls, value: StackArguments | TransformerConfig | dict) -> StackArguments:
        """From a config, from the dict that `to_dict` gives, or from itself."""
        if isinstance(value, StackArguments):
            return value
        if isinstance(value, TransformerConfig):
            value = {**value.to_dict(), "d_k": value.key_size, "d_v": value.value_size}
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: value[name] for name in names if name in value})

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)

    def self_attention(self) -> dict:
        """Arguments of a `MultiHeadAttention` within one sequence."""
        return {**self.cross_attention(), "window": self.attention_window}

    def cross_attention(self) -> dict:
        """Arguments of a `MultiHeadAttention` from one sequence to another."""
        return {
            "num_heads": self.num_heads,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "dropout": self.attention_dropout,
            "use_bias": self.attention_bias,
            "initializer_gain": self.initializer_gain,
            "compatibility": self.compatibility,
            "chunk": self.attention_chunk,
        }

    def feed_forward(self) -> dict:
        """Arguments of `FeedForward`."""
        return {
            "d_ff": self.d_ff,
            "activation": self.activation,
            "dropout": self.activation_dropout,
            "initializer_gain": self.initializer_gain,
        }

    def residual(self) -> dict:
        """Arguments of `Residual`."""
        return {
            "norm": self.norm,
            "dropout": self.dropout,
            "epsilon": self.layer_norm_epsilon,
        }


class Stack(keras.layers.Layer):
    """N layers of one class, one after another; `Encoder` and `Decoder` are its subclasses."""

    layer_class: type[keras.layers.Layer]

    def __init__(self, num_layers: int, arguments: StackArguments | dict, **kwargs) -> None:
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.arguments = StackArguments.of(arguments)
        self.stack = [
            self.layer_class(self.arguments, dtype=self.dtype_policy, name=f"layer_{i}")
            for i in range(num_layers)
        ]
        # Post-norm layers end with a LayerNorm of their own; pre-norm layers leave the sum bare.
        self.final_normalization = None
        if self.arguments.norm == "pre":
            self.final_normalization = keras.layers.LayerNormalization(
                epsilon=self.arguments.layer_norm_epsilon,
                dtype=self.dtype_policy,
                name="final_normalization",
            )
        self.supports_masking = True

    def build_stack(self, *shapes):
        """Builds every layer for the given input shapes, of which the first is the output's."""
        for layer in self.stack:
            layer.build(*shapes)
        if self.final_normalization is not None:
            self.final_normalization.build(shapes[0])

    def finish(self, x):
        """The end of the stack: the final LayerNorm where there is one."""
        return x if self.final_normalization is None else self.final_normalization(x)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "arguments": self.arguments.to_dict(),
        }
