"""Sections of keys: frozen dataclasses that check their keys, types and limits by themselves."""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.errors import InputError

_EXPECTED = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}

_LIMITS = {
    "above": ("above", lambda value, limit: value > limit),
    "at_least": ("at least", lambda value, limit: value >= limit),
    "below": ("below", lambda value, limit: value < limit),
    "at_most": ("at most", lambda value, limit: value <= limit),
}

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120
_short.maxdict = _short.maxlist = 8


def show(value: Any) -> str:
    """A value for "Received: ...": on one line and of bounded length."""
    return "null" if value is None else _short.repr(value)


def key(default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """A key of a section with its limits: `above`, `at_least`, `below`, `at_most`, `choices`.

    With `offer_null=False` errors do not propose null, which is for few recipes only.
    """
    return dataclasses.field(default=default, metadata=limits)


class Section:
    """Base of a section: a frozen dataclass whose keys are checked when it is made.

    Errors start with the key's name, so that whoever knows the section's place can put it before.
    A number without a point is made a float where the key is one, a list a tuple.

    Example:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Oven(Section):
    ...     degrees: float = key(180.0, above=0, at_most=300)
    >>> Oven(200)
    Oven(degrees=200.0)
    >>> Oven(500)
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: degrees must be above 0 and at most 300. Received: 500.0
    """

    def __post_init__(self) -> None:
        kinds = _kinds(type(self))
        for field in dataclasses.fields(self):
            value = _checked(field, *kinds[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)


def build(cls: type, values: Any, path: str = "", root: type | None = None) -> Any:
    """Makes a dataclass of sections, or one section, from nested dicts.

    Args:
        cls: the dataclass.
        values: mapping of its keys, or None for a section with nothing in it.
        path: str. Dotted name of the section, for errors.
        root: the outermost dataclass, whose keys are proposed for an unknown one.

    Raises:
        InputError: naming the dotted key.
    """
    root = root or cls
    if not isinstance(values, Mapping | None):
        raise InputError(
            f"{path or 'a recipe'} must be a section of keys. Received: {show(values)}"
        )
    values = dict(values or {})
    kinds = _kinds(cls)
    for name in values:
        if name not in kinds:
            raise InputError(
                f"{_join(path, name)} is not a key. {_proposal(name, path, list(kinds), root)} "
                f"Received: {show(values[name])}"
            )
    for field in dataclasses.fields(cls):
        kind, optional = kinds[field.name]
        given = values.get(field.name)
        if dataclasses.is_dataclass(kind):
            is_missing = field.name not in values and field.default is dataclasses.MISSING
            if given is not None or not optional or is_missing:
                values[field.name] = build(kind, given, _join(path, field.name), root)
        elif field.name not in values and field.default is dataclasses.MISSING:
            raise InputError(
                f"{_join(path, field.name)} must be given, {_EXPECTED[kind]}. Received: nothing"
            )
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{path}.{error}" if path else str(error)) from None


def _kinds(cls: type) -> dict[str, tuple[Any, bool]]:
    """The type of each key without its `| None`, and whether it had one."""
    kinds = {}
    for name, hint in typing.get_type_hints(cls).items():
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        is_optional = isinstance(hint, types.UnionType)
        kinds[name] = (members[0], True) if is_optional else (hint, False)
    return kinds


def _checked(field: dataclasses.Field, kind: Any, optional: bool, value: Any) -> Any:
    """The value in the key's type, or an InputError that starts with the key's name."""
    if value is None and optional:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= sys.float_info.max else value
    if typing.get_origin(kind) is tuple:
        expected = "a list of strings"
        fits = isinstance(value, list | tuple) and all(isinstance(v, str) and v for v in value)
        value = tuple(value) if fits else value
        fits = fits and value != ()
    else:
        expected = _EXPECTED.get(kind, "a section of keys")
        if choices := field.metadata.get("choices"):
            expected = " or ".join(repr(choice) for choice in choices)
        fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        fits = fits and value != ""
        fits = fits and not (kind is float and not abs(value) <= sys.float_info.max)  # inf, nan
    if not fits:
        expected += " or null" if optional and field.metadata.get("offer_null", True) else ""
        raise InputError(f"{field.name} must be {expected}. Received: {show(value)}")
    _check_limits(field, value)
    return value


def _check_limits(field: dataclasses.Field, value: Any) -> None:
    limits = dict(field.metadata)
    choices = limits.pop("choices", None)
    limits.pop("offer_null", None)
    if choices is not None and value not in choices:
        expected = " or ".join(repr(choice) for choice in choices)
        near = difflib.get_close_matches(value, choices, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{field.name} must be {expected}.{hint} Received: {show(value)}")
    if not all(_LIMITS[limit][1](value, bound) for limit, bound in limits.items()):
        expected = " and ".join(f"{_LIMITS[limit][0]} {bound}" for limit, bound in limits.items())
        raise InputError(f"{field.name} must be {expected}. Received: {show(value)}")


def _join(path: str, name: Any) -> str:
    name = str(name) if str(name).isprintable() else repr(name)
    return f"{path}.{name}" if path else name


def _proposal(name: Any, path: str, names: Sequence[str], root: type) -> str:
    """Names the nearest right key: the same name elsewhere, else a like one, else lists all."""
    elsewhere: dict[str, str] = {}
    for dotted in _dotted_keys(root):
        elsewhere.setdefault(dotted.rsplit(".", 1)[-1], dotted)
    near = difflib.get_close_matches(str(name), names, n=1)
    near_elsewhere = difflib.get_close_matches(str(name), elsewhere, n=1)
    if name in elsewhere:
        return f"Did you mean '{elsewhere[name]}'?"
    if near:
        return f"Did you mean '{_join(path, near[0])}'?"
    if near_elsewhere:
        return f"Did you mean '{elsewhere[near_elsewhere[0]]}'?"
    return f"The keys of {path or 'a recipe'} are {', '.join(names)}."


def _dotted_keys(cls: type, path: str = "") -> Iterator[str]:
    for name, (kind, _) in _kinds(cls).items():
        if dataclasses.is_dataclass(kind):
            yield from _dotted_keys(kind, _join(path, name))
        else:
            yield _join(path, name)
