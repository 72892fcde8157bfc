"""Fine-tuning: what a run takes over from the one that it goes on from, and that it does learn."""

import shutil

import numpy as np
import pytest
import yaml
from small_runs import (
    everything_in,
    in_new_process,
    largest_difference,
    last_checkpoint,
    read_metrics,
    write_corpus,
)

from keras_transformer.cli import main
from keras_transformer.errors import InputError
from trainers.initial_run import initial_weights, weights_fingerprint
from trainers.recipe import load_recipe
from trainers.run import RunDirectory
from trainers.trainer import Trainer

# Another corpus, another dropout, and rates so low that the first updates change nothing visible.
RECIPE = """
data:
  source_language: en
  target_language: de
  train: {{source: {folder}/train.en, target: {folder}/train.de}}
  validation: {{source: {folder}/valid.en, target: {folder}/valid.de}}
  maximum_length: 40
model: {{dropout: 0.2}}
training:
  initial_run: {initial}
  steps: 6
  batch_tokens: 120
  warmup_steps: 2
  learning_rate_factor: 0.1
  checkpoint_every_steps: 3
  validate_every_steps: 3
  validation_bleu_sentences: 0
decoding: {{alpha: 0.2}}
"""


@pytest.fixture
def recipe(copied_run, tmp_path):
    """A recipe that goes on from a copy of the finished run."""
    write_corpus(tmp_path, seed=7)
    path = tmp_path / "fine-tune.yaml"
    path.write_text(RECIPE.format(folder=tmp_path, initial=copied_run.path))
    return path


def weights_of(model):
    return [variable.numpy() for variable in model.trainable_variables]


