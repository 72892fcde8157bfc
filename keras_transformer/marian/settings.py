"""Settings files of checkpoints: every key is used, known to change nothing, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from keras_transformer.errors import InputError

_NEEDED = object()
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "an object",
}


class Settings:
    """The keys of one settings file, ticked off one after the other.

    A setting that nobody looked at would change the translations of a model without a word. So
    `finish` refuses, by name, each key that was neither used nor expected nor known to be harmless.

    Args:
        file: str. Name of the file, for messages.
        values: mapping from key to value.

    Example:

    >>> settings = Settings("config.json", {"d_model": 8, "normalize_before": True})
    >>> settings.take("d_model", int)
    8
    >>> settings.expect({"normalize_before": (False,)})
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: config.json: normalize_before must be false. Received: true
    """

    def __init__(self, file: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self._values = dict(values)
        self._open = set(self._values)

    @classmethod
    def of_json(cls, path: Path) -> Settings:
        """The settings of a JSON file."""
        return cls(path.name, read_json_object(path))

    @classmethod
    def of_yaml(cls, content: bytes, file: str) -> Settings:
        """The settings of a YAML text in UTF-8."""
        try:
            values = yaml.safe_load(content.decode())
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            what = " ".join(str(error).split())  # in one line
            raise InputError(f"{file} must be YAML: {what}. Received: {content[:80]!r}") from None
        if not isinstance(values, dict):
            raise InputError(f"{file} must be a YAML mapping. Received: {content[:80]!r}")
        return cls(file, values)

    def split(self, keys: Iterable[str]) -> Settings:
        """Moves the given keys into settings of their own, for the same file."""
        moved = {key: self._values.pop(key) for key in keys if key in self._values}
        self._open -= moved.keys()
        return Settings(self.file, moved)

    def get(self, key: str, default: Any = None) -> Any:
        """A value as it stands."""
        self._open.discard(key)
        return self._values.get(key, default)

    def take(
        self, key: str, kind: type, default: Any = _NEEDED, *, at_least: float | None = None
    ) -> Any:
        """A value that is used.

        Args:
            key: str.
            kind: `int`, `float` (a whole number will do), `bool`, `str`, `list` or `dict`.
            default: what an absent key or null means. Without it the key is needed.
            at_least: number. The smallest that will do.

        Raises:
            InputError: if the key is needed and absent, or the value does not fit.
        """
        self._open.discard(key)
        value = self._values.get(key)
        if value is None and default is not _NEEDED:
            return default
        is_bool = isinstance(value, bool)
        fits = isinstance(value, (int, float) if kind is float else kind) and (
            is_bool == (kind is bool)
        )
        expected = _KINDS[kind]
        if at_least is not None:
            expected += f" of at least {at_least}"
            fits = fits and value >= at_least
        if not fits:
            raise self.error(key, expected)
        return value

    def choose(self, key: str, choices: Sequence[tuple[Any, Any]], default: Any = _NEEDED) -> Any:
        """What one of several values stands for; `default` is what an absent key stands for."""
        self._open.discard(key)
        if key not in self._values and default is not _NEEDED:
            return default
        for value, meaning in choices:
            if key in self._values and _same(self._values[key], value):
                return meaning
        raise self.error(key, " or ".join(json.dumps(value) for value, _ in choices))

    def expect(self, expected: Mapping[str, tuple]) -> None:
        """Refuses values other than those implemented. An absent key has the first of them."""
        for key, values in expected.items():
            self._open.discard(key)
            if key in self._values and not any(_same(self._values[key], v) for v in values):
                raise self.error(key, " or ".join(json.dumps(value) for value in values))

    def skip(self, keys: Iterable[str]) -> None:
        """Ticks off keys that change no translation, whatever their values."""
        self._open.difference_update(keys)

    def finish(self) -> None:
        """Refuses, by name, the first key that nobody ticked off."""
        for key in self._values:
            if key in self._open:
                raise InputError(
                    f"{self.file}: {key} is a setting that is not known here. "
                    f"Received: {_shown(self._values[key])}"
                )

    def error(self, key: str, expected: str) -> InputError:
        """The error for a key whose value is not what was expected."""
        received = _shown(self._values[key]) if key in self._values else "none"
        return InputError(f"{self.file}: {key} must be {expected}. Received: {received}")


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; anything else is refused."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8, of very long numbers
        raise InputError(f"{path.name} must be JSON: {error}. Received: {path}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path.name} must be a JSON object. Received: {path}")
    return values


def _same(value: Any, expected: Any) -> bool:
    """Equality in which 1 is not true and 0 is not false."""
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."
