"""Cross-entropy with label smoothing over real target tokens."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.errors import InputError


def _smoothed_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Loss of each row of logits [M, V] for labels [M], with one V-sized tensor kept.

    With the smoothed target q = (1 - e) * onehot + e / V, the loss is
    -sum(q log p) = logsumexp(z) - (1 - e) z_y - e mean(z), and its gradient p - q.
    """

    @tf.custom_gradient
    def loss_of(logits):
        # The softmax is needed for the gradient, and gives logsumexp(z) = max(z) - log max(p) with
        # one pass more. TensorFlow's fused cross-entropy takes eight times as long on a CPU.
        probabilities = tf.nn.softmax(logits)
        log_normalizer = tf.reduce_max(logits, axis=-1) - tf.math.log(
            tf.reduce_max(probabilities, axis=-1)
        )
        losses = log_normalizer - (1 - smoothing) * tf.gather(logits, labels, batch_dims=1)
        if smoothing:
            losses -= smoothing * tf.reduce_mean(logits, axis=-1)

        def backward(upstream):
            vocabulary_size = tf.cast(tf.shape(probabilities)[-1], probabilities.dtype)
            rows = tf.range(tf.shape(labels)[0], dtype=labels.dtype)
            result = (probabilities - smoothing / vocabulary_size) * upstream[:, None]
            return tf.tensor_scatter_nd_sub(
                result, tf.stack([rows, labels], axis=1), (1 - smoothing) * upstream
            )

        return losses, backward

    return loss_of(logits)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy with label smoothing, from section 5.4 of the paper.

    The target distribution gives `1 - label_smoothing` to the label and spreads `label_smoothing`
    evenly over all classes, the label among them. Label 0 is padding: it has no loss, and the mean
    is over the other labels only. The loss is computed in float32 whatever the model computes in.

    Args:
        label_smoothing: float in [0, 1). The paper's value is 0.1.
        reduction: passed to `keras.losses.Loss`; the default is the mean over real tokens.
        name: str. Name of the loss.

    Call arguments:
        y_true: int tensor [B, T], 0 = padding.
        y_pred: float tensor [B, T, V], logits.
        sample_weight: optional, [B] or [B, T]; weighs sentences or tokens in the mean.

    Returns:
        A float32 scalar.

    Raises:
        InputError: where `label_smoothing` is outside [0, 1).

    Example:

    >>> loss = SmoothedCrossEntropy(label_smoothing=0.1)
    >>> print(f"{float(loss([[1, 0]], [[[0.0, 0.0], [5.0, 0.0]]])):.4f}")
    0.6931

    References:
        - Szegedy et al., 2015, [Rethinking the Inception Architecture for Computer
          Vision](https://arxiv.org/abs/1512.00567)
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        reduction: str = "mean_with_sample_weight",
        name: str = "smoothed_cross_entropy",
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        if not 0.0 <= label_smoothing < 1.0:
            raise InputError(
                f"label_smoothing must be at least 0 and below 1. Received: {label_smoothing!r}"
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        """Loss of each token, [B, T] float32; 0 where the label is padding."""
        labels = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, "float32")
        # [B, T, V] -> [B * T, V]
        flat_logits = ops.reshape(logits, (-1, logits.shape[-1]))
        losses = _smoothed_cross_entropy(
            ops.reshape(labels, (-1,)), flat_logits, self.label_smoothing
        )
        losses = ops.reshape(losses, ops.shape(labels))
        return losses * ops.cast(ops.not_equal(labels, 0), "float32")

    def token_weights(self, y_true, sample_weight=None):
        """Weight of each token in the mean, [B, T] float32: 0 for padding."""
        weights = ops.cast(ops.not_equal(y_true, 0), "float32")
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            if len(sample_weight.shape) < len(weights.shape):
                sample_weight = ops.expand_dims(sample_weight, -1)  # [B] -> [B, 1]
            weights = weights * sample_weight
        return weights

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Keras divides by the sum of the weights; padding weighs 0 there.
        return super().__call__(y_true, y_pred, self.token_weights(y_true, sample_weight))

    def get_config(self) -> dict:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
