"""Parallel corpora: what ends a line, the shipped files, tensorflow-datasets."""

import bz2
import dataclasses
import gzip
import hashlib
import lzma
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from trainers.corpus import (
    SHIPPED_FOLDER,
    ParallelCorpus,
    read_lines,
    read_parallel_files,
    read_tfds,
    read_tfds_folder,
)

ODD = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
SHIPPED = "tatoeba-deu-eng-demo"


class TinyTestTranslate(tfds.core.GeneratorBasedBuilder):
    """A translation set with a configuration a pair of languages, as tfds' own ones."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name="de-en"),
        tfds.core.BuilderConfig(name="broken"),
    ]
    PAIRS = {"train": [(f"Satz {i}", f"sentence {i}") for i in range(5)]}
    PAIRS["test"] = [("Grüße\u2028aus \U0001f600", "greetings\r\nfrom\n"), ("", "empty")]
    generated = 0

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {"de": tfds.features.Text(), "en": tfds.features.Text(), "year": np.int32}
            )
            if self.builder_config.name == "broken"
            else tfds.features.Translation(["de", "en"])
        )

    def _split_generators(self, dl_manager):
        if self.builder_config.name == "broken":
            raise OSError("the server\nis down")
        return {split: self._generate_examples(split) for split in self.PAIRS}

    def _generate_examples(self, split):
        TinyTestTranslate.generated += 1
        for i, (german, english) in enumerate(self.PAIRS[split]):
            yield i, {"de": german, "en": english}


def one_line(error):
    message = str(error.value)
    assert "\n" not in message and "Received: " in message
    return message


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\n", ["a", ""]),
        (b"\n\na", ["", "", "a"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\r", ["a", "b"]),
        (b"a\r\r\nb", ["a", "b"]),
        (b"a\rb\n", ["a b"]),
        (b"a\n\r", ["a", ""]),
        (" a\u00a0b \n".encode(), [" a\u00a0b "]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbf", []),
        ("a\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
    ],
)
def test_lines(tmp_path, content, lines):
    (tmp_path / "text").write_bytes(content)
    assert read_lines(tmp_path / "text") == lines
    assert read_lines(str(tmp_path / "text")) == lines


@pytest.mark.parametrize("separator", ODD)
def test_other_separators_are_white_space_inside_a_line(tmp_path, separator):
    (tmp_path / "text").write_bytes(f"one{separator}two\nthree\n".encode())
    assert read_lines(tmp_path / "text") == ["one two", "three"]


@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet=[*ODD, "\n", "a", "é", "\u3042", "\U0001f600", "\0", " "]))
def test_lines_are_as_many_as_line_feeds_and_hold_no_separator(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "property.txt"
    file.write_bytes(text.encode())
    lines = read_lines(file)
    assert len(lines) == text.count("\n") + (not text.endswith("\n") and text != "")
    assert all(len(line.splitlines()) <= 1 and line.splitlines() in ([], [line]) for line in lines)
    expected = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    for separator in ODD:
        expected = [line.replace(separator, " ") for line in expected]
    assert lines == expected


@pytest.mark.parametrize(
    ("ending", "compress"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
def test_compressed_files(tmp_path, ending, compress):
    file = tmp_path / f"text.en{ending}"
    file.write_bytes(compress("grün\r\nb".encode()))
    assert read_lines(file) == ["grün", "b"]
    file.write_bytes(compress(b"a" * 1000)[:-9])
    with pytest.raises(InputError, match="cannot be read") as error:
        read_lines(file)
    assert str(file) in one_line(error)
    file.write_bytes(b"not compressed")
    with pytest.raises(InputError, match="cannot be read"):
        read_lines(file)


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"\xff", 1), (b"a\nb\xe4\nc\n", 2), (b"\xef\xbb\xbfa\nb\nc\xc3", 3)],
)
def test_wrong_bytes_are_named_by_file_and_line(tmp_path, content, line):
    file = tmp_path / "latin.txt"
    file.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_lines(file)
    assert f"{file}, line {line}: expected UTF-8" in one_line(error)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InputError) as error:
        read_lines(tmp_path / "none.txt")
    assert str(tmp_path / "none.txt") in one_line(error)
    with pytest.raises(InputError, match="cannot be read"):
        read_lines(tmp_path)
    for name in ("shipped:none.xz", "shipped:../corpus.py", "shipped:README.md"):
        with pytest.raises(InputError) as error:
            read_lines(name)
        assert name in one_line(error) and f"{SHIPPED}.train.de.xz" in one_line(error)


def test_the_shipped_corpus_is_whole_and_its_splits_share_no_sentence():
    counts = {"train": 30000, "valid": 1000, "test": 1000}
    bytes_of_text = {"train": 1084974 + 925033, "valid": 36434 + 31187, "test": 36401 + 30987}
    seen = {"de": set(), "en": set()}
    for split, count in counts.items():
        paths = [f"shipped:{SHIPPED}.{split}.{language}.xz" for language in seen]
        corpus = read_parallel_files(*paths)
        assert len(corpus) == count
        sides = (corpus.sources, corpus.targets)
        assert (
            sum(len(line.encode()) + 1 for side in sides for line in side) == (bytes_of_text[split])
        )
        for sentences, side in zip(seen.values(), sides, strict=True):
            sentences |= set(side)
    assert {len(sentences) for sentences in seen.values()} == {sum(counts.values())}


def test_the_shipped_corpus_names_source_licence_and_changes():
    readme = (SHIPPED_FOLDER / "README.md").read_text(encoding="utf-8")
    assert (
        "Sentences from the Tatoeba Project (https://tatoeba.org), CC BY 2.0 FR "
        "(https://creativecommons.org/licenses/by/2.0/fr/), as packaged by "
        "https://www.manythings.org/anki/; re-split and filtered."
    ) in readme
    assert "## Changes" in readme
    for file in SHIPPED_FOLDER.glob("*.xz"):
        assert f"`{file.name}`" in readme
    about = (SHIPPED_FOLDER / "SOURCE_about.txt").read_bytes()
    assert hashlib.sha256(about).hexdigest() == ABOUT_SHA256


ABOUT_SHA256 = "df6f57ec7e6d9b31e2b9c8b6a4e0bea4aebe0a408a8e7fb24ae217e37ef4e92f"


def test_a_corpus_is_frozen_and_known_by_its_content():
    corpus = ParallelCorpus(["a", "b"], ["c", "d"], "x")
    assert len(corpus) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.name = "y"
    assert corpus.fingerprint == ParallelCorpus(["a", "b"], ["c", "d"], "other").fingerprint
    others = [
        (["a", "b"], ["d", "c"]),
        (["b", "a"], ["c", "d"]),
        (["c", "d"], ["a", "b"]),
        (["a\nb", ""], ["c", "d"]),
        (["ab", ""], ["c", "d"]),
        (["", "ab"], ["c", "d"]),
        (["a"], ["c"]),
    ]
    prints = {ParallelCorpus(*sides, "x").fingerprint for sides in others}
    assert len(prints | {corpus.fingerprint}) == len(others) + 1
    with pytest.raises(InputError, match="2 sources and 1 targets"):
        ParallelCorpus(["a", "b"], ["c"], "x")


def test_unequal_files_are_refused_with_both_names_and_counts(tmp_path):
    source, target = tmp_path / "train.en", tmp_path / "train.de"
    source.write_bytes(b"a\nb\rc\nd\n")
    target.write_bytes(b"A\nB\nC\nD\n")
    with pytest.raises(InputError) as error:
        read_parallel_files(source, target)
    assert f"{source} with 3 lines and {target} with 4 lines" in one_line(error)
    target.write_bytes(b"A\nB\nD")
    corpus = read_parallel_files(source, target)
    assert corpus.sources == ["a", "b c", "d"] and corpus.targets == ["A", "B", "D"]
    assert str(source) in corpus.name and str(target) in corpus.name


def test_tfds_set_by_name_is_prepared_once_and_read(tmp_path, capfd):
    TinyTestTranslate.generated = 0
    corpus = read_tfds("tiny_test_translate/de-en", "train", "en", "de", data_dir=tmp_path)
    assert TinyTestTranslate.generated == 2
    assert sorted(zip(corpus.sources, corpus.targets, strict=True)) == [
        (f"sentence {i}", f"Satz {i}") for i in range(5)
    ]
    again = read_tfds("tiny_test_translate/de-en", "train", "de", "en", data_dir=str(tmp_path))
    assert (again.sources, again.targets) == (corpus.targets, corpus.sources)
    part = read_tfds("tiny_test_translate/de-en", "train[:2]", "en", "de", data_dir=tmp_path)
    assert part.sources == corpus.sources[:2]
    odd = read_tfds("tiny_test_translate/de-en", "test", "de", "en", data_dir=tmp_path)
    assert sorted(zip(odd.sources, odd.targets, strict=True)) == [
        ("", "empty"),
        ("Grüße aus \U0001f600", "greetings  from"),
    ]
    assert TinyTestTranslate.generated == 2
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "split", "languages", "expected"),
    [
        ("no_such_set_translate/de-en", "train", "de en", "no_such_set_translate/de-en"),
        ("tiny_test_translate/fr-en", "train", "fr en", "fr-en"),
        ("not a name!", "train", "de en", "not a name!"),
        ("tiny_test_translate/de-en", "training", "de en", "test, train"),
        ("tiny_test_translate/de-en", "train", "de fr", "de, en. Received: 'fr'"),
        ("tiny_test_translate/de-en", "train", "de de", "'de' twice"),
        ("tiny_test_translate/broken", "train", "de year", "de, en. Received: 'year'"),
        ("tiny_test_translate/broken", "train", "de en", "OSError: "),
    ],
)
def test_tfds_faults_are_one_clear_line(tmp_path, capfd, name, split, languages, expected):
    with pytest.raises(InputError) as error:
        read_tfds(name, split, *languages.split(), data_dir=tmp_path)
    assert expected in one_line(error)
    assert capfd.readouterr().out == ""


def test_the_papers_sets_are_known_to_tfds(tmp_path):
    for pair in ("de-en", "fr-en"):
        builder = tfds.builder(f"wmt14_translate/{pair}", data_dir=tmp_path)
        assert set(builder.info.features) == set(pair.split("-"))
        # What preparing it reads before it downloads; needs importlib_resources, which
        # tensorflow-datasets 4.9.10 uses but does not ask for.
        assert builder.code_path is not None
        assert builder.info.as_proto.name == "wmt14_translate"


def write_folder(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name.replace('_', '.')}.txt").write_bytes(content)
    return folder


def test_tfds_folder(tmp_path, capfd):
    folder = write_folder(
        tmp_path / "set",
        en_train="one\ntwo\nüber\n".encode(),
        de_train=b"eins\r\nzwei\r\ndrei",
        en_test=b"four\n",
        de_test=b"vier\n",
    )
    corpus = read_tfds_folder(folder, "train", "en", "de")
    assert corpus.sources == ["one", "two", "über"]
    assert corpus.targets == ["eins", "zwei", "drei"]
    assert read_tfds_folder(str(folder), "test", "de", "en").sources == ["vier"]
    assert capfd.readouterr().out == ""
    for split, languages, expected in (
        ("valid", ("en", "de"), "test, train"),
        ("train", ("en", "fr"), "de, en. Received: 'fr'"),
    ):
        with pytest.raises(InputError) as error:
            read_tfds_folder(folder, split, *languages)
        assert expected in one_line(error)


@pytest.mark.parametrize("separator", ODD)
def test_tfds_folder_refuses_lines_that_tfds_would_cut(tmp_path, separator):
    line = f"two{separator}2".encode()
    both = write_folder(
        tmp_path / "both", en_train=b"one\n" + line + b"\n", de_train=b"eins\n" + line + b"\n"
    )
    with pytest.raises(InputError) as error:
        read_tfds_folder(both, "train", "en", "de")
    assert f"{both / 'en.train.txt'}, line 2: " in one_line(error)


def test_tfds_folder_faults_are_one_clear_line(tmp_path):
    unequal = write_folder(tmp_path / "unequal", en_train=b"a\nb\n", de_train=b"c\n")
    marked = write_folder(tmp_path / "bom", en_train=b"\xef\xbb\xbfa\n", de_train=b"c\n")
    stranger = write_folder(tmp_path / "stranger", en_train=b"a\n", de_train=b"c\n")
    (stranger / "README").write_text("no language here")
    for folder in (unequal, marked, stranger, tmp_path / "none"):
        with pytest.raises(InputError) as error:
            read_tfds_folder(folder, "train", "en", "de")
        assert str(folder) in one_line(error)


def test_tfds_is_imported_only_where_it_is_used():
    code = (
        "import sys, trainers.corpus as corpus\n"
        f"assert len(corpus.read_lines('shipped:{SHIPPED}.test.de.xz')) == 1000\n"
        "assert 'tensorflow_datasets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SHIPPED_FOLDER.parents[1])


def test_a_missing_tfds_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match="pip install tensorflow-datasets"):
        read_tfds("tiny_test_translate/de-en", "train", "en", "de")
