import pytest

from export.serving.client import ServingClient
from export.serving.server_address import ServerAddress, one_line
from keras_transformer.errors import InputError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("grpc://localhost:8500", ServerAddress("grpc", "localhost:8500", "translator")),
        ("http://[::1]:8501/", ServerAddress("http", "[::1]:8501", "translator")),
        ("HTTPS://example.org", ServerAddress("https", "example.org", "translator")),
        ("grpcs://example.org", ServerAddress("grpcs", "example.org", "translator")),
        ("http://a:1/v1/models/de", ServerAddress("http", "a:1", "de")),
        ("grpc://a:1/v1/models/de%20en", ServerAddress("grpc", "a:1", "de en")),
        ("grpc://a:1/v1/models/de/versions/0", ServerAddress("grpc", "a:1", "de", version=0)),
        ("grpc://a:1/v1/models/de/labels/new", ServerAddress("grpc", "a:1", "de", label="new")),
    ],
)
def test_urls(url, expected):
    assert ServerAddress.parse(url, "translator") == expected
    assert ServerAddress.parse(str(expected), "other") == expected or " " in expected.model


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8500",
        "localhost",
        "ftp://localhost:8500",
        "grpc://localhost",
        "http://localhost",
        "grpc://:8500",
        "http://localhost:port",
        "http://localhost:99999",
        "http://[::1:8501",
        "http://localhost:8501/v1/models",
        "http://localhost:8501/v1/models/a/versions/b",
        "http://localhost:8501/v1/models/a/versions/99999999999999999999",
        "http://localhost:8501/v1/models/a:predict",
        "http://localhost:8501/translator",
        "http://localhost:8501?model=a",
        "http://me:secret@localhost:8501",
    ],
)
def test_any_other_url_is_refused(url):
    with pytest.raises(InputError, match=r"URL must be grpc://HOST:PORT.* Received: '"):
        ServingClient(url)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"retry_seconds": -1}, "retry_seconds"),
        ({"concurrency": 0}, "concurrency"),
        ({"model": ""}, "model"),
        ({"model": "a/b"}, "model"),
    ],
)
def test_impossible_options_are_named(options, named):
    with pytest.raises(InputError, match=rf"{named}.*Received: "):
        ServingClient("http://127.0.0.1:8501", **options)


def test_what_was_said_is_one_line():
    assert one_line("a\n\tb  c\r\n") == "a b c"
    assert one_line("") == one_line(" \n") == "no message"
    assert one_line("x" * 1000) == "x" * 400 + "..."
