"""The attention of one pair: whose weights they are, and what names rows and columns."""

import json

import numpy as np
import pytest
from small_translators import number_tokenizer, random_model

from keras_transformer.diagnosis.attention_maps import KINDS, attention_maps, thousandths
from keras_transformer.errors import InputError
from keras_transformer.tokenizer import BOS_ID, EOS_ID


@pytest.fixture(scope="module")
def tokenizer():
    return number_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return random_model(tokenizer)


@pytest.fixture(scope="module")
def maps(model, tokenizer):
    return attention_maps(model, tokenizer, "one two three", "eins zwei")


def test_they_are_the_models_weights_for_the_pair(model, tokenizer, maps):
    source = [[*tokenizer.source.encode("one two three"), EOS_ID]]
    target = [[BOS_ID, *tokenizer.target.encode("eins zwei")]]
    expected = model.attention_weights(np.array(source), np.array(target))
    assert list(maps.weights) == list(KINDS)
    for kind, layers in maps.weights.items():
        assert len(layers) == len(expected[kind])
        for layer, weights in zip(layers, expected[kind], strict=True):
            np.testing.assert_array_equal(layer, np.asarray(weights)[0])
            assert layer.shape[1:] == (len(maps.rows(kind)), len(maps.columns(kind)))
            np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)


def test_rows_are_what_is_predicted_and_columns_what_is_read(maps):
    assert maps.source == ["▁one", "▁two", "▁three", "</s>"]
    assert maps.rows("decoder") == maps.rows("cross") == ["▁eins", "▁zwei", "</s>"]
    assert maps.columns("decoder") == ["<s>", "▁eins", "▁zwei"]
    assert maps.columns("cross") == maps.rows("encoder") == maps.source


def test_json_has_the_weights_to_three_digits(maps):
    read = json.loads(json.dumps(maps.as_dict()))
    for kind in KINDS:
        shown = np.array(read["weights"][kind]) / 1000
        np.testing.assert_allclose(shown, np.stack(maps.weights[kind]), atol=0.0005001)
        assert read["rows"][kind] == maps.rows(kind)


def test_what_is_no_number_is_told_from_all_weights():
    assert thousandths(np.array([[np.nan, np.inf], [0.0, 1.0]])) == [[-1, -1], [0, 1000]]


@pytest.mark.parametrize("source", ["", "  \u00a0"])
def test_a_source_without_words_is_refused(model, tokenizer, source):
    with pytest.raises(InputError, match="must have words to look at. Received: "):
        attention_maps(model, tokenizer, source, "eins")


def test_an_empty_target_has_its_end_alone(model, tokenizer):
    maps = attention_maps(model, tokenizer, "one", "")
    assert (maps.inputs, maps.outputs) == (["<s>"], ["</s>"])
    assert maps.weights["decoder"][0].shape == (2, 1, 1)
