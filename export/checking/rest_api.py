"""The gates on what TensorFlow Serving's REST API reads and writes: rows and columns of JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from export.checking.contract import SIGNATURES
from export.checking.examined import (
    ExaminedExport,
    GateFailed,
    Outputs,
    Row,
    Tolerance,
    equal,
    first_dimension,
)


def rest_rows(export: ExaminedExport) -> str:
    """Requests and answers of the REST API in its row format are legal JSON and lose nothing."""
    return _rest(export, _instances, _predictions)


def rest_columns(export: ExaminedExport) -> str:
    """The same in its columnar format."""
    return _rest(export, _input_columns, _output_columns)


def _rest(
    export: ExaminedExport,
    write_requests: Callable[[str, list[Row]], Iterator[dict[str, Any]]],
    write_answer: Callable[[Outputs], dict[str, Any]],
) -> str:
    count = 0
    for signature in export.signatures:
        rows = export.rows(signature)
        outputs = export.run(signature, rows)
        first_dimension(outputs, len(rows), f"{signature}: inconsistent batch size")
        expected = _values(write_answer(outputs), _text)
        for request in write_requests(signature, rows):
            read = _read_request(json.loads(json.dumps(request)), SIGNATURES[signature].inputs)
            answer = write_answer(export.run(signature, read))
            found = _read_json(_written(answer), signature)
            if not _alike(found, expected, export.tolerance):
                raise GateFailed(f"{signature}: what was read back is not what was written")
            count += 1
    return f"{count} requests for {', '.join(export.signatures)}, read back equal"


def _instances(signature: str, rows: list[Row]) -> Iterator[dict[str, Any]]:
    names = SIGNATURES[signature].inputs
    for encode in (_text, _base64):
        instances = [
            {name: encode(value) for name, value in zip(names, row, strict=True)} for row in rows
        ]
        yield {"signature_name": signature, "instances": instances}
        if len(names) == 1:  # then the server takes bare values, too
            yield {
                "signature_name": signature,
                "instances": [instance[names[0]] for instance in instances],
            }


def _input_columns(signature: str, rows: list[Row]) -> Iterator[dict[str, Any]]:
    names = SIGNATURES[signature].inputs
    for encode in (_text, _base64):
        columns = {
            name: [encode(value) for value in column]
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
        yield {"signature_name": signature, "inputs": columns}
        if len(names) == 1:
            yield {"signature_name": signature, "inputs": columns[names[0]]}


def _read_request(request: dict[str, Any], names: tuple[str, ...]) -> list[Row]:
    """The rows of a request, as the server reads them: all inputs, no others, `b64` decoded."""
    if "instances" in request:
        return [
            tuple(_decoded(instance[name]) for name in names)
            if isinstance(instance, dict) and set(instance) == set(names)
            else (_decoded(instance),)
            for instance in request["instances"]
        ]
    columns = request["inputs"]
    if not isinstance(columns, dict):
        columns = {names[0]: columns}
    return [
        tuple(map(_decoded, row)) for row in zip(*(columns[name] for name in names), strict=True)
    ]


def _predictions(outputs: Outputs) -> dict[str, Any]:
    rows = [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
    if len(outputs) == 1:
        return {"predictions": [next(iter(row.values())) for row in rows]}
    return {"predictions": rows}


def _output_columns(outputs: Outputs) -> dict[str, Any]:
    return {"outputs": next(iter(outputs.values())) if len(outputs) == 1 else outputs}


def _values(value: Any, encode: Callable[[bytes], Any]) -> Any:
    """Arrays as lists of what JSON knows."""
    if isinstance(value, dict):
        return {name: _values(each, encode) for name, each in value.items()}
    if isinstance(value, list | np.ndarray):
        return [_values(each, encode) for each in value]
    if isinstance(value, bytes):
        return encode(value)
    return value.item() if isinstance(value, np.generic) else value


def _written(answer: dict[str, Any]) -> bytes:
    """An answer as the server writes it: texts byte by byte, NaN and infinity as bare words."""
    text = json.dumps(_values(answer, _text), ensure_ascii=False)
    return text.encode(errors="surrogateescape")


def _read_json(body: bytes, signature: str) -> Any:
    """JSON as its standard has it."""
    try:
        return json.loads(body.decode(), parse_constant=_refuse)
    except ValueError as error:
        raise GateFailed(f"{signature}: the answer is no legal JSON: {error}") from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _alike(one: Any, other: Any, tolerance: Tolerance) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _alike(value, other[name], tolerance) for name, value in one.items()
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(
            _alike(*pair, tolerance) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, float):
        return equal(one, other, tolerance)
    return type(one) is type(other) and one == other


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="surrogateescape")


def _base64(value: str | bytes) -> dict[str, str]:
    value = value.encode() if isinstance(value, str) else value
    return {"b64": base64.b64encode(value).decode()}


def _decoded(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(value["b64"], validate=True)
    return value.encode()
