"""Versions of an export: numbered, whole, and never overwritten."""

import os
import subprocess
import sys

import pytest
from small_runs import environment

from export.publish import check_publication, next_version, publish, version_of, versions_in
from keras_transformer.errors import InputError

WRITE_AND_WAIT = """
import sys, time
from pathlib import Path
from export.publish import publish
with publish(sys.argv[1]) as publication:
    (publication.partial / "half a model").touch()
    print("writing", flush=True)
    time.sleep(60)
"""


def write(base, version=None, keep=None):
    """Publishes a version that holds a `saved_model.pb`; returns its name."""
    with publish(base, version, keep) as publication:
        (publication.partial / "saved_model.pb").write_bytes(b"model")
    return publication.path.name


def names(base):
    return {path.name for path in base.iterdir()}


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ([], 1),
        (["1"], 2),
        (["9", "10"], 11),
        (["v1", "1.0", "writing-7", "latest", "-3", "٣", "1a", " 5"], 1),  # noqa: RUF001
        (["v8", "2"], 3),
    ],
)
def test_the_next_version_is_one_more_than_the_highest_number(tmp_path, existing, expected):
    for name in existing:
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == expected
    assert next_version(tmp_path / "not yet made") == 1


@pytest.mark.parametrize(("name", "version"), [("7", 7), ("07", 7), ("٣", None), ("-1", None)])  # noqa: RUF001
def test_a_version_is_a_name_of_digits(name, version):
    assert version_of(name) == version


def test_versions_are_listed_the_highest_first(tmp_path):
    for version in (9, 10, 2):
        write(tmp_path, version)
    (tmp_path / "11").mkdir()  # without a model
    assert [path.name for path in versions_in(tmp_path)] == ["10", "9", "2"]
    assert versions_in(tmp_path / "nothing") == []


def test_versions_can_be_chosen(tmp_path):
    (tmp_path / "v1").mkdir()
    assert [write(tmp_path), write(tmp_path, 7), write(tmp_path)] == ["1", "7", "8"]
    assert names(tmp_path) == {"v1", "1", "7", "8"}


def test_a_version_is_never_overwritten(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "mine").write_text("kept")
    with pytest.raises(InputError, match=r"exports are not overwritten\. Received: 3"):
        write(tmp_path, 3)
    assert {path.name for path in tmp_path.rglob("*")} == {"3", "mine"}


def test_a_version_that_appears_in_the_meantime_is_not_overwritten(tmp_path):
    with (
        pytest.raises(InputError, match=r"exports are not overwritten\. Received: 3"),
        publish(tmp_path, 3),
    ):
        (tmp_path / "3").mkdir()
    with publish(tmp_path) as publication:
        (tmp_path / "4").mkdir()
    assert publication.path.name == "5"


@pytest.mark.parametrize("name", ["version", "keep"])
@pytest.mark.parametrize("value", [0, -1])
def test_versions_start_at_one_and_one_is_kept(tmp_path, name, value):
    arguments = {"version": None, "keep": None, name: value}
    message = rf"{name} must be at least 1\. Received: {value}"
    with pytest.raises(InputError, match=message):
        write(tmp_path, **arguments)
    with pytest.raises(InputError, match=message):
        check_publication(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("a bug"), RuntimeError),
    ],
)
def test_a_failure_in_the_middle_leaves_and_removes_nothing(tmp_path, error, raised):
    write(tmp_path)
    with pytest.raises(raised), publish(tmp_path, keep=1) as publication:
        (publication.partial / "half a model").touch()
        raise error
    assert names(tmp_path) == {"1"}


def test_a_version_appears_whole(tmp_path):
    """A server that watches the folder never sees half of it."""
    with publish(tmp_path) as publication:
        assert [version_of(name) for name in names(tmp_path)] == [None]
        (publication.partial / "saved_model.pb").touch()
    assert names(tmp_path) == {"1"} == {publication.path.name}
    assert publication.path.stat().st_mode & 0o055 == 0o055  # the server may be another user


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"folder that can be written to\. Received: .*file$"):
            write(path)
    with pytest.raises(InputError, match="must be at most 9223372036854775807. Received: 92233720"):
        write(tmp_path, 2**63)
    assert version_of(str(2**63)) is None and version_of(str(2**63 - 1)) == 2**63 - 1


def test_what_a_killed_export_left_goes_and_what_another_writes_stays(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_WAIT, tmp_path],
        env=environment(),
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"writing\n"
        left = f"writing-1-{process.pid}"
        assert write(tmp_path) == "1"
        assert names(tmp_path) == {"1", left}
    finally:
        process.kill()
        process.wait()
    assert next_version(tmp_path) == 2
    assert write(tmp_path) == "2"
    assert names(tmp_path) == {"1", "2"}


def test_folders_of_like_names_are_left_alone(tmp_path):
    mine = {"writing-my-thesis", "removing-old-notes", "writing-1", "writing-1-2-3", "writing-a-2"}
    for name in mine:
        (tmp_path / name).mkdir()
    write(tmp_path)
    assert names(tmp_path) == {*mine, "1"}


def test_old_versions_are_removed(tmp_path):
    for _ in range(4):
        write(tmp_path)
    (tmp_path / "5").mkdir()  # no export
    (tmp_path / "notes").mkdir()
    assert write(tmp_path, keep=3) == "6"
    assert names(tmp_path) == {"notes", "3", "4", "5", "6"}
    with pytest.raises(InputError, match=r"among the 2 highest .* Received: 2, below 3"):
        write(tmp_path, version=2, keep=2)
    assert names(tmp_path) == {"notes", "3", "4", "5", "6"}


def test_a_higher_version_that_appears_in_the_meantime_stays(tmp_path):
    write(tmp_path)
    with publish(tmp_path, 8, keep=1) as publication:
        (publication.partial / "saved_model.pb").touch()
        write(tmp_path, 7)
        write(tmp_path, 9)
    assert names(tmp_path) == {"8", "9"}


def test_a_version_that_is_being_removed_is_no_version(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr("export.publish.shutil.rmtree", lambda *arguments, **options: None)
    write(tmp_path, keep=1)
    assert names(tmp_path) == {"2", f"removing-1-{os.getpid()}"}
    monkeypatch.undo()
    write(tmp_path)
    assert names(tmp_path) == {"2", "3"}
