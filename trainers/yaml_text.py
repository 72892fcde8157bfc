"""YAML as people mean it: `1e-3` is a number, `no` is text, and a key given twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from keras_transformer.errors import InputError

# YAML 1.1, which the yaml package reads, takes `1e-3` for text, the language code `no` for false,
# `12:30` for 750 and `010` for 8. These are the rules of YAML 1.2's core schema instead, with
# `25_000` allowed for an integer. The first pattern that fits a plain scalar decides.
_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
)
_PLAIN_SCALARS = {
    "null": re.compile(r"(~|null|Null|NULL|)$"),
    "bool": re.compile(r"(true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"[-+]?[0-9]+(_[0-9]+)*$"),
    "float": _FLOAT,
}


class _Loader(yaml.SafeLoader):
    """Reads null, booleans, numbers, strings, lists and mappings, and nothing else."""

    yaml_implicit_resolvers: ClassVar[dict] = {}
    yaml_constructors = {
        _TAG + kind: yaml.SafeLoader.yaml_constructors[_TAG + kind]
        for kind in ("null", "bool", "int", "float", "str", "seq", "map")
    } | {None: yaml.SafeLoader.yaml_constructors[None]}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        mapping = super().construct_mapping(node, deep)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return mapping

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that would come back as something else."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # In single quotes the package turns Unicode's own line breaks into spaces.
        style = '"' if set(text) & {"\x85", "\u2028", "\u2029"} else None
        return self.represent_scalar(_TAG + "str", text, style=style)


_Loader.add_constructor(_TAG + "int", _Loader.construct_decimal)
for _kind, _pattern in _PLAIN_SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _kind, _pattern, None)
_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver(_TAG + "float", _FLOAT, None)


def read_yaml(path: str | Path) -> Any:
    """The value of a YAML file.

    Raises:
        InputError: naming the file and, for bad YAML or a key given twice, the line.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} must be a YAML file that can be read. Received: {error.strerror}"
        ) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: bytes | str, where: str) -> Any:
    """The value of a YAML text; `where` names the text in errors.

    Example:

    >>> parse_yaml("{rate: 1e-3, language: no, steps: 100_000}", "here")
    {'rate': 0.001, 'language': 'no', 'steps': 100000}
    """
    try:
        return yaml.load(text, _Loader)
    # Beside the package's own errors, !!int of a word or a very deep nesting raise Python's.
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        if mark is None:
            raise InputError(f"{where} must be valid YAML in UTF-8. Received: {problem}") from None
        lines = (text if isinstance(text, str) else text.decode(errors="replace")).split("\n")
        line = lines[mark.line].strip() if mark.line < len(lines) else "the end of the text"
        raise InputError(
            f"{where}, line {mark.line + 1}: {problem}. Received: {line[:100]}"
        ) from None


def dump_yaml(values: Any) -> str:
    """YAML text that `parse_yaml` reads back to equal values."""
    return yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