def distance(one, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


class TestTheRecipe:
    def test_it_has_the_model_the_tokenizer_and_the_search_of_the_initial_run(
        self, recipe, copied_run
    ):
        initial, resolved = copied_run.load_recipe(), load_recipe(recipe)
        assert resolved.tokenizer == initial.tokenizer
        assert resolved.model.dropout == 0.2 and initial.model.dropout == 0.1
        assert vars(resolved.model) == vars(initial.model) | {"dropout": 0.2}
        assert vars(resolved.decoding) == vars(initial.decoding) | {"alpha": 0.2}
        assert resolved.decoding.beam_size == 2  # which is not the default

    @pytest.mark.parametrize(
        ("override", "was"),
        [
            ("model.d_model=32", "16"),
            ("model.preset=big", "'base'"),
            ("tokenizer.vocabulary_size=300", "290"),
            ("tokenizer.kind=unigram", "'bpe'"),
        ],
    )
    def test_another_model_or_vocabulary_is_refused_by_name(self, recipe, override, was):
        key, _, value = override.partition("=")
        with pytest.raises(InputError) as caught:
            load_recipe(recipe, [override])
        assert f"{key} must be left out or that of training.initial_run" in str(caught.value)
        assert f", {was}. Received: " in str(caught.value)
        assert str(caught.value).strip("'").endswith(value)

    def test_the_same_value_is_no_contradiction(self, recipe):
        assert load_recipe(recipe, ["model.d_model=16"]) == load_recipe(recipe)

    @pytest.mark.parametrize("section", ["model", "tokenizer"])
    def test_an_unknown_key_is_still_one(self, recipe, section):
        with pytest.raises(InputError, match=f"{section}.zzz is not a key"):
            load_recipe(recipe, [f"{section}.zzz=1"])

    def test_a_section_of_another_kind_is_still_refused(self, recipe):
        with pytest.raises(InputError, match="tokenizer must be a section of keys. Received: 3"):
            load_recipe(recipe, ["tokenizer=3"])

    def test_an_initial_run_that_is_missing_is_named(self, recipe, tmp_path):
        with pytest.raises(InputError) as caught:
            load_recipe(recipe, ["training.initial_run=no/such/run"])
        assert str(caught.value).endswith(
            "training.initial_run must be a run directory, with a recipe.yaml. "
            "Received: 'no/such/run'"
        )

    def test_the_resolved_recipe_needs_the_initial_run_no_more(self, recipe, copied_run, tmp_path):
        resolved = load_recipe(recipe)
        resolved.save(tmp_path / "resolved.yaml")
        shutil.rmtree(copied_run.path)
        assert load_recipe(tmp_path / "resolved.yaml") == resolved


class TestTheTraining:
    def test_it_starts_from_the_averaged_model(self, recipe, copied_run, tmp_path):
        rates = ["training.learning_rate_factor=1e-9", "training.steps=1", "model.dropout=0.0"]
        assert Trainer(load_recipe(recipe, rates), tmp_path / "new").train() is None
        new = RunDirectory(tmp_path / "new")
        initial = weights_of(copied_run.load_model())
        model, state = last_checkpoint(new)
        assert state["step"] == 1 and int(model.optimizer.iterations) == 1
        assert distance(weights_of(model), initial) < 1e-6
        # And not from the last checkpoint, nor from random weights.
        assert distance(weights_of(last_checkpoint(copied_run)[0]), initial) > 1e-4
        assert new.load_tokenizer().fingerprint == copied_run.load_tokenizer().fingerprint

    def test_it_learns(self, recipe, copied_run, tmp_path):
        words = ["train", str(recipe), "--run-dir", str(tmp_path / "new")]
        assert main([*words, "training.steps=40", "training.learning_rate_factor=1"]) == 0
        losses = [
            line["val_loss"]
            for line in read_metrics(RunDirectory(tmp_path / "new"))
            if "val_loss" in line
        ]
        before = [line["val_loss"] for line in read_metrics(copied_run) if "val_loss" in line]
        assert losses[-1] < losses[0] < before[-1] + 0.2

    def test_it_resumes_without_the_initial_run_to_the_same_weights(
        self, recipe, copied_run, tmp_path, capsys
    ):
        words = ["train", str(recipe), "--run-dir"]
        assert main([*words, str(tmp_path / "whole")]) == 0
        assert "starting from the model of" in capsys.readouterr().err
        assert main([*words, str(tmp_path / "broken"), "training.steps=3"]) == 0
        shutil.rmtree(copied_run.path)
        assert main([*words, str(tmp_path / "broken")]) == 0
        said = capsys.readouterr().err
        assert "resuming at step 3" in said and said.count("starting from the model of") == 1
        whole, broken = (
            everything_in(last_checkpoint(RunDirectory(tmp_path / name))[0])
            for name in ("whole", "broken")
        )
        assert largest_difference(whole, broken) == 0

    def test_another_initial_run_is_another_run(self, recipe, copied_run, tmp_path):
        Trainer(load_recipe(recipe, ["training.steps=1"]), tmp_path / "new").train()
        other = shutil.copytree(copied_run.path, tmp_path / "other")
        with pytest.raises(InputError, match="training.initial_run=.*resume it with the same"):
            Trainer(load_recipe(recipe, [f"training.initial_run={other}"]), tmp_path / "new")

    def test_it_says_what_it_starts_from_and_where_it_was_best(self, recipe, tmp_path, capsys):
        run = tmp_path / "worse"
        Trainer(load_recipe(recipe, ["training.learning_rate_factor=5"]), run).train()
        validations = [line for line in read_metrics(RunDirectory(run)) if "val_loss" in line]
        assert [line["step"] for line in validations] == [0, 3, 6]
        assert validations[0]["val_loss"] < validations[1]["val_loss"]
        assert "val_loss was lowest at step 0, " in "".join(capsys.readouterr())

    @pytest.mark.parametrize("language", ["de", "fr"])
    def test_another_language_is_told(self, recipe, tmp_path, capsys, language):
        overrides = [f"data.target_language={language}", "training.steps=1"]
        Trainer(load_recipe(recipe, overrides), tmp_path / language).train()
        told = "it translates en to de, this run en to fr" in "".join(capsys.readouterr())
        assert told == (language == "fr")

    def test_it_goes_on_from_a_fine_tuned_run(self, recipe, tmp_path):
        Trainer(load_recipe(recipe, ["training.steps=1"]), tmp_path / "new").train()
        again = [f"training.initial_run={tmp_path / 'new'}", "training.steps=2"]
        assert Trainer(load_recipe(recipe, again), tmp_path / "again").train() is None
        assert RunDirectory(tmp_path / "again").load_recipe().model.dropout == 0.2

    def test_mixed_precision_starts_from_the_same_weights(self, recipe, copied_run, tmp_path):
        few = ["training.learning_rate_factor=1e-9", "training.steps=1"]
        few += ["training.precision=mixed_bfloat16", "training.ema_decay=0.5"]
        Trainer(load_recipe(recipe, few), tmp_path / "new").train()
        model = RunDirectory(tmp_path / "new").load_model()
        assert distance(weights_of(model), weights_of(copied_run.load_model())) < 1e-6

    def test_a_run_without_a_model_is_refused_before_it_is_written_to(
        self, recipe, copied_run, tmp_path
    ):
        copied_run.model_path.unlink()
        with pytest.raises(InputError, match="training.initial_run must be a run .*model.keras"):
            Trainer(load_recipe(recipe), tmp_path / "new").train()
        assert not (tmp_path / "new" / "recipe.yaml").exists()

    def test_a_resolved_recipe_of_another_shape_is_refused_by_name(self, recipe, tmp_path):
        values = load_recipe(recipe).to_dict()
        values["model"]["d_ff"] = 64
        (tmp_path / "edited.yaml").write_text(yaml.safe_dump(values))
        with pytest.raises(InputError, match="^model.d_ff must be that of .*, 32. Received: 64$"):
            Trainer(load_recipe(tmp_path / "edited.yaml"), tmp_path / "new").train()

    def test_prepare_uses_the_tokenizer_of_the_initial_run(self, recipe, tmp_path, capsys):
        folder = tmp_path / "prepared"
        assert main(["prepare", str(recipe), "--prepared-dir", str(folder)]) == 0
        assert [path.name[:6] for path in folder.iterdir() if path.is_dir()] == ["train-"]
        settings = [f"data.prepared_dir={folder}", "training.steps=1"]
        assert main(["train", str(recipe), "--run-dir", str(tmp_path / "new"), *settings]) == 0
        assert "pairs prepared" not in capsys.readouterr().err.split("prepared in")[-1]
        assert len([path for path in folder.iterdir() if path.is_dir()]) == 1

    @pytest.mark.slow
    def test_two_workers_start_from_the_same_weights_as_one(self, recipe, tmp_path):
        words = ["-m", "keras_transformer", "train", recipe, "model.dropout=0.0"]
        for name, workers in (("one", []), ("two", ["--workers", 2])):
            done = in_new_process(*words, "--run-dir", tmp_path / name, *workers, timeout=500)
            assert done.returncode == 0, done.stderr[-3000:]
        one, two = (
            weights_of(last_checkpoint(RunDirectory(tmp_path / name))[0]) for name in ("one", "two")
        )
        assert distance(one, two) <= 1e-5


def test_weights_are_refused_for_another_config(copied_run):
    config = copied_run.load_model().config
    assert len(initial_weights(copied_run.path, config)) > 10
    other = {**config.to_dict(), "norm": "pre"}
    with pytest.raises(InputError, match="model.norm must be that of .* 'post'. Received: 'pre'"):
        initial_weights(copied_run.path, type(config).from_dict(other))


def test_a_fingerprint_sees_every_number():
    weights = [np.zeros((2, 3), "float32"), np.ones(4, "float32")]
    changed = [weights[0], weights[1].copy()]
    assert weights_fingerprint(weights) == weights_fingerprint(changed)
    changed[1][-1] += 1e-6
    assert weights_fingerprint(weights) != weights_fingerprint(changed)
