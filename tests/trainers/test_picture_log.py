"""Pictures of attention in TensorBoard: one a kind and validation, and never a training's end."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_translators import number_tokenizer, random_model

from trainers.corpus import ParallelCorpus
from trainers.picture_log import PictureLog
from trainers.run_log import RunLog
from trainers.splits import read_split

TAGS = {
    f"attention/{kind}/layer_{last}"
    for kind, last in (("encoder", 0), ("decoder", 0), ("cross", 0))
}


def pictures(run_path):
    """(step, tag) -> pixels."""
    return {
        (event.step, value.tag): tf.io.decode_png(value.tensor.string_val[2]).numpy()
        for events in (run_path / "tensorboard" / "attention").glob("events*")
        for record in tf.data.TFRecordDataset(str(events))
        for event in [tf.compat.v1.Event.FromString(record.numpy())]
        for value in event.summary.value
    }


@pytest.fixture(scope="module")
def tokenizer():
    return number_tokenizer()


@pytest.fixture
def callback(tokenizer, tmp_path):
    """A callback of a model at step 0, which has been validated there."""
    model = random_model(tokenizer, num_decoder_layers=1)
    model.compile(keras.optimizers.SGD())
    log = RunLog(tmp_path)
    log.write(0, val_loss=1.0)
    corpus = ParallelCorpus(["one two three four five"], ["eins zwei drei vier fünf"], "valid")
    callback = PictureLog(log, tokenizer, corpus)
    callback.set_model(model)
    return callback


def test_a_training_leaves_a_picture_a_kind_at_each_validation(finished_run):
    found = pictures(finished_run.path)
    assert set(found) == {(step, tag) for step in (4, 8) for tag in TAGS}
    for image in found.values():
        assert image.ndim == 3 and image.std() > 10
    before, after = (found[step, "attention/cross/layer_0"] for step in (4, 8))
    assert before.shape == after.shape and np.any(before != after)


def test_figures_and_pictures_lie_in_folders_of_their_own(finished_run):
    names = sorted(path.name for path in (finished_run.path / "tensorboard").iterdir())
    assert names[0] == "attention" and len(names) == 2


def test_nothing_is_drawn_where_the_run_has_not_validated(callback, tmp_path):
    callback.log.path.unlink()
    callback.on_epoch_end(0)
    assert not callback.folder.exists()
    callback.log.write(0, val_loss=1.0)
    callback.on_epoch_end(0)
    assert {tag for _, tag in pictures(tmp_path)} == TAGS


def test_a_picture_that_fails_ends_the_pictures_and_not_the_training(callback, capsys, tmp_path):
    (tmp_path / "tensorboard" / "attention").parent.mkdir(exist_ok=True)
    (tmp_path / "tensorboard" / "attention").write_text("a file in the way")
    callback.on_epoch_end(0)
    callback.on_epoch_end(1)
    error = capsys.readouterr().err
    assert error.count("no pictures of attention for TensorBoard: ") == 1


def test_the_pair_is_the_first_of_an_easy_length(tokenizer, recipe_path, finished_run):
    def pair(sources, targets):
        return PictureLog(RunLog("none"), tokenizer, ParallelCorpus(sources, targets, "")).pair

    five, many = "one two three four five", "one " * 20
    assert pair(["", "one", many, five], ["", "one", many, five]) == (five, five)
    assert pair([many, "one"], [many, "eins"]) == ("one", "eins")
    assert pair(["", "one"], ["one", " "]) is None
    corpus = read_split(finished_run.load_recipe().data, "validation")
    assert PictureLog(RunLog("none"), tokenizer, corpus).pair[0] in corpus.sources


def test_the_weights_and_the_random_state_stay_as_they_are(callback):
    before = [variable.numpy() for variable in callback.model.variables]
    callback.on_epoch_end(0)
    for variable, value in zip(callback.model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
