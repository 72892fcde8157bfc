import copy
import dataclasses
import pickle

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recipes import SMALLEST, message_of

from keras_transformer import InputError, TransformerConfig
from keras_transformer.config import PRESETS
from trainers.recipe import Recipe, load_recipe, shipped_recipes
from trainers.yaml_text import parse_yaml


def with_value(dotted, value):
    """SMALLEST with one key changed, or removed where the value is `...`."""
    values = copy.deepcopy(SMALLEST)
    *sections, name = dotted.split(".")
    inner = values
    for section in sections:
        inner = inner.setdefault(section, {})
    if value is ...:
        del inner[name]
    else:
        inner[name] = value
    return values


def write(tmp_path, values):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_defaults_are_those_of_the_paper():
    recipe = Recipe.from_dict(SMALLEST)
    assert recipe.data.test is None and recipe.data.maximum_length == 128
    assert recipe.tokenizer.kind == "bpe" and recipe.tokenizer.shared
    assert recipe.transformer_config(4000) == TransformerConfig.preset("base", vocabulary_size=4000)
    training = recipe.training
    assert (training.batch_tokens, training.warmup_steps) == (25000, 4000)
    assert (training.adam_beta_1, training.adam_beta_2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.label_smoothing, training.average_checkpoints) == (0.1, 5)
    decoding = recipe.decoding
    assert (decoding.beam_size, decoding.alpha, decoding.maximum_extra_length) == (4, 0.6, 50)


