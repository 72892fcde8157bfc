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
from trainers.report_facts import Sample, Translated
from trainers.run import RunDirectory

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


def test_it_holds_all_that_the_run_has(examined, untrained_run, tmp_path):
    path = write_report(untrained_run.path, tmp_path / "page.html", sentences=4)
    text = path.read_text("utf-8")
    assert sections(text) == ["curves", "attention", "translations", "findings", "recipe"]
    data = data_of(text)
    assert {"loss", "bleu", "perplexity", "rate", "gradient"} <= set(data["charts"])
    assert 2 <= len(data["explorer"]["sentences"]) <= 4
    assert "<dt>steps</dt><dd>8</dd>" in text and "BLEU of the first 4 test sentences" in text
    assert html.escape(untrained_run.recipe_path.read_text()) in text
    assert "a &lt;fault&gt;" in text and path.stat().st_size < 6_000_000


def test_it_lies_in_the_run_and_is_written_anew(examined, monkeypatch, untrained_run, tmp_path):
    monkeypatch.setattr(report, "translate_sample", lambda *_: Translated([], None, ""))
    run = RunDirectory(shutil.copytree(untrained_run.path, tmp_path / "run"))
    path = write_report(run.path, sources=["one two", "five"])
    assert path == run.path / "report.html"
    found = [
        each["texts"]["source"]
        for each in data_of(path.read_text("utf-8"))["explorer"]["sentences"]
    ]
    assert found == ["one two", "five"]
    assert write_report(run.path) == path


@pytest.mark.slow
def test_an_imported_run_shows_what_there_is(examined, tmp_path):
    import_marian(CHECKPOINT, tmp_path / "run")
    text = write_report(tmp_path / "run").read_text("utf-8")
    assert sections(text) == ["attention", "translations", "findings", "recipe"]
    assert "<dt>parameters</dt><dd>2.0 M</dd>" in text
    assert "<dt>steps</dt>" not in text and "BLEU" not in text.split("<main>")[0]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("no <sample>. Received: nothing"), "no &lt;sample&gt;. Received: nothing"),
        (ZeroDivisionError("by <0>\nand more"), "the doctor met ZeroDivisionError: by &lt;0&gt;"),
    ],
)
def test_a_run_that_cannot_be_examined_has_a_report(
    monkeypatch, untrained_run, tmp_path, error, said
):
    def fail(run, sentences):
        raise error

    monkeypatch.setattr(report, "examine", fail)
    text = write_report(untrained_run.path, tmp_path / "page.html", sentences=1).read_text("utf-8")
    assert f"could not be examined: {said}</p>" in text


def test_a_run_that_shows_nothing_but_its_recipe_has_a_report(
    examined, monkeypatch, untrained_run, tmp_path
):
    run = RunDirectory(shutil.copytree(untrained_run.path, tmp_path / "run"))
    (run.path / "metrics.jsonl").unlink()
    monkeypatch.setattr(report, "translate_sample", lambda *_: Translated([], None, ""))
    text = write_report(run.path).read_text("utf-8")
    assert sections(text) == ["findings", "recipe"]
    assert "<dt>steps</dt>" not in text and "BLEU" not in text.split("<main>")[0]


def test_faults_come_first_and_what_is_healthy_is_folded_away():
    text = findings_html(FINDINGS)
    assert "1 fault in 3 probes." in text
    assert text.index("a &lt;fault&gt;") < text.index("unknown one") < text.index("healthy one")
    assert text.index("<details>") > text.index("take beam 4")
    assert "Nothing was found wrong in 1 probe." in findings_html(FINDINGS[:1])


@pytest.fixture
def without_work(monkeypatch):
    for name in ("translate_sample", "examine", "attention_maps"):
        monkeypatch.setattr(report, name, None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "--source must be text with words. Received: ''"),
        ("one " * 300, "--source must have at most 40 pieces to be drawn. Received: 300 pieces"),
    ],
)
def test_a_source_that_cannot_be_drawn_is_refused_before_any_work(
    without_work, untrained_run, tmp_path, source, message
):
    with pytest.raises(InputError, match=message):
        write_report(untrained_run.path, tmp_path / "page.html", sources=["one", source])
    assert not list(tmp_path.iterdir())


def test_sentences_too_long_to_be_drawn_are_not_looked_at(untrained_run, tmp_path):
    translator = untrained_run.load_translator()
    texts = [("one", "eins"), ("one " * 129, "eins"), ("two", "eins " * 129), ("", "eins")]
    samples = [Sample(*row, "eins", 50.0) for row in texts]
    assert {sample.source for sample in report._chosen(samples, translator)} == {"one"}


def test_what_is_no_run_no_number_or_no_place_is_refused(without_work, untrained_run, tmp_path):
    with pytest.raises(InputError, match=r"must hold a recipe.yaml. Received: .*none"):
        write_report(tmp_path / "none")
    with pytest.raises(InputError, match="--sentences must be at least 1. Received: 0"):
        write_report(untrained_run.path, sentences=0)
    shutil.copy(untrained_run.recipe_path, tmp_path / "recipe.yaml")
    with pytest.raises(InputError, match="must hold a model.keras"):
        write_report(tmp_path)
    for output in (tmp_path / "no" / "page.html", tmp_path, ".", "/"):
        with pytest.raises(InputError, match="--output must be a file that can be written"):
            write_report(untrained_run.path, output)
