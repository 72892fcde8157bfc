"""Log-probabilities and alignments of given translations, against all logits at once."""

import doctest

import numpy as np
import pytest
import tensorflow as tf
from small_models import POLICIES, small_batch, small_model
from small_translators import log_softmax

import keras_transformer.forced_decoding as forced_decoding
from keras_transformer.forced_decoding import alignment, label_log_probabilities


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens_at_a_time", [1, 5, 1024])
def test_log_probabilities_are_those_of_the_models_logits(monkeypatch, policy, tokens_at_a_time):
    monkeypatch.setattr(forced_decoding, "_TOKENS_AT_A_TIME", tokens_at_a_time)
    model = small_model(policy)
    inputs, labels = small_batch(extra=2)
    expected = log_softmax(model(inputs, training=False))
    expected = np.take_along_axis(expected, labels[..., None], axis=2)[..., 0]
    found = label_log_probabilities(
        model, *(tf.constant(x) for x in (inputs["source"], inputs["target"], labels))
    )
    tolerance = 1e-5 if policy == "float32" else 0.05
    np.testing.assert_allclose(found, np.where(labels != 0, expected, 0.0), atol=tolerance)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nothing_is_dropped(dropout):
    model = small_model(dropout=dropout, attention_dropout=dropout)
    inputs, labels = small_batch()
    arguments = [tf.constant(x) for x in (inputs["source"], inputs["target"], labels)]
    first, second = (label_log_probabilities(model, *arguments) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_batch_of_no_sentences_and_labels_of_padding_alone():
    model = small_model()
    none = tf.zeros([0, 3], tf.int32)
    assert label_log_probabilities(model, none, none, none).shape == (0, 3)
    assert alignment(model, none, none).shape == (0, 3, 3)
    source, target = tf.constant([[5, 2]]), tf.constant([[1, 5]])
    found = label_log_probabilities(model, source, target, tf.zeros([1, 2], tf.int32))
    np.testing.assert_array_equal(found, np.zeros([1, 2]))


def test_logits_are_never_held_for_the_whole_batch():
    """The largest tensor with the vocabulary's size is of so many tokens, not of the batch."""
    model = small_model(vocabulary_size=1234)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 3)
    def score(source, target, labels):
        return label_log_probabilities(model, source, target, labels)

    graph = score.get_concrete_function().graph
    operations = list(graph.get_operations())
    for function in graph.as_graph_def().library.function:
        operations += [
            operation
            for operation in graph._get_function(function.signature.name).graph.get_operations()
        ]
    ranks = [
        output.shape.rank
        for operation in operations
        for output in operation.outputs
        if output.shape.rank and output.shape[-1] == 1234
    ]
    assert ranks and max(ranks) == 2  # [tokens, V] and [d_model, V], never [N, T, V]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_alignment_is_the_mean_of_the_heads_of_the_last_layer_but_one(layers):
    model = small_model(num_decoder_layers=layers)
    inputs, _ = small_batch(extra=2)
    source, target = inputs["source"], inputs["target"]
    weights = alignment(model, tf.constant(source), tf.constant(target)).numpy()
    layer = model.attention_weights(source, target)["cross"][{1: 0, 2: 0, 3: 1}[layers]]
    expected = np.mean(layer, axis=1) * (target != 0)[:, :, None]
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=2), target != 0, atol=1e-5)
    assert np.all(weights[np.broadcast_to((source == 0)[:, None, :], weights.shape)] == 0)


def test_the_examples_in_the_documentation_run():
    result = doctest.testmod(forced_decoding)
    assert result.attempted > 3
    assert result.failed == 0