@pytest.mark.parametrize(
    ("dotted", "nearest"),
    [
        ("training.step", "training.steps"),
        ("traning", "training"),
        ("training.beam_size", "decoding.beam_size"),
        ("dropout", "model.dropout"),
        ("model.vocabulary_size", "tokenizer.vocabulary_size"),
        ("model.num_head", "model.num_heads"),
        ("data.source", "data.train.source"),
        ("data.train.sorce", "data.train.source"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_right_one(tmp_path, dotted, nearest):
    path = write(tmp_path, with_value(dotted, 7))
    with pytest.raises(InputError) as error:
        load_recipe(path)
    assert str(error.value) == (
        f"{path}: {dotted} is not a key. Did you mean '{nearest}'? Received: 7"
    )


def test_an_empty_list_suppresses_no_words(tmp_path):
    path = write(tmp_path, with_value("decoding.suppressed_tokens", []))
    assert load_recipe(path).decoding.suppressed_tokens is None
    recipe = load_recipe(path, ["decoding.suppressed_tokens=[a, b]"])
    assert recipe.decoding.suppressed_tokens == ("a", "b")
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_an_unknown_key_like_no_other_lists_the_keys():
    assert "zzz is not a key. The keys of a recipe are data, tokenizer, model" in message_of(
        with_value("zzz", 1)
    )


@pytest.mark.parametrize(
    ("dotted", "value", "expected"),
    [
        ("training.steps", "many", "an integer or null. Received: 'many'"),
        ("training.steps", 10.0, "an integer or null. Received: 10.0"),
        ("training.steps", True, "an integer or null. Received: True"),
        ("training.steps", 0, "at least 1. Received: 0"),
        ("training.seed", -1, "at least 0 and below 2147483648. Received: -1"),
        ("training.minutes", 0, "above 0. Received: 0.0"),
        ("training.minutes", float("nan"), "a number or null. Received: nan"),
        ("training.minutes", 10**400, "a number or null. Received: 1000"),
        ("training.label_smoothing", 1, "at least 0 and below 1. Received: 1.0"),
        ("training.adam_epsilon", None, "a number. Received: null"),
        ("training.jit_compile", "yes", "true or false. Received: 'yes'"),
        ("training.jit_compile", 1, "true or false. Received: 1"),
        ("training.devices", "GPU:0", "a list of strings or null. Received: 'GPU:0'"),
        ("training.devices", [], "a list of strings or null. Received: ()"),
        ("training.devices", [0, 1], "a list of strings or null. Received: [0, 1]"),
        ("tokenizer.kind", "bep", "'bpe' or 'unigram' or 'marian'. Did you mean 'bpe'? Rece"),
        ("tokenizer.vocabulary_size", 100, "at least 261. Received: 100"),
        ("tokenizer.vocabulary_size", ..., "given, an integer. Received: nothing"),
        ("tokenizer.character_coverage", 0.5, "at least 0.98 and at most 1. Received: 0.5"),
        ("data.source_language", False, "a string. Received: False"),
        ("data.source_language", "", "a string. Received: ''"),
        ("data.source_language", ..., "given, a string. Received: nothing"),
        ("data.train.source", 3, "a string or null. Received: 3"),
        ("data.maximum_length_ratio", 0.5, "at least 1. Received: 0.5"),
        ("decoding", 3, "a section of keys. Received: 3"),
        ("data.test", "test.en", "a section of keys. Received: 'test.en'"),
        ("decoding.alpha", -0.1, "at least 0. Received: -0.1"),
        ("decoding.early_stopping", False, "'never' or 'heuristic' or 'full_beam'. Received: F"),
        ("decoding.suppressed_tokens", "x", "a list of strings or null. Received: 'x'"),
        ("model.dropout", 1.0, "at least 0 and below 1. Received: 1.0"),
        ("model.d_model", 0, "at least 1. Received: 0"),
        ("model.d_model", "wide", "an integer. Received: 'wide'"),
        ("model.norm", "mid", "'post' or 'pre'. Received: 'mid'"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(dotted, value, expected):
    assert message_of(with_value(dotted, value)).startswith(f"{dotted} must be {expected}")


def test_an_unknown_preset_is_named_with_the_nearest_right_one():
    message = message_of(with_value("model.preset", "bigg"))
    assert message.startswith("model.preset must be 'tiny' or 'base' or 'big' or ")
    assert message.endswith("Did you mean 'big'? Received: 'bigg'")


@pytest.mark.parametrize(
    "files",
    [
        None,
        {},
        {"source": "a"},
        {"target": "a"},
        {"tfds": "wmt14_translate/de-en"},
        {"split": "train"},
        {"source": "a", "target": "b", "split": "train"},
        {"source": "a", "target": "b", "tfds": "c", "split": "train"},
        {"tfds": "a", "tfds_folder": "b", "split": "train"},
    ],
)
def test_a_split_has_exactly_one_form(files):
    message = message_of(with_value("data.validation", files))
    assert message.startswith("data.validation must have source and target, or tfds and split, or")


@pytest.mark.parametrize(
    "files",
    [
        {"source": "a", "target": "b"},
        {"tfds": "wmt14_translate/de-en", "split": "train"},
        {"tfds_folder": "folder", "split": "train"},
    ],
)
def test_each_form_of_a_split_comes_back(files):
    recipe = Recipe.from_dict(with_value("data.test", files))
    assert recipe.to_dict()["data"]["test"] == files
    assert recipe.data.test.split == files.get("split")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"training.steps": None}, "training.steps must be an integer, or training.minutes"),
        ({"training.checkpoint_every_steps": None}, "training.checkpoint_every_steps must be an"),
        ({"training.average_checkpoints": 11}, "training.average_checkpoints must be at most"),
        ({"training.batch_tokens": 127}, "training.batch_tokens must be at least data.maximum_le"),
        ({"tokenizer.shared": False}, "model.tying must be 'output' or 'none' where tokenizer.sh"),
        ({"tokenizer.source_vocabulary_size": 300}, "tokenizer.source_vocabulary_size must be nu"),
        ({"model.num_heads": 3}, "model.d_model must be divisible by num_heads"),
        (
            {"model.positions": "learned", "model.maximum_positions": 127},
            "model.maximum_positions must be at least data.maximum_length, which is 128",
        ),
    ],
)
def test_keys_that_contradict_one_another(changes, expected):
    values = copy.deepcopy(SMALLEST)
    for dotted, value in changes.items():
        section, name = dotted.split(".")
        values.setdefault(section, {})[name] = value
    assert message_of(values).startswith(expected)


def test_either_limit_ends_a_run_and_either_interval_writes_checkpoints():
    recipe = Recipe.from_dict(with_value("training", {"minutes": 2}))
    assert (recipe.training.steps, recipe.training.minutes) == (None, 2.0)
    training = {"steps": 5, "checkpoint_every_steps": None, "checkpoint_every_minutes": 0.5}
    assert (
        Recipe.from_dict(with_value("training", training)).training.checkpoint_every_steps is None
    )


def test_separate_vocabularies():
    values = with_value("model.tying", "output")
    values["tokenizer"] |= {"shared": False, "source_vocabulary_size": 300}
    config = Recipe.from_dict(values).transformer_config(4000, 300)
    assert (config.vocabulary_size, config.source_vocabulary_size) == (4000, 300)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_reaches_the_config(preset):
    recipe = Recipe.from_dict(with_value("model", {"preset": preset, "dropout": 0.25}))
    expected = TransformerConfig.preset(
        preset, vocabulary_size=500, **{**PRESETS[preset], "dropout": 0.25}
    )
    assert recipe.transformer_config(500) == expected


def test_a_section_checks_itself_when_it_is_changed():
    training = Recipe.from_dict(SMALLEST).training
    assert dataclasses.replace(training, steps=3).steps == 3
    with pytest.raises(InputError, match=r"^warmup_steps must be at least 1\. Received: 0$"):
        dataclasses.replace(training, warmup_steps=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        training.steps = 3


def test_a_section_may_be_empty_or_left_out(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(SMALLEST) + "decoding:\n  # beam_size: 8\nmodel:\n")
    assert load_recipe(path) == Recipe.from_dict(SMALLEST)


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
def test_a_file_without_sections_is_refused(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="recipe.yaml must hold sections of keys. Received: "):
        load_recipe(path)


def test_overrides(tmp_path):
    path = write(tmp_path, SMALLEST)
    recipe = load_recipe(
        path,
        [
            "training.minutes=5",
            "training.adam_epsilon=1e-8",
            "training.devices=[CPU:0, CPU:1]",
            "data.source_language=no",
            "data.train.source=other=file.no",
            "data.test={tfds: wmt14_translate/de-en, split: 'test[:100]'}",
            "decoding.alpha=1",
            "model.preset=tiny",
            "training.steps=",
        ],
    )
    assert recipe.training.minutes == 5.0 and recipe.training.adam_epsilon == 1e-8
    assert recipe.training.devices == ("CPU:0", "CPU:1") and recipe.training.steps is None
    assert (recipe.data.source_language, recipe.data.train.source) == ("no", "other=file.no")
    assert recipe.data.test.split == "test[:100]"
    assert recipe.decoding.alpha == 1.0 and recipe.model.d_model == 128


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.steps", "An override must be KEY.PATH=VALUE. Received: 'training.steps'"),
        ("=3", "An override must be KEY.PATH=VALUE. Received: '=3'"),
        ("training..steps=3", "An override must be KEY.PATH=VALUE. Received: "),
        (
            "training.steps.x=3",
            "steps in override training.steps.x must be a section. Received: 10",
        ),
        ("training.steps=[", "override training.steps=[, line 1: "),
        ("decoding.beams=3", "recipe.yaml with decoding.beams=3: decoding.beams is not a key. Did"),
        ("decoding.beam_size=a", "decoding.beam_size must be an integer. Received: 'a'"),
    ],
)
def test_a_wrong_override_is_named(tmp_path, override, expected):
    with pytest.raises(InputError) as error:
        load_recipe(write(tmp_path, SMALLEST), [override])
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_preset_cannot_be_overridden_where_it_would_change_nothing(tmp_path):
    path = tmp_path / "recipe.yaml"
    Recipe.from_dict(SMALLEST).save(path)
    with pytest.raises(
        InputError, match="model.preset has no effect .* Received: model.preset=big"
    ):
        load_recipe(path, ["model.preset=big"])


def test_what_is_saved_is_resolved_and_loads_to_an_equal_recipe(tmp_path):
    recipe = Recipe.from_dict(with_value("training.devices", ["GPU:0"]))
    recipe.save(tmp_path / "saved.yaml")
    saved = yaml.safe_load((tmp_path / "saved.yaml").read_text())
    assert saved["training"]["batch_tokens"] == 25000 and saved["model"]["norm"] == "post"
    assert set(saved["decoding"]) == {field.name for field in dataclasses.fields(recipe.decoding)}
    assert load_recipe(tmp_path / "saved.yaml") == recipe == Recipe.from_dict(saved)
    assert pickle.loads(pickle.dumps(recipe)) == recipe


TEXT = st.text(min_size=1)


@settings(deadline=None, max_examples=50)
@given(
    languages=st.tuples(TEXT, TEXT),
    files=st.one_of(
        st.fixed_dictionaries({"source": TEXT, "target": TEXT}),
        st.fixed_dictionaries({"tfds_folder": TEXT, "split": TEXT}),
    ),
    minutes=st.floats(1e-300, 1e300),
    epsilon=st.floats(0, 1, exclude_min=True),
)
def test_any_recipe_comes_back_from_yaml(languages, files, minutes, epsilon):
    values = copy.deepcopy(SMALLEST)
    values["data"] |= {"source_language": languages[0], "target_language": languages[1]}
    values["data"]["train"] = files
    values["training"] |= {"minutes": minutes, "adam_epsilon": epsilon}
    recipe = Recipe.from_dict(values)
    assert Recipe.from_dict(parse_yaml(recipe.to_yaml(), "here")) == recipe


def test_shipped_recipes_are_found_by_name_and_files_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [path.name for path in shipped_recipes()] == [
        "ablation-en-de-small.yaml",
        "fine-tune-marian.yaml",
        "tatoeba-en-de-small.yaml",
        "wmt14-en-de-base.yaml",
        "wmt14-en-de-big.yaml",
        "wmt14-en-fr-big.yaml",
        "your-own-files.yaml",
    ]
    assert load_recipe("wmt14-en-de-big.yaml").model.preset == "big"
    Recipe.from_dict(SMALLEST).save("wmt14-en-de-big.yaml")
    assert load_recipe("wmt14-en-de-big.yaml").model.preset == "base"
    with pytest.raises(InputError, match="one of the shipped ablation.*, tatoeba.* Received"):
        load_recipe("wmt15.yaml")


@pytest.mark.parametrize(
    ("name", "vocabulary_size", "steps", "dropout", "average", "width"),
    [
        ("wmt14-en-de-base.yaml", 37000, 100_000, 0.1, 5, 512),
        ("wmt14-en-de-big.yaml", 37000, 300_000, 0.3, 20, 1024),
        ("wmt14-en-fr-big.yaml", 32000, 300_000, 0.1, 20, 1024),
    ],
)
def test_the_papers_recipes(name, vocabulary_size, steps, dropout, average, width):
    recipe = load_recipe(name)
    assert recipe.tokenizer.vocabulary_size == vocabulary_size and recipe.tokenizer.shared
    training = recipe.training
    assert (training.steps, training.minutes, training.batch_tokens) == (steps, None, 25000)
    assert training.average_checkpoints == average and training.checkpoint_every_minutes == 10
    assert training.checkpoint_every_steps is None and training.warmup_steps == 4000
    assert (recipe.model.dropout, recipe.model.d_model) == (dropout, width)
    pair = f"wmt14_translate/{recipe.data.target_language}-en"
    assert recipe.data.source_language == "en" and recipe.data.train.tfds == pair
    assert (recipe.data.validation.split, recipe.data.test.split) == ("validation", "test")
    assert (recipe.decoding.beam_size, recipe.decoding.alpha) == (4, 0.6)
