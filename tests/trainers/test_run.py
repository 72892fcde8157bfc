"""Run directories: what is read from them, what is missing, and the averaged model."""

import keras
import numpy as np
import pytest
from small_models import small_model
from small_runs import last_checkpoint

from keras_transformer.errors import InputError
from trainers.run import RunDirectory, with_policy


def test_a_translator_takes_the_recipes_decoding(finished_run):
    translator = finished_run.load_translator()
    assert translator.beam_size == 2
    assert translator.rules.alpha == 0.6
    assert translator.maximum_extra_length == 5
    assert translator.maximum_source_length == 512


def test_beam_size_alpha_and_model_can_be_given(finished_run):
    model, _ = last_checkpoint(finished_run)
    translator = finished_run.load_translator(model=model, beam_size=1, alpha=0.0)
    assert (translator.beam_size, translator.rules.alpha) == (1, 0.0)
    assert translator.model is model


@pytest.mark.parametrize(
    ("missing", "load"),
    [
        ("recipe.yaml", "load_recipe"),
        ("recipe.yaml", "load_translator"),
        ("tokenizer", "load_tokenizer"),
        ("tokenizer", "load_translator"),
        ("model.keras", "load_model"),
        ("model.keras", "load_translator"),
    ],
)
def test_what_is_missing_is_named(copied_run, missing, load):
    path = copied_run.path / missing
    path.rename(copied_run.path / "aside")
    with pytest.raises(InputError) as caught:
        getattr(copied_run, load)()
    assert missing in str(caught.value)
    assert str(caught.value).endswith(f"Received: {copied_run.path}")


def test_a_directory_that_is_not_there_is_named(tmp_path):
    run = RunDirectory(tmp_path / "missing")
    assert not run.has_tokenizer()
    for call in (run.load_recipe, run.load_tokenizer, run.load_model, run.average):
        with pytest.raises(InputError, match="Received: .*missing$"):
            call()
    assert not run.path.exists()


def test_the_average_of_a_number(copied_run):
    assert copied_run.average(3) == (3, "the mean of the last 3 checkpoints")
    expected = copied_run.checkpoints().average(3)
    for weight, mean in zip(
        copied_run.load_model().get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(weight, mean)
    with pytest.raises(InputError, match="has 3 checkpoints.*Received: 4"):
        copied_run.average(4)


def test_the_average_of_the_recipes_number_or_of_all(copied_run):
    assert copied_run.average().checkpoints == 2
    checkpoints = copied_run.checkpoints()
    for step in checkpoints.steps()[:-1]:
        checkpoints.path(step).rename(checkpoints.directory / f"aside-{step}")
    assert copied_run.average().checkpoints == 1
    last, _ = last_checkpoint(copied_run)
    for weight, same in zip(
        copied_run.load_model().trainable_weights, last.trainable_weights, strict=True
    ):
        np.testing.assert_array_equal(weight.numpy(), same.numpy())


def test_the_model_loads_without_this_package_being_asked(finished_run):
    model = keras.models.load_model(finished_run.model_path)
    assert model.config == finished_run.load_model().config


def test_a_float32_model_stays_what_it_is():
    model = small_model()
    assert with_policy(model, "float32") is model


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_mixed_model_is_copied_to_float32(policy):
    model = small_model(policy, dropout=0.1)
    copy = with_policy(model, "float32")
    assert copy.config == model.config
    assert {layer.dtype_policy.name for layer in copy.layers} == {"float32"}
    for weight, same in zip(model.get_weights(), copy.get_weights(), strict=True):
        assert weight.dtype == same.dtype
        np.testing.assert_array_equal(weight, same)


def test_a_bfloat16_copy_holds_rounded_weights():
    model = small_model()
    copy = with_policy(model, "bfloat16")
    assert copy.policy.name == "bfloat16"
    for weight, rounded in zip(model.trainable_weights, copy.trainable_weights, strict=True):
        assert rounded.dtype == "bfloat16"
        np.testing.assert_allclose(
            weight.numpy(), rounded.numpy().astype("float32"), rtol=2**-8, atol=1e-7
        )


def test_the_last_model_is_the_last_checkpoints(finished_run):
    model = finished_run.load_last_model()
    trained, _ = finished_run.checkpoints().load_latest()
    assert model.policy.name == "float32"
    for weight, same in zip(model.trainable_weights, trained.trainable_weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), same.numpy())


def test_settings_of_the_search_replace_the_recipes(finished_run):
    recipe = finished_run.load_recipe().decoding
    translator = finished_run.load_translator(
        alpha=0.0, beam_size=None, maximum_source_length=7, maximum_extra_length=0
    )
    assert translator.rules.alpha == 0.0 and translator.beam_size == recipe.beam_size
    assert translator.maximum_source_length == translator.maximum_target_length == 7
