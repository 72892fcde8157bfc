"""Which server and which model a URL means, and how a request to them can fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from keras_transformer.errors import InputError

_EXPECTED = (
    "A server's URL must be grpc://HOST:PORT, grpcs://HOST:PORT, http://HOST:PORT or "
    "https://HOST:PORT, with /v1/models/NAME, and /versions/N or /labels/L after it, or nothing"
)
_PATH = re.compile(
    r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?/?"
)
# TF Serving's version is an int64.
_LARGEST_VERSION = 2**63 - 1
_LONGEST_MESSAGE = 400


class ServingError(InputError):
    """What a server answered, or did not, that asking again will not change."""


class ServerUnavailable(Exception):
    """A request that was not answered now and may be sent again: translating changes nothing."""


@dataclass(frozen=True)
class ServerAddress:
    """A server, and a model on it.

    Attributes:
        scheme: str. One of grpc, grpcs, http, https; those with s speak TLS.
        location: str. Host and port.
        model: str. The name that the server has the model under.
        version: int or None.
        label: str or None. With neither, the server takes its newest version.
    """

    scheme: str
    location: str
    model: str
    version: int | None = None
    label: str | None = None

    @classmethod
    def parse(cls, url: str, model: str) -> ServerAddress:
        """Reads a URL; the model that it names goes before the one given.

        Raises:
            InputError: for any other URL.

        Example:

        >>> ServerAddress.parse("grpc://localhost:8500", "translator").model
        'translator'
        >>> ServerAddress.parse("http://localhost:8501/v1/models/de/versions/3", "other")
        ServerAddress(scheme='http', location='localhost:8501', model='de', version=3, label=None)
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InputError(f"{_EXPECTED}. Received: {url!r} ({error})") from error
        path = _PATH.fullmatch(parts.path)
        is_complete = (
            parts.scheme in ("grpc", "grpcs", "http", "https")
            and parts.hostname
            # What speaks TLS often lies behind a gateway at the usual port, 443.
            and (port is not None or parts.scheme in ("grpcs", "https"))
            and (path or parts.path in ("", "/"))
            and not (parts.query or parts.fragment or "@" in parts.netloc)
            and not (path and int(path["version"] or 0) > _LARGEST_VERSION)
        )
        if not is_complete:
            raise InputError(f"{_EXPECTED}. Received: {url!r}")
        model = unquote(path["model"]) if path else model
        if not model or re.search(r"[/:]", model):
            raise InputError(
                f"A model's name must not be empty nor hold a slash or a colon. Received: {model!r}"
            )
        return cls(
            scheme=parts.scheme,
            location=parts.netloc,
            model=model,
            version=int(path["version"]) if path and path["version"] else None,
            label=unquote(path["label"]) if path and path["label"] else None,
        )

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme in ("grpcs", "https")

    def __str__(self) -> str:
        version = f"/versions/{self.version}" if self.version is not None else ""
        label = f"/labels/{self.label}" if self.label is not None else ""
        return f"{self.scheme}://{self.location}/v1/models/{self.model}{version}{label}"


def one_line(message: object) -> str:
    """What a server or a library said, in one line that is not too long to read."""
    line = " ".join(str(message).split()) or "no message"
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}..."
