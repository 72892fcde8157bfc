"""Decoding token by token gives what whole forward passes give, for every kind of model."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import padded_ids
from small_translators import MODEL_KINDS, log_softmax, number_tokenizer, padded, random_model

from keras_transformer.tokenizer import BOS_ID, EOS_ID


@pytest.fixture(scope="module", params=MODEL_KINDS)
def model(request):
    separate = {"vocabulary_size": 300, "shared": False}
    options = separate if request.param == "two vocabularies" else {}
    return random_model(number_tokenizer(**options), **MODEL_KINDS[request.param])


def test_decoding_along_a_target_gives_the_whole_forward_pass(model):
    source = padded_ids((7, 3, 5), 9, seed=1, vocabulary_size=290)
    target = padded_ids((8, 8, 8), 8, seed=2, vocabulary_size=290)
    target[:, 0] = BOS_ID
    expected = log_softmax(model({"source": source, "target": target}))
    step, state = model.start_decoding(tf.constant(source), 1)
    for index in range(target.shape[1]):
        logits, state = step(tf.constant(target[:, index, None]), tf.constant(index), state)
        assert logits.dtype == tf.float32 and logits.shape == (3, 1, expected.shape[-1])
        np.testing.assert_allclose(log_softmax(logits)[:, 0], expected[:, index], 1e-5, 1e-5)


def test_hypotheses_that_branch_and_sentences_that_leave(model):
    """As in a search: at each step hypotheses are dropped, copied and given other words."""
    random = np.random.default_rng(3)
    beam_size, vocabulary_size = 3, model.config.vocabulary_size
    sources = [[5, 6, 7, 8, EOS_ID], [9, EOS_ID], [20, 30, 40, EOS_ID], [11, 12, EOS_ID]]
    step, state = model.start_decoding(tf.constant(padded(sources)), beam_size)
    prefixes = np.full((len(sources), beam_size, 1), BOS_ID)
    for index in range(8):
        logits, state = step(tf.constant(prefixes[..., -1], tf.int32), tf.constant(index), state)
        # [N, K, T] -> [N * K, T], each hypothesis with a copy of its source
        rows = prefixes.reshape(-1, index + 1)
        source = np.repeat(padded(sources), beam_size, axis=0)
        expected = log_softmax(model({"source": source, "target": rows})[:, -1])
        np.testing.assert_allclose(
            log_softmax(logits).reshape(expected.shape), expected, 1e-5, 1e-5, err_msg=str(index)
        )
        parents = random.integers(0, beam_size, (len(sources), beam_size))
        words = random.integers(4, vocabulary_size, (len(sources), beam_size, 1))
        prefixes = np.concatenate(
            [np.take_along_axis(prefixes, parents[..., None], axis=1), words], axis=2
        )
        state = state._replace(
            hypotheses=tf.nest.map_structure(
                lambda x, parents=parents: tf.gather(x, parents, batch_dims=1), state.hypotheses
            )
        )
        if index == 4:  # the second sentence has finished
            left = [0, 2, 3]
            sources, prefixes = [sources[row] for row in left], prefixes[left]
            state = tf.nest.map_structure(lambda x: tf.gather(x, [0, 2, 3]), state)
