"""A split of the recipe is read in whichever form it is given."""

import pytest

from keras_transformer.errors import InputError
from trainers.recipe_keys import DataSection, Files
from trainers.splits import open_split, read_split

PAIR = Files(source="shipped:tatoeba-deu-eng-demo.valid.en.xz", target="not read")


def section(test, **changes):
    return DataSection(
        source_language="en",
        target_language="de",
        train=PAIR,
        validation=PAIR,
        test=test,
        **changes,
    )


def test_two_files(tmp_path):
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    (tmp_path / "b").write_bytes("eins\nzwölf\n".encode())
    corpus = read_split(section(Files(source=f"{tmp_path}/a", target=f"{tmp_path}/b")), "test")
    assert (corpus.sources, corpus.targets) == (["one", "two"], ["eins", "zwölf"])


def test_a_folder_in_the_layout_of_tensorflow_datasets(tmp_path):
    texts = {"en": b"one\ntwo\n", "de": b"eins\nzwei\n"}
    for language, text in texts.items():
        (tmp_path / f"{language}.held_out.txt").write_bytes(text)
        (tmp_path / f"{language}.other.txt").write_bytes(b"x\n")
    corpus = read_split(section(Files(tfds_folder=str(tmp_path), split="held_out")), "test")
    assert (corpus.sources, corpus.targets) == (["one", "two"], ["eins", "zwei"])


def test_a_set_of_tensorflow_datasets():
    files = Files(tfds="wmt14_translate/de-en", split="train[:10%]")
    source = open_split(section(files, tfds_data_dir="sets"), "test")
    assert (source.set_name, source.split, source.languages, source.data_dir) == (
        *("wmt14_translate/de-en", "train[:10%]"),
        *(("en", "de"), "sets"),
    )


def test_splits_are_not_mixed_up(tmp_path):
    for name in ("train", "validation", "test"):
        (tmp_path / name).write_text(f"{name}\n")
    files = {
        name: Files(source=str(tmp_path / name), target=str(tmp_path / name))
        for name in ("train", "validation", "test")
    }
    data = DataSection(source_language="en", target_language="de", **files)
    for name in files:
        assert read_split(data, name).sources == [name]


def test_a_split_that_the_recipe_does_not_have_is_named():
    with pytest.raises(InputError, match="^data.test must be given. Received: nothing$"):
        open_split(section(None), "test")
