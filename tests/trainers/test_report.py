"""The report of a run: what is on the page, and what is left out."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from keras_transformer.diagnosis.finding import Finding
from keras_transformer.errors import InputError
from trainers import report
from trainers.imported import import_marian
from trainers.report import findings_html, write_report

CHECKPOINT = Path(__file__).parent.parent / "data" / "marian-en-de-tiny"
FINDINGS = [
    Finding("healthy one", "order", True, {}, "at most 1", "0.5"),
    Finding("a <fault>", "bleu", False, {"beam": 1}, "at least 2", "beam 1", "take beam 4"),
    Finding("unknown one", "memory", None, {}, "half", "no lengths"),
]


@pytest.fixture
def examined(monkeypatch):
    """The doctor is slow, and has tests of its own."""
    monkeypatch.setattr(report, "examine", lambda run, sentences: FINDINGS)


def sections(text):
    return re.findall(r"<section id='(\w+)'>", text)


def data_of(text):
    (found,) = re.findall(r"id='page-data'>(.*?)</script>", text)
    return json.loads(found)


def test_it_holds_all_that_the_run_has(examined, finished_run, tmp_path):
    path = write_report(finished_run.path, tmp_path / "page.html", sentences=6)
    text = path.read_text("utf-8")
    assert sections(text) == ["curves", "attention", "translations", "findings", "recipe"]
    data = data_of(text)
    assert {"loss", "bleu", "perplexity", "rate", "gradient"} <= set(data["charts"])
    assert 4 <= len(data["explorer"]["sentences"]) <= 8
    assert "<dt>steps</dt><dd>8</dd>" in text and "BLEU of the first 6 test sentences" in text
    assert html.escape(finished_run.recipe_path.read_text()) in text
    assert "a &lt;fault&gt;" in text and path.stat().st_size < 6_000_000


def test_it_lies_in_the_run_and_is_written_anew(examined, copied_run):
    path = write_report(copied_run.path, sentences=2, sources=["one two", "", "five"])
    assert path == copied_run.path / "report.html"
    found = [
        each["texts"]["source"]
        for each in data_of(path.read_text("utf-8"))["explorer"]["sentences"]
    ]
    assert found[:2] == ["one two", "five"]
    assert write_report(copied_run.path, sentences=1) == path


def test_an_imported_run_shows_what_there_is(examined, tmp_path):
    import_marian(CHECKPOINT, tmp_path / "run")
    text = write_report(tmp_path / "run").read_text("utf-8")
    assert sections(text) == ["attention", "translations", "findings", "recipe"]
    assert "<dt>parameters</dt><dd>2.0 M</dd>" in text
    assert "<dt>steps</dt>" not in text and "BLEU" not in text.split("<main>")[0]


def test_a_run_that_cannot_be_examined_has_a_report(monkeypatch, finished_run, tmp_path):
    def refuse(run, sentences):
        raise InputError("no <sample>. Received: nothing")

    monkeypatch.setattr(report, "examine", refuse)
    text = write_report(finished_run.path, tmp_path / "page.html", sentences=1).read_text("utf-8")
    assert "could not be examined: no &lt;sample&gt;. Received: nothing" in text


def test_faults_come_first_and_what_is_healthy_is_folded_away():
    text = findings_html(FINDINGS)
    assert "1 fault in 3 probes." in text
    assert text.index("a &lt;fault&gt;") < text.index("unknown one") < text.index("healthy one")
    assert text.index("<details>") > text.index("take beam 4")
    assert "Nothing was found wrong in 1 probe." in findings_html(FINDINGS[:1])


def test_what_is_no_run_no_number_or_no_place_is_refused(examined, finished_run, tmp_path):
    with pytest.raises(InputError, match=r"must hold a recipe.yaml. Received: .*none"):
        write_report(tmp_path / "none")
    with pytest.raises(InputError, match="--sentences must be at least 1. Received: 0"):
        write_report(finished_run.path, sentences=0)
    shutil.copy(finished_run.recipe_path, tmp_path / "recipe.yaml")
    with pytest.raises(InputError, match="must hold a model.keras"):
        write_report(tmp_path)
    with pytest.raises(InputError, match="--output must be a file that can be written"):
        write_report(finished_run.path, tmp_path / "no" / "page.html", sentences=1)
