"""Token embedding scaled by sqrt(d_model), whose matrix is also the output projection."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import check_sizes


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(keras.layers.Layer):
    """Embeds token ids, and turns decoder outputs into logits, from section 3.4 of the paper.

    One matrix serves the source embedding, the target embedding and the softmax projection where
    one layer is called for all three. Rows start as N(0, d_model^-0.5) and are multiplied by
    sqrt(d_model) when looked up, which brings them to the magnitude of the positions added to
    them. Padding (id 0) is embedded as zeros.

    Args:
        vocabulary_size: int. Number of rows.
        d_model: int. Width.
        scale: bool. Whether rows are multiplied by sqrt(d_model) when looked up.
        output_bias: bool. Whether the logits have a bias, which starts as zeros.

    Call arguments:
        inputs: int tensor [B, T] of ids, or float tensor [..., d_model] when `reverse`.
        reverse: bool. Whether to compute logits.

    Returns:
        Float tensor [B, T, d_model]; when `reverse`, float32 logits [..., vocabulary_size].

    Raises:
        InputError: where a size is below 1.

    Example:

    >>> import numpy as np
    >>> embedding = TokenEmbedding(vocabulary_size=100, d_model=8)
    >>> x = embedding(np.array([[5, 6, 0]]))
    >>> tuple(x.shape), tuple(embedding(x, reverse=True).shape)
    ((1, 3, 8), (1, 3, 100))

    References:
        - Press and Wolf, 2016, [Using the Output Embedding to Improve Language
          Models](https://arxiv.org/abs/1608.05859)
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        scale: bool = True,
        output_bias: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(vocabulary_size=vocabulary_size, d_model=d_model)
        self.vocabulary_size = vocabulary_size
        self.d_model = d_model
        self.scale = scale
        self.use_output_bias = output_bias
        self.supports_masking = True

    def build(self, input_shape=None):
        # No autocast: casting the few rows looked up is cheaper than casting the whole matrix.
        self.embeddings = self.add_weight(
            shape=(self.vocabulary_size, self.d_model),
            initializer=keras.initializers.RandomNormal(stddev=self.d_model**-0.5),
            name="embeddings",
            autocast=False,
        )
        self.output_bias = None
        if self.use_output_bias:
            self.output_bias = self.add_weight(
                shape=(self.vocabulary_size,),
                initializer="zeros",
                name="output_bias",
                autocast=False,
            )

    def output_kernel(self):
        """The softmax projection [d_model, vocabulary_size], in the compute dtype."""
        return ops.transpose(ops.cast(self.embeddings, self.compute_dtype))

    def call(self, inputs, reverse=False):
        if reverse:
            return self.logits(inputs, self.output_kernel())
        ids = ops.cast(inputs, "int32")
        rows = ops.take(self.embeddings, ids, axis=0)  # [B, T, d_model]
        is_real = ops.cast(ops.not_equal(ids, 0), rows.dtype)
        scale = self.d_model**0.5 if self.scale else 1.0
        rows = rows * (is_real * scale)[..., None]
        return ops.cast(rows, self.compute_dtype)

    def logits(self, inputs, output_kernel):
        """Float32 logits [..., vocabulary_size] of inputs [..., d_model]."""
        shape = ops.shape(inputs)
        # [..., d_model] -> [M, d_model] -> [M, V] -> [..., V]
        result = ops.matmul(ops.reshape(inputs, (-1, self.d_model)), output_kernel)
        result = ops.reshape(result, (*shape[:-1], self.vocabulary_size))
        result = ops.cast(result, "float32")
        if self.output_bias is None:
            return result
        return result + ops.cast(self.output_bias, "float32")

    def compute_output_spec(self, inputs, reverse=False):
        if reverse:
            return keras.KerasTensor((*inputs.shape[:-1], self.vocabulary_size), "float32")
        return keras.KerasTensor((*inputs.shape, self.d_model), self.compute_dtype)

    def save_own_variables(self, store) -> None:
        """Writes what Keras would write, with one copy of the matrix in memory and not two."""
        for number, variable in enumerate(self.variables):
            store[str(number)] = np.asarray(variable.value.read_value())

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "d_model": self.d_model,
            "scale": self.scale,
            "output_bias": self.use_output_bias,
        }
