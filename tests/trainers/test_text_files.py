"""Text files: what ends a line, whatever the size of the blocks that they are read in."""

import bz2
import gzip
import hashlib
import lzma
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from trainers import text_files
from trainers.text_files import (
    check_readable,
    count_lines,
    file_fingerprint,
    read_lines,
    stream_lines,
)

ODD = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
SHIPPED = "tatoeba-deu-eng-demo"


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
    assert count_lines(file) == len(lines)
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


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet=[*ODD, "\n", "\n", "a", "é", "\U0001f600", "\ufeff"]),
    block=st.integers(1, 9),
)
def test_the_size_of_the_blocks_changes_nothing(tmp_path_factory, text, block):
    file = tmp_path_factory.getbasetemp() / "blocks.txt"
    file.write_bytes(text.encode())
    whole, blocks = read_lines(file), text_files.BLOCK_BYTES
    text_files.BLOCK_BYTES = block
    try:
        assert [line for lines in stream_lines(file) for line in lines] == whole
        if block >= 3:  # a byte order mark in one piece
            assert count_lines(file) == len(whole)
    finally:
        text_files.BLOCK_BYTES = blocks


def test_a_wrong_byte_in_a_later_block_is_named_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 4)
    (tmp_path / "text").write_bytes(b"one\ntwo\nthree\nf\xfcnf\n")
    with pytest.raises(InputError, match=r"text, line 4: expected UTF-8 .* byte 0xfc"):
        read_lines(tmp_path / "text")


@pytest.mark.parametrize(("ending", "compress"), [("", bytes), (".gz", gzip.compress)])
def test_a_file_is_never_whole_in_memory(tmp_path, monkeypatch, ending, compress):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 1 << 14)
    file = tmp_path / f"text{ending}"
    file.write_bytes(compress(b"\n".join(b"%09d" % number for number in range(100_000))))
    tracemalloc.start()
    try:
        assert sum(len(lines) for lines in stream_lines(file)) == 100_000
        assert count_lines(file) == 100_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 800_000  # the lines take 60 bytes each


def test_a_fingerprint_is_of_the_bytes_on_the_disk(tmp_path):
    file = tmp_path / "text.gz"
    file.write_bytes(gzip.compress(b"a"))
    assert file_fingerprint(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(InputError, match="no such file"):
        file_fingerprint(tmp_path / "none")


def test_a_check_reads_no_further_than_the_start(tmp_path):
    good, bad, none = tmp_path / "good.gz", tmp_path / "bad.gz", tmp_path / "none"
    good.write_bytes(gzip.compress(b"\xff" * 1000))  # not UTF-8: that is not for a check
    check_readable(good)
    bad.write_bytes(b"no gzip")
    for file in (bad, none, tmp_path):
        with pytest.raises(InputError) as error:
            check_readable(file)
        assert str(file) in one_line(error)
