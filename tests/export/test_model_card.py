import datetime
import json

import pytest
import tensorflow as tf

import keras_transformer
from export.model_card import model_card, read_model_card, write_model_card
from export.signatures import signature_functions


@pytest.fixture(scope="module")
def exported_card(numbers_export):
    return read_model_card(numbers_export)


def functions(translator, *names):
    return {
        name: function.get_concrete_function()
        for name, function in signature_functions(translator, names).items()
    }


def test_it_says_what_the_export_takes_and_gives(exported_card):
    assert exported_card["signatures"]["n_best"] == {
        "inputs": {"text": "string [N]"},
        "outputs": {
            "translations": "string [N, 3]",
            "scores": "float32 [N, 3]",
            "truncated": "bool [N]",
        },
    }
    align = exported_card["signatures"]["align"]
    assert align["inputs"] == {"text": "string [N]", "translation": "string [N]"}
    assert align["outputs"]["attention"] == "float32 [N, ?, ?]"
    assert set(exported_card["signatures"]) == {"serving_default", "n_best", "score", "align"}


def test_it_says_the_limits_versions_and_precision(exported_card, numbers_run):
    translator = numbers_run.load_translator()
    assert exported_card["decoding"] == {
        "beam_size": 3,
        "alpha": translator.rules.alpha,
        "length_penalty": "gnmt",
        "early_stopping": "never",
        "ends_within": "candidates",
        "forced_end": "scored",
        "suppressed_tokens": [],
    }
    limits = exported_card["limits"]
    assert limits["maximum_source_length"] == translator.maximum_source_length
    assert limits["maximum_target_length"] == translator.maximum_target_length
    assert limits["maximum_length"] is None
    assert exported_card["precision"] == "float32"
    assert exported_card["parameters"] == sum(
        weight.numpy().size for weight in translator.model.trainable_variables
    )
    assert exported_card["versions"]["keras_transformer"] == keras_transformer.__version__
    assert exported_card["versions"]["tensorflow"] == tf.__version__
    created = datetime.datetime.fromisoformat(exported_card["created"])
    assert created.tzinfo is not None


def test_it_takes_recipe_and_bleu_from_the_training(numbers_run):
    translator = numbers_run.load_translator()
    recipe = numbers_run.load_recipe().to_dict()
    bleu = {"bleu": 31.7, "bleu_signature": "nrefs:1", "chrf": 51.3, "sentences": 9}
    facts = {"recipe": recipe, "bleu": bleu, "weights": "averaged"}
    card = model_card(translator, functions(translator, "serving_default"), facts)
    assert card["bleu"] == bleu and card["weights"] == "averaged"
    assert card["languages"] == {"source": "en", "target": "de"}
    assert card["recipe"]["model"] == recipe["model"]
    # The corpus is named, and the folder of this machine is not.
    assert recipe["data"]["train"]["source"].startswith("/")
    assert card["recipe"]["data"]["train"]["source"] == "train.en"
    assert "/" not in json.dumps(card["recipe"]["data"])


def test_what_nobody_says_is_null(numbers_run):
    translator = numbers_run.load_translator()
    card = model_card(translator, functions(translator, "serving_default"), {})
    assert card["recipe"] is card["bleu"] is card["weights"] is None
    assert card["languages"] == {"source": None, "target": None}


def test_it_is_json_of_utf_8_that_is_read_back(tmp_path):
    card = {"languages": {"source": "português"}, "bleu": None}
    write_model_card(tmp_path, card)
    assert read_model_card(tmp_path) == card
    assert "português" in (tmp_path / "assets.extra/model_card.json").read_bytes().decode()
    assert read_model_card(tmp_path / "nothing") == {}
    with pytest.raises(ValueError, match="JSON"):
        write_model_card(tmp_path, {"bleu": float("nan")})
