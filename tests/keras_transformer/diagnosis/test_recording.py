"""Recording tells what layers really get and give, and leaves the model as it was."""

import numpy as np
import pytest
from small_models import small_model

from keras_transformer.diagnosis.recording import recorded
from keras_transformer.diagnosis.sample import make_sample
from keras_transformer.errors import InputError
from keras_transformer.layers import Decoder, Encoder


def test_it_records_all_attentions_with_the_weights_of_the_model(model, sample):
    with recorded(model) as recording:
        model(sample.inputs)
    names = [each.name for each in recording.attentions]
    assert names == [
        *("encoder/layer_0", "encoder/layer_1"),
        *("decoder/layer_0", "cross/layer_0", "decoder/layer_1", "cross/layer_1"),
    ]
    expected = model.attention_weights(sample.source, sample.target)
    for each in recording.attentions:
        kind, layer = each.name.split("/layer_")
        np.testing.assert_allclose(each.weights, expected[kind][int(layer)], atol=1e-6)


@pytest.mark.parametrize("option", ["attention_chunk", "attention_window"])
def test_weights_are_whole_where_the_layer_does_not_hold_them(option, sample):
    model = small_model(**{option: 3})
    with recorded(model) as recording:
        recorded_logits = model(sample.inputs)
    np.testing.assert_array_equal(recorded_logits, model(sample.inputs))
    assert recording.attentions[0].weights.shape == (12, 4, *[sample.source.shape[1]] * 2)


def test_it_finds_what_was_embedded_and_what_entered_the_stacks(model, sample):
    with recorded(model) as recording:
        model(sample.inputs)
    embedded = recording.embedding_of(sample.source)
    entered = recording.stack_input(Encoder)
    np.testing.assert_allclose(entered, model.source_positions(embedded), atol=1e-6)
    assert recording.embedding_of(sample.source + 1) is None
    assert recording.stack_input(Decoder).shape == (*sample.target.shape, 16)


@pytest.mark.parametrize("name", ["encoder", "decoder", "memory"])
def test_a_change_on_the_way_has_its_effect_and_is_gone_afterwards(name, model, sample):
    before = model(sample.inputs).numpy()
    with recorded(model, {name: lambda x: x + 1.0}):
        during = model(sample.inputs).numpy()
    assert np.abs(during - before).max() > 1e-3
    np.testing.assert_array_equal(model(sample.inputs), before)
    layers = list(model._flatten_layers())
    assert not [layer for layer in layers if {"call", "attend"} & set(vars(layer))]


def test_a_sample_needs_pairs():
    with pytest.raises(InputError, match="Received: 1 and 0"):
        make_sample([[5]], [])
    with pytest.raises(InputError, match="Received: 0 and 0"):
        make_sample([], [])


def test_the_first_pairs_of_a_sample_have_no_more_padding_than_they_need():
    sample = make_sample([[5], [5, 6, 7]], [[8, 9], [8, 9, 10, 11]]).first(1)
    assert sample.source.tolist() == [[5, 2]]
    assert sample.target.tolist() == [[1, 8, 9]]
    assert sample.labels.tolist() == [[8, 9, 2]]
