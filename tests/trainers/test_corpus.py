"""Parallel corpora: two files or a folder of them, stretch by stretch, and the shipped one."""

import dataclasses
import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from trainers.corpus import ParallelCorpus, ParallelFiles, TranslateFolder, read_parallel_files
from trainers.text_files import SHIPPED_FOLDER

ODD = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
SHIPPED = "tatoeba-deu-eng-demo"


def one_line(error):
    message = str(error.value)
    assert "\n" not in message and "Received: " in message
    return message


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


def test_a_corpus_is_frozen_and_has_as_many_targets_as_sources():
    corpus = ParallelCorpus(["a", "b"], ["c", "d"], "x")
    assert len(corpus) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.name = "y"
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


@settings(deadline=None, max_examples=60)
@given(
    source=st.lists(st.sampled_from(["", "a", "b c"]), max_size=25),
    more=st.integers(-3, 3),
    size=st.integers(1, 12),
)
def test_stretches_are_the_files_and_unequal_ones_are_refused(tmp_path_factory, source, more, size):
    target = [f"{line}!" for line in source[: len(source) + min(more, 0)]] + ["x"] * max(more, 0)
    folder = tmp_path_factory.getbasetemp()
    for name, lines in (("a", source), ("b", target)):
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    files = ParallelFiles(folder / "a", folder / "b")
    if len(source) != len(target):
        counts = f"a with {len(source)} lines and .*b with {len(target)} lines"
        for read in (files.count, lambda: list(files.stretches(size))):
            with pytest.raises(InputError, match=counts):
                read()
        return
    stretches = list(files.stretches(size))
    assert files.count() == len(source)
    assert [len(sources) for sources, _ in stretches[:-1]] == [size] * (len(stretches) - 1)
    assert all(0 < len(sources) == len(targets) <= size for sources, targets in stretches)
    assert list(itertools.chain(*(sources for sources, _ in stretches))) == source
    assert list(itertools.chain(*(targets for _, targets in stretches))) == target


def test_files_are_known_by_their_bytes(tmp_path):
    source, target = tmp_path / "en", tmp_path / "de"
    source.write_bytes(b"a\n")
    target.write_bytes(b"b\n")
    prints = ParallelFiles(source, str(target)).fingerprints()
    assert prints == {
        str(source): hashlib.sha256(b"a\n").hexdigest(),
        str(target): hashlib.sha256(b"b\n").hexdigest(),
    }
    target.write_bytes(b"b.\n")
    assert ParallelFiles(source, target).fingerprints()[str(target)] != prints[str(target)]
    name = f"shipped:{SHIPPED}.test.de.xz"
    assert list(ParallelFiles(name, name).fingerprints()) == [name]


def test_a_check_finds_a_missing_file(tmp_path):
    (tmp_path / "en").write_bytes(b"a\n")
    ParallelFiles(tmp_path / "en", tmp_path / "en").check()
    with pytest.raises(InputError, match="de: no such file"):
        ParallelFiles(tmp_path / "en", tmp_path / "de").check()


def write_folder(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name.replace('_', '.')}.txt").write_bytes(content)
    return folder


def test_tfds_folder(tmp_path):
    folder = write_folder(
        tmp_path / "set",
        en_train="one\ntwo\nüber\n".encode(),
        de_train=b"eins\r\nzwei\r\ndrei",
        en_test=b"four\n",
        de_test=b"vier\n",
    )
    corpus = TranslateFolder(folder, "train", "en", "de").read()
    assert corpus.sources == ["one", "two", "über"]
    assert corpus.targets == ["eins", "zwei", "drei"]
    assert TranslateFolder(str(folder), "test", "de", "en").read().sources == ["vier"]
    for split, languages, expected in (
        ("valid", ("en", "de"), "test, train"),
        ("train", ("en", "fr"), "de, en. Received: 'fr'"),
    ):
        with pytest.raises(InputError) as error:
            TranslateFolder(folder, split, *languages)
        assert expected in one_line(error)


@pytest.mark.parametrize("separator", ODD)
def test_tfds_folder_refuses_lines_that_tfds_would_cut(tmp_path, separator):
    line = f"two{separator}2".encode()
    both = write_folder(
        tmp_path / "both", en_train=b"one\n" + line + b"\n", de_train=b"eins\n" + line + b"\n"
    )
    with pytest.raises(InputError) as error:
        TranslateFolder(both, "train", "en", "de").read()
    assert f"{both / 'en.train.txt'}, line 2: " in one_line(error)


def test_tfds_folder_faults_are_one_clear_line(tmp_path):
    unequal = write_folder(tmp_path / "unequal", en_train=b"a\nb\n", de_train=b"c\n")
    marked = write_folder(tmp_path / "bom", en_train=b"\xef\xbb\xbfa\n", de_train=b"c\n")
    stranger = write_folder(tmp_path / "stranger", en_train=b"a\n", de_train=b"c\n")
    (stranger / "README").write_text("no language here")
    for folder in (unequal, marked, stranger, tmp_path / "none"):
        with pytest.raises(InputError) as error:
            TranslateFolder(folder, "train", "en", "de").read()
        assert str(folder) in one_line(error)
