"""The file of an ablation's figures: what it keeps, and which lines are refused."""

from __future__ import annotations

import json
import math

import pytest

from keras_transformer import InputError
from trainers.ablation_results import AblationResults, not_finite

FIGURES = {
    "perplexity": 9.0,
    "bleu": 4.0,
    "bleu_signature": "tok:13a",
    "pairs": 12,
    "parameters": 100,
}


def test_what_is_added_is_there_again(tmp_path):
    path = tmp_path / "results.jsonl"
    results = AblationResults(path, {"a.en": "12"})
    parts = {"within": FIGURES, "longer": FIGURES}
    lines = [
        ("base", FIGURES),
        ("A-1-head", {"diverged": "nan"}),
        ("length-learned", FIGURES | parts),
    ]
    for row, figures in lines:
        results.add(row, 1, {**figures, "seconds": 1.5})
    # A crash has cut the last line short.
    path.write_bytes(path.read_bytes() + b'{"row": "E-l')
    again = AblationResults(path, {"a.en": "12"})
    for row, figures in lines:
        expected = {"row": row, "seed": 1, **figures, "seconds": 1.5, "corpus": {"a.en": "12"}}
        assert results.get(row, 1) == again.get(row, 1) == expected
    assert again.get("base", 2) is None and path.read_bytes().endswith(b"}\n")


def result_line(**changes) -> str:
    return json.dumps({"row": "base", "seed": 1, **FIGURES, "corpus": {}} | changes)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1]",
        "[" * 100_000,
        '{"row": "base", "seed": 1}',
        '{"row": "base", "seed": 1, "corpus": {}}',
        result_line(row=["a"]),
        result_line(seed="1"),
        result_line(corpus=None),
        result_line(perplexity=math.inf),
        result_line(perplexity=0.0),
        result_line(bleu=math.nan),
        result_line(bleu=10**400),
        result_line(bleu_signature=None),
        result_line(parameters=1.5),
        result_line(diverged=True),
        result_line(row="length-learned"),
        result_line(row="length-learned", within=FIGURES, longer={"pairs": 1}),
    ],
)
def test_a_damaged_line_is_named(tmp_path, text):
    path = tmp_path / "results.jsonl"
    path.write_text(f"{result_line()}\n{text}\n")
    with pytest.raises(InputError, match=r"results.jsonl:2 must be a JSON object.* Received") as e:
        AblationResults(path, {})
    assert "\n" not in str(e.value)


def test_what_is_not_finite_of_a_part_is_named():
    parts = {"within": FIGURES, "longer": FIGURES | {"perplexity": math.nan}}
    assert not_finite(FIGURES | parts) == "perplexity of test-longer is nan"
    assert not_finite(FIGURES | {"within": FIGURES, "longer": FIGURES}) is None
