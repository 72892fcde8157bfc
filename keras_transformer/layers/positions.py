"""Positions added to embeddings: fixed sinusoids, or learned vectors."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import InputError, check_choice, check_sizes


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(keras.layers.Layer):
    """Adds the sinusoidal positional encoding, from section 3.5 of the paper.

    `PE(pos, 2i) = sin(pos / 10000^(2i / d_model))` and `PE(pos, 2i + 1) = cos(same)`: sines and
    cosines interleaved. It is computed in float32 for whatever length comes, so there is no limit.

    Args:
        layout: `"interleaved"` as the paper, or `"halves"`, with all sines before all cosines, as
            in Marian's models.

    Call arguments:
        inputs: float tensor [B, T, d_model] with even d_model.
        start_index: int or scalar int tensor. Position of the first row.

    Returns:
        Tensor [B, T, d_model]: inputs + encoding.

    Raises:
        InputError: where `d_model` is odd, or `layout` is neither.

    Example:

    >>> import numpy as np
    >>> x = SinusoidalPositions()(np.zeros((1, 2, 4), "float32"))
    >>> print(np.round(x[0], 3))
    [[0.    1.    0.    1.   ]
     [0.841 0.54  0.01  1.   ]]

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(self, layout: str = "interleaved", **kwargs) -> None:
        super().__init__(**kwargs)
        check_choice("layout", layout, ("interleaved", "halves"))
        self.layout = layout
        self.supports_masking = True

    def build(self, input_shape):
        if input_shape[-1] % 2:
            raise InputError(
                "d_model must be even for sinusoidal positions, which are pairs of sine and "
                f"cosine. Received: {input_shape[-1]}"
            )

    def encoding(self, length, d_model: int, start_index=0):
        """The float32 encoding [length, d_model] of positions from `start_index` on."""
        rates = np.exp(-np.log(1e4) * np.arange(0, d_model, 2) / d_model).astype("float32")
        positions = ops.cast(ops.arange(length) + start_index, "float32")
        angles = positions[:, None] * rates[None, :]
        if self.layout == "halves":
            return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
        # two of [T, d_model / 2] -> [T, d_model / 2, 2] -> [T, d_model]
        pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.reshape(pairs, (-1, d_model))

    def call(self, inputs, start_index=0):
        encoding = self.encoding(ops.shape(inputs)[1], inputs.shape[-1], start_index)
        return inputs + ops.cast(encoding, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "layout": self.layout}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositions(keras.layers.Layer):
    """Adds a learned vector for each position, from table 3, row (E) of the paper.

    A position past the last learned one takes the last one's vector.

    Args:
        maximum_positions: int. Number of positions that have a vector.

    Call arguments:
        inputs: float tensor [B, T, d_model].
        start_index: int or scalar int tensor. Position of the first row.

    Returns:
        Tensor [B, T, d_model]: inputs + vectors.

    Raises:
        InputError: where `maximum_positions` is below 1.

    Example:

    >>> import numpy as np
    >>> tuple(LearnedPositions(8)(np.zeros((1, 2, 4), "float32")).shape)
    (1, 2, 4)

    References:
        - Gehring et al., 2017, [Convolutional Sequence to Sequence
          Learning](https://arxiv.org/abs/1705.03122)
    """

    def __init__(self, maximum_positions: int, **kwargs) -> None:
        super().__init__(**kwargs)
        check_sizes(maximum_positions=maximum_positions)
        self.maximum_positions = maximum_positions
        self.supports_masking = True

    def build(self, input_shape):
        d_model = input_shape[-1]
        # Sinusoids have a mean square of 1/2; learned vectors start at the same magnitude.
        self.vectors = self.add_weight(
            shape=(self.maximum_positions, d_model),
            initializer=keras.initializers.RandomNormal(stddev=0.5**0.5),
            name="vectors",
        )

    def call(self, inputs, start_index=0):
        positions = ops.arange(ops.shape(inputs)[1]) + start_index
        positions = ops.minimum(positions, self.maximum_positions - 1)
        return inputs + ops.take(self.vectors, positions, axis=0)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "maximum_positions": self.maximum_positions}
