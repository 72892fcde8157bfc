"""Token accuracy and perplexity over real target tokens only, without label smoothing."""

from __future__ import annotations

import keras
import keras_nlp
from keras import ops


def _real_tokens(labels, sample_weight, dtype):
    """Weight of each label: 0 for padding, else 1 or the given sample weight."""
    weights = ops.cast(ops.not_equal(labels, 0), dtype)
    if sample_weight is not None:
        sample_weight = ops.cast(sample_weight, dtype)
        # [B] or [B, 1] weights hold for a whole sentence.
        if len(sample_weight.shape) < len(weights.shape):
            sample_weight = ops.expand_dims(sample_weight, -1)
        weights = weights * sample_weight
    return weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(keras.metrics.Mean):
    """Share of real target tokens that the model ranks first.

    Args:
        name: str. Name of the metric.
        dtype: dtype of the result.

    Call arguments (`update_state`):
        y_true: int tensor [B, T], 0 = padding.
        y_pred: float tensor [B, T, V], logits.
        sample_weight: optional, [B] or [B, T].

    Example:

    >>> accuracy = TokenAccuracy()
    >>> logits = [[[0.0, 9.0, 1.0], [0.0, 9.0, 1.0], [9.0, 0.0, 0.0]]]
    >>> accuracy.update_state([[1, 2, 0]], logits)
    >>> float(accuracy.result())
    0.5
    """

    def __init__(self, name: str = "token_accuracy", dtype=None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.convert_to_tensor(y_true)
        y_pred = ops.convert_to_tensor(y_pred)
        right = ops.equal(ops.cast(y_true, "int32"), ops.cast(ops.argmax(y_pred, -1), "int32"))
        weights = _real_tokens(y_true, sample_weight, self.dtype)
        # Flat, since Keras first takes the mean of each row of a matrix, padding included.
        super().update_state(
            ops.reshape(ops.cast(right, self.dtype), (-1,)),
            sample_weight=ops.reshape(weights, (-1,)),
        )

    def get_config(self) -> dict:
        return {"name": self.name, "dtype": self.dtype}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(keras_nlp.metrics.Perplexity):
    """exp of the mean negative log-likelihood of real target tokens, unsmoothed (section 5.4).

    KerasNLP's metric for logits and padding id 0. Label smoothing makes the training loss grow;
    this figure stays comparable between runs. It is per subword: models with different
    vocabularies cannot be compared by it.

    Args:
        name: str. Name of the metric.
        dtype: dtype of the result.

    Call arguments (`update_state`):
        y_true: int tensor [B, T], 0 = padding.
        y_pred: float tensor [B, T, V], logits.
        sample_weight: optional, [B] or [B, T].

    Example:

    >>> perplexity = Perplexity()
    >>> perplexity.update_state([[1, 0]], [[[0.0, 0.0], [9.0, 0.0]]])
    >>> print(f"{float(perplexity.result()):.3f}")
    2.000
    """

    def __init__(self, name: str = "perplexity", dtype="float32") -> None:
        super().__init__(from_logits=True, mask_token_id=0, name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.convert_to_tensor(y_true)
        weights = _real_tokens(y_true, sample_weight, self.dtype)
        super().update_state(y_true, y_pred, sample_weight=weights)

    def get_config(self) -> dict:
        return {"name": self.name, "dtype": self.dtype}
