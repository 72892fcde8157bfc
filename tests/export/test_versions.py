"""Versions of an export: numbered, whole, and never overwritten."""

import shutil

import pytest

from export import saved_model
from export.saved_model import export_translator, next_version
from keras_transformer.errors import InputError


@pytest.fixture(scope="module")
def translator(numbers_run):
    return numbers_run.load_translator()


@pytest.fixture
def quick(monkeypatch):
    """Writes a file in the place of the SavedModel, for tests of what is around it."""

    def write(translator, path):
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"model")

    monkeypatch.setattr(saved_model, "_write", write)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], 1),
        (["1"], 2),
        (["9", "10"], 11),
        (["v1", "1.0", "writing-7", "latest", "-3", "٣", "1a", " 5"], 1),  # noqa: RUF001
        (["v8", "2"], 3),
    ],
)
def test_the_next_version_is_one_more_than_the_highest_number(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == expected
    assert next_version(tmp_path / "not yet made") == 1


def test_versions_can_be_chosen(quick, translator, tmp_path):
    (tmp_path / "v1").mkdir()
    (tmp_path / "1.0").mkdir()
    assert export_translator(translator, tmp_path) == tmp_path / "1"
    assert export_translator(translator, tmp_path, 7) == tmp_path / "7"
    assert export_translator(translator, tmp_path) == tmp_path / "8"
    assert {path.name for path in tmp_path.iterdir()} == {"v1", "1.0", "1", "7", "8"}


def test_a_second_export_leaves_the_first_as_it_is(quick, numbers_export, translator, tmp_path):
    first = shutil.copytree(numbers_export, tmp_path / "base" / "1")
    assert export_translator(translator, tmp_path / "base") == tmp_path / "base" / "2"
    assert {path.name for path in (tmp_path / "base").iterdir()} == {"1", "2"}
    before, after = (
        {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        for path in (numbers_export, first)
    )
    assert before == after


def test_a_version_is_never_overwritten(translator, tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "mine").write_text("kept")
    with pytest.raises(InputError, match=r"exports are not overwritten\. Received: 3"):
        export_translator(translator, tmp_path, 3)
    assert [path.name for path in tmp_path.rglob("*")] == ["3", "mine"]


@pytest.mark.parametrize("version", [0, -1])
def test_versions_start_at_one(translator, tmp_path, version):
    with pytest.raises(InputError, match=rf"version must be at least 1\. Received: {version}"):
        export_translator(translator, tmp_path, version)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("a bug"), RuntimeError),
    ],
)
def test_a_failure_in_the_middle_leaves_nothing(quick, monkeypatch, tmp_path, error, raised):
    def fail(*arguments):
        raise error

    translator = object()
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(saved_model, "_write_expected", fail)
    with pytest.raises(raised):
        export_translator(translator, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_what_a_killed_export_left_is_no_version_and_goes(quick, translator, tmp_path):
    left = tmp_path / "writing-1"
    left.mkdir()
    (left / "half a model").touch()
    assert next_version(tmp_path) == 1
    path = export_translator(translator, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["1"]
    assert not (path / "half a model").exists()


def test_a_version_appears_whole(quick, monkeypatch, translator, tmp_path):
    """A server that watches the folder never sees half of it."""
    seen = []
    write_expected = saved_model._write_expected

    def watch(*arguments):
        seen.extend(path.name for path in tmp_path.iterdir())
        write_expected(*arguments)

    monkeypatch.setattr(saved_model, "_write_expected", watch)
    export_translator(translator, tmp_path)
    assert seen == ["writing-1"]


def test_a_folder_that_cannot_be_is_refused(translator, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"must be writable to .*file\. Received: .*exists"):
        export_translator(translator, tmp_path / "file")


# Slow ones ----------------------------------------------------------------------------------------
