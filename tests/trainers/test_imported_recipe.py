"""Recipes of runs that were imported, and what those that train still need."""

import copy

import pytest
from small_recipes import SMALLEST, message_of

from keras_transformer import InputError
from trainers.recipe import Recipe
from trainers.yaml_text import parse_yaml

IMPORTED = {
    "data": {
        "source_language": "en",
        "target_language": None,
        "train": None,
        "validation": None,
    },
    "tokenizer": {"kind": "marian", "vocabulary_size": 60},
}


def changed(dotted, value):
    """SMALLEST with one key changed, or removed where the value is `...`."""
    values = copy.deepcopy(SMALLEST)
    section, name = dotted.split(".")
    values.setdefault(section, {})[name] = value
    if value is ...:
        del values[section][name]
    return values


def imported(**tokenizer):
    return {**IMPORTED, "tokenizer": IMPORTED["tokenizer"] | tokenizer}


class TestTheRecipeOfAnImportedRun:
    def test_it_has_no_data_no_end_and_no_keys_of_learning(self):
        recipe = Recipe.from_dict(IMPORTED)
        assert recipe.data.train is recipe.data.validation is recipe.data.test is None
        assert (recipe.training.steps, recipe.training.minutes) == (None, None)
        tokenizer = recipe.tokenizer
        assert tokenizer.normalization is tokenizer.character_coverage is None
        assert tokenizer.maximum_sentences is None
        assert Recipe.from_dict(parse_yaml(recipe.to_yaml(), "here")) == recipe

    def test_two_small_vocabularies(self):
        values = imported(shared=False, source_vocabulary_size=50)
        recipe = Recipe.from_dict({**values, "model": {"tying": "none"}})
        assert recipe.transformer_config(60, 50).source_vocabulary_size == 50

    def test_nothing_trains_by_it(self):
        with pytest.raises(InputError) as caught:
            Recipe.from_dict(IMPORTED).check_trains()
        assert str(caught.value).startswith("data.train must be given, ")
        assert "training.initial_run" in str(caught.value)
        assert str(caught.value).endswith("Received: null")

    @pytest.mark.parametrize(
        ("name", "value"),
        [("normalization", "nfkc"), ("character_coverage", 0.99), ("maximum_sentences", 5)],
    )
    def test_keys_of_learning_are_refused_by_name(self, name, value):
        message = message_of(imported(**{name: value}))
        assert message.startswith(f"tokenizer.{name} must be null where tokenizer.kind is marian")
        assert message.endswith(f"Received: {value!r}")

    def test_keys_of_learning_may_be_the_defaults(self):
        recipe = Recipe.from_dict(imported(normalization="nmt_nfkc", character_coverage=1))
        assert recipe == Recipe.from_dict(IMPORTED)


class TestATrainingRecipe:
    @pytest.mark.parametrize("name", ["source_language", "target_language"])
    def test_it_knows_its_languages(self, name):
        message = message_of(changed(f"data.{name}", None))
        assert message == f"data.{name} must be a string. Received: null"

    @pytest.mark.parametrize("name", ["train", "validation"])
    def test_it_names_the_split_that_is_left_out(self, name):
        message = message_of(changed(f"data.{name}", ...))
        assert message.startswith(f"data.{name} must have source and target, or tfds and split")

    def test_it_has_a_validation_split(self):
        message = message_of(changed("data.validation", None))
        assert message.startswith("data.validation must have source and target, or tfds and split")

    def test_a_marian_tokenizer_is_never_learned(self):
        message = message_of(changed("tokenizer.kind", "marian"))
        assert message.startswith("tokenizer.kind must be 'bpe' or 'unigram' unless training.init")
        assert message.endswith("a marian tokenizer is never learned. Received: 'marian'")

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("normalization", "a string"),
            ("character_coverage", "a number"),
            ("maximum_sentences", "an integer"),
        ],
    )
    def test_its_tokenizer_needs_the_keys_of_learning(self, name, expected):
        message = message_of(changed(f"tokenizer.{name}", None))
        assert message == f"tokenizer.{name} must be {expected}. Received: null"

    def test_its_tokenizer_leaves_punctuation_alone(self):
        message = message_of(changed("tokenizer.normalize_punctuation", True))
        assert message.startswith("tokenizer.normalize_punctuation must be false unless")

    def test_its_second_vocabulary_is_large_enough_too(self):
        values = changed("model.tying", "output")
        values["tokenizer"] |= {"shared": False, "source_vocabulary_size": 260}
        assert message_of(values) == (
            "tokenizer.source_vocabulary_size must be at least 261. Received: 260"
        )
