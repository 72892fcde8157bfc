"""What the model makes of a translation that is given: its probability, and where it looks."""

from __future__ import annotations

import tensorflow as tf

from keras_transformer.model import Transformer

# The logits of so many target tokens are held at a time, whatever the size of the batch.
_TOKENS_AT_A_TIME = 1024


def label_log_probabilities(
    model: Transformer, source: tf.Tensor, target: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
    """Log-probability of each label, without dropout.

    Args:
        model: `Transformer`.
        source: int tensor [N, S], 0 = padding.
        target: int tensor [N, T], the labels shifted right.
        labels: int tensor [N, T], 0 = padding.

    Returns:
        A float32 tensor [N, T], 0 where the label is padding.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> source, target, labels = (tf.constant([ids]) for ids in ([5, 2], [1, 7], [7, 2]))
    >>> label_log_probabilities(model, source, target, labels).shape
    TensorShape([1, 2])
    """
    outputs = model.decoder_output(source, target)  # [N, T, d_model]
    places = tf.cast(tf.where(tf.not_equal(labels, 0)), tf.int32)  # [M, 2]
    outputs, words = tf.gather_nd(outputs, places), tf.gather_nd(labels, places)  # [M, d], [M]
    kernel = model.output_projection.output_kernel()

    def some_left(start, losses):
        return start < tf.shape(words)[0]

    def take_some(start, losses):
        end = start + _TOKENS_AT_A_TIME
        more = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=words[start:end],
            logits=model.output_projection.logits(outputs[start:end], kernel),
        )
        return end, tf.concat([losses, more], 0)

    _, losses = tf.while_loop(
        some_left,
        take_some,
        (tf.constant(0), tf.zeros([0])),
        (tf.TensorShape([]), tf.TensorShape([None])),
    )
    return tf.scatter_nd(places, -losses, tf.shape(labels))


def alignment(model: Transformer, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Which source tokens the model looks at when it predicts each target token.

    The encoder-decoder attention (section 3.2.3 of the paper) of the last decoder layer but one,
    or of the only one, as the mean of its heads: of all layers that one follows word alignments
    best.

    Args:
        model: `Transformer`.
        source: int tensor [N, S], 0 = padding.
        target: int tensor [N, T], the target shifted right, 0 = padding.

    Returns:
        A float32 tensor [N, T, S]: row t belongs to the token that follows the target's token t.
        It sums to 1 over the real source tokens, and is 0 at padding of the source or target.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> weights = alignment(model, tf.constant([[5, 2, 0]]), tf.constant([[1, 7]]))
    >>> weights.shape, bool(tf.reduce_all(weights[:, :, 2] == 0))
    (TensorShape([1, 2, 3]), True)

    References:
        - Garg et al., 2019, [Jointly Learning to Align and Translate with Transformer
          Models](https://arxiv.org/abs/1909.02074), section 3.2
    """
    layers = model.attention_weights(source, target)["cross"]
    weights = tf.reduce_mean(layers[max(0, len(layers) - 2)], axis=1)  # [N, h, T, S] -> [N, T, S]
    return tf.where(tf.not_equal(target, 0)[:, :, tf.newaxis], weights, 0.0)
