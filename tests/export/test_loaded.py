import numpy as np
import pytest
import tensorflow as tf
from small_translators import SENTENCES

from export.loaded import ExportedTranslator, version_directory
from keras_transformer.errors import InputError
from keras_transformer.text_batches import Hypothesis


@pytest.fixture(scope="module")
def exported(numbers_export):
    return ExportedTranslator(numbers_export)


def make_versions(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "saved_model.pb").touch()


# Paths --------------------------------------------------------------------------------------------


def test_a_path_is_a_version_or_a_folder_of_versions(tmp_path):
    make_versions(tmp_path, "1", "9", "10", "v11", "1.0", "writing-12", "٣")
    (tmp_path / "11").mkdir()  # without a model
    assert version_directory(tmp_path) == tmp_path / "10"
    assert version_directory(str(tmp_path / "9")) == tmp_path / "9"
    assert version_directory(tmp_path / "v11") == tmp_path / "v11"


@pytest.mark.parametrize("names", [[], ["v1"], ["1.0", "writing-1"]])
def test_a_path_without_a_version_is_refused(tmp_path, names):
    make_versions(tmp_path, *names)
    with pytest.raises(InputError, match=rf"must hold saved_model\.pb.* Received: {tmp_path}$"):
        version_directory(tmp_path)


def test_a_file_or_nothing_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "nothing"):
        with pytest.raises(InputError, match=f"Received: .*{name}$"):
            ExportedTranslator(tmp_path / name)


# Translations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_sentences", [1, 7, 20])
def test_it_gives_what_the_translator_gives(exported, numbers_run, batch_sentences):
    expected = numbers_run.load_translator().translate(SENTENCES)
    found = exported.translate(SENTENCES, batch_sentences)
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.text for each in mine] == [each.text for each in theirs]
        np.testing.assert_allclose(
            [each.score for each in mine], [each.score for each in theirs], atol=1e-4
        )


def test_the_highest_version_of_a_folder_is_loaded(exported, numbers_export):
    other = ExportedTranslator(numbers_export.parent)
    assert other.path == numbers_export and other.beam_size == exported.beam_size == 3
    assert other.translate(["two"])[0][0].text == "zwei"


def test_blank_texts_and_no_texts(exported):
    assert exported.translate([]) == []
    assert exported.translate(["", "\u00a0 \t"]) == [[Hypothesis("", 0.0)]] * 2


def test_half_a_character_and_one_text_alone(exported):
    assert exported.translate(["two \ud83d"]) == exported.translate(["two \ufffd"])
    with pytest.raises(InputError, match=r"must be a list of str\. Received: 'two'"):
        exported.translate("two")


# Broken exports -----------------------------------------------------------------------------------


def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path):
    make_versions(tmp_path, "1")
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"^\S+ must be an export .* Received: [^\n]+$"):
        ExportedTranslator(tmp_path)


def test_another_model_is_refused(tmp_path):
    module = tf.Module()
    module.double = tf.function(lambda x: {"y": 2 * x}, [tf.TensorSpec([None], tf.float32, "x")])
    tf.saved_model.save(module, str(tmp_path), {"serving_default": module.double})
    with pytest.raises(InputError, match=r"n_best or serving_default\. Received: \w+: [^\n]+$"):
        ExportedTranslator(tmp_path)
