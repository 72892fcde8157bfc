"""What a training refuses, with nothing lost: other recipes, corpora, vocabularies, devices."""

import shutil

import pytest
from small_runs import train, write_corpus

from keras_transformer.errors import InputError
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.prepare import prepare_corpus
from trainers.recipe import load_recipe
from trainers.resumption import CHANGEABLE
from trainers.run import RunDirectory
from trainers.trainer import Trainer


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("model.d_model", 32, "16"),
        ("model.dropout", 0.2, "0.1"),
        ("tokenizer.vocabulary_size", 291, "290"),
        ("training.label_smoothing", 0.2, "0.1"),
        ("training.seed", 4, "3"),
        ("training.batch_tokens", 121, "120"),
        ("training.precision", "mixed_bfloat16", "'float32'"),
        ("data.maximum_length", 39, "40"),
        ("data.target_language", "nl", "'de'"),
    ],
)
def test_another_recipe_in_the_directory_is_named(finished_run, recipe_path, key, value, was):
    recipe = load_recipe(recipe_path, [f"{key}={value}"])
    with pytest.raises(InputError) as caught:
        Trainer(recipe, finished_run.path)
    assert f"{key}={was};" in str(caught.value)
    assert str(caught.value).endswith(f"Received: {key}={value!r}")
    assert "\n" not in str(caught.value)


def test_what_does_not_change_the_model_may_change(finished_run, recipe_path):
    changes = {
        "steps": 100,
        "minutes": 5,
        "devices": "[CPU:0]",
        "accumulate_steps": 2,
        "checkpoint_every_steps": 50,
        "checkpoint_every_minutes": 2,
        "keep_checkpoints": 8,
        "average_checkpoints": 1,
        "validate_every_steps": 7,
        "validation_bleu_sentences": 1,
        "log_every_steps": 9,
    }
    decoding = {"beam_size": 3, "alpha": 1, "length_penalty": "power", "batch_sentences": 2}
    decoding |= {"early_stopping": "heuristic", "ends_within": "beam", "forced_end": "free"}
    decoding |= {"suppressed_tokens": "[one]"}
    named = [("training", name) for name in changes]
    named += [("decoding", name) for name in decoding]
    named += [("data", "prepared_dir")]
    assert set(named) == CHANGEABLE
    overrides = [f"training.{name}={value}" for name, value in changes.items()]
    overrides += [f"decoding.{name}={value}" for name, value in decoding.items()]
    overrides += ["data.prepared_dir=elsewhere"]
    Trainer(load_recipe(recipe_path, overrides), finished_run.path)


def test_a_changed_corpus_is_named(copied_run, recipe_path, tmp_path):
    folder = recipe_path.parent
    moved = shutil.copytree(folder, tmp_path / "moved")
    for path in (copied_run.recipe_path, moved / "recipe.yaml"):
        path.write_text(path.read_text().replace(str(folder), str(moved)))
    write_corpus(moved, seed=1)
    with pytest.raises(InputError, match="train.en must be what the run was .*sha256"):
        train(moved / "recipe.yaml", copied_run.path, steps=12)


def test_a_changed_vocabulary_is_named(copied_run, recipe_path):
    lines = [f"{i} {i * i} {i**3}" for i in range(100)]
    TranslationTokenizer.train(lines, lines, vocabulary_size=290).save(copied_run.tokenizer_path)
    with pytest.raises(InputError, match="/tokenizer must be what the run was .*sha256"):
        train(recipe_path, copied_run.path, steps=12)


def test_a_damaged_vocabulary_is_named(copied_run, recipe_path):
    path = copied_run.tokenizer_path / "shared.model"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="shared.model"):
        train(recipe_path, copied_run.path, steps=12)


def test_a_run_directory_must_be_possible(recipe_path, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match="A run directory must be a folder.*Received"):
            Trainer(load_recipe(recipe_path), path)


@pytest.mark.parametrize("wrong", ["data.maximum_length=2", "tokenizer.vocabulary_size=30000"])
def test_a_start_that_is_refused_leaves_nothing_that_binds_the_next(recipe_path, tmp_path, wrong):
    with pytest.raises(InputError, match="must have pairs left|vocabulary_size"):
        Trainer(load_recipe(recipe_path, [wrong]), tmp_path / "run").train()
    # What is prepared is named after its content.
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {"prepared"}
    Trainer(load_recipe(recipe_path), tmp_path / "run")


def test_a_tokenizer_that_a_crash_cut_short_is_made_again(recipe_path, tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.tokenizer_path.mkdir(parents=True)
    (run.tokenizer_path / "shared.model").write_bytes(b"half")
    train(recipe_path, run.path, steps=1)
    assert run.load_tokenizer().target.vocabulary_size == 290


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_missing_file_of_any_split_is_named_before_any_work(recipe_path, tmp_path, split):
    recipe = load_recipe(recipe_path, [f"data.{split}.target=missing.de"])
    with pytest.raises(InputError, match="missing.de"):
        Trainer(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_devices_than_a_batch_has_pairs_are_refused(recipe_path, tmp_path):
    changes = ["training.batch_tokens=40", "data.maximum_length=20"]
    trainer = Trainer(load_recipe(recipe_path, changes), tmp_path / "run")
    corpus = prepare_corpus(trainer.recipe, tmp_path / "prepared")
    batches = trainer._batches(corpus, 1)
    least = batches.smallest_batch()
    assert 1 <= least < 8
    trainer._batches(corpus, least)
    with pytest.raises(InputError, match=f"{least + 1} devices.*Received: 40 tokens, enough"):
        trainer._batches(corpus, least + 1)
