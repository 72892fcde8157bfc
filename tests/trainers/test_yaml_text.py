import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import InputError
from trainers.yaml_text import dump_yaml, parse_yaml, read_yaml

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    # Text that a YAML reader could take for something else.
    st.from_regex(r"[-+]?[0-9._]{1,4}([eE][-+]?[0-9]{1,2})?", fullmatch=True),
    st.sampled_from(["no", "yes", "null", "true", "~", "", "12:30", "010", "0x1F", "2024-01-31"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("-.inf", float("-inf")),
        ("25_000", 25000),
        ("010", 10),
        ("+7", 7),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-31", "2024-01-31"),
        ("1e", "1e"),
        ("_1", "_1"),
        ("TRUE", True),
        ("~", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("[CPU:0,CPU:1]", ["CPU:0", "CPU:1"]),
    ],
)
def test_plain_scalars_mean_what_they_say(text, value):
    parsed = parse_yaml(text, "here")
    assert parsed == value and type(parsed) is type(value)


@settings(deadline=None)
@given(VALUES)
def test_what_is_dumped_is_parsed_back(value):
    parsed = parse_yaml(dump_yaml(value), "here")
    assert parsed == value and repr(parsed) == repr(value)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "key 'a' is given twice"),
        ("s:\n  a: 1\n  'a': 1\n", 3, "key 'a' is given twice"),
        ("a: [1, 2\nb: 3\n", 2, "expected ',' or ']'"),
        ("a: b: c\n", 1, "mapping values are not allowed here"),
        ("a: *nowhere\n", 1, "undefined alias"),
        ("a: !!python/object/apply:os.getcwd []\n", 1, "could not determine a constructor"),
        ("a: !!timestamp x\n", 1, "could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("? [1]\n: 2\n", 1, "unhashable key"),
    ],
)
def test_bad_yaml_is_refused_with_file_and_line(tmp_path, text, line, problem):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_yaml(path)
    message = str(error.value)
    assert message.startswith(f"{path}, line {line}: ")
    assert problem in message and "Received: " in message and "\n" not in message


@pytest.mark.parametrize(
    "content", [b"a: \xff\n", b"a: \x00\n", b"a: !!int x\n", b"a: !!bool x\n", b"[" * 5000]
)
def test_what_is_not_yaml_is_one_clear_line(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_yaml(path)
    message = str(error.value)
    assert message.startswith(str(path)) and "Received: " in message and "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match="missing.yaml must be .* Received: No such file"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="Received: Is a directory"):
        read_yaml(tmp_path)


def test_windows_files_read_the_same(tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: x\r\nb: 1e-3\r\n")
    assert read_yaml(path) == {"a": "x", "b": 1e-3}
