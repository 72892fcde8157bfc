"""The doctor names each planted fault in a real run, and finds nothing in healthy ones."""

import json
import shutil
from pathlib import Path

import planted_faults
import pytest

from keras_transformer.diagnosis.finding import TROUBLES, faults
from keras_transformer.errors import InputError
from trainers.examination import examine
from trainers.imported import import_marian
from trainers.run import RunDirectory
from trainers.trainer import Trainer

MARIAN = Path(__file__).parent.parent / "data" / "marian-en-de-tiny"
SENTENCES = 20
HEALTHY_MODELS = {
    "the paper": {},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned"},
    "window": {"attention_window": 5},
    "chunk": {"attention_chunk": 4},
    "additive": {"compatibility": "additive"},
    "sinusoidal halves": {"positions": "sinusoidal-halves"},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


def finding_of(findings, name):
    (found,) = (finding for finding in findings if finding.name == name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", planted_faults.FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named_and_nothing_else_is(fault, corpus, tmp_path):
    changes = dict(fault.changes)
    if fault.found == "tokenized_text":
        planted_faults.short_recipe(corpus)  # writes the corpus
        changes["data"] = planted_faults.tokenized_references(corpus)
    with fault.plant():
        Trainer(planted_faults.short_recipe(corpus, **changes), tmp_path / "run").train()
        findings = examine(tmp_path / "run", SENTENCES)
    assert faults(findings) == [fault.found], findings
    found = finding_of(findings, fault.found)
    assert fault.detail in found.detail
    assert found.remedy


@pytest.mark.slow
@pytest.mark.parametrize("model", HEALTHY_MODELS.values(), ids=HEALTHY_MODELS.keys())
def test_a_healthy_run_has_no_fault(model, corpus, tmp_path):
    Trainer(planted_faults.short_recipe(corpus, model=model), tmp_path / "run").train()
    findings = examine(tmp_path / "run", SENTENCES)
    assert faults(findings) == [], findings
    measured = {finding.name for finding in findings if finding.ok}
    assert {"learning_rate", "causality", "position_place", "padding_loss"} <= measured


@pytest.mark.slow
def test_an_imported_run_has_no_fault(tmp_path):
    import_marian(MARIAN, tmp_path / "run")
    findings = examine(tmp_path / "run", SENTENCES)
    assert faults(findings) == [], findings
    for name in ("learning_rate", "gradient_norms", "averaging", "attention_memory"):
        assert finding_of(findings, name).ok is None
    for name in ("causality", "attention_scale", "position_place"):
        assert finding_of(findings, name).ok, name


def test_findings_are_json_have_one_line_each_and_come_by_trouble(numbers_run):
    findings = examine(numbers_run.path, SENTENCES)
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names)
    assert {finding.trouble for finding in findings} == set(TROUBLES)
    order = [TROUBLES.index(finding.trouble) for finding in findings]
    assert order == sorted(order)
    for finding in findings:
        assert json.loads(json.dumps(finding.as_dict(), allow_nan=False))["name"] == finding.name
        assert finding.detail and "\n" not in finding.detail
        assert bool(finding.remedy) == (finding.ok is False)


def test_a_run_that_stopped_before_a_checkpoint_is_looked_at_by_its_log(numbers_run, tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    shutil.copy(numbers_run.recipe_path, run.recipe_path)
    lines = [{"step": 1, "loss": 9.0}, {"step": 2, "loss": None, "learning_rate": 0.1}]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    findings = examine(run.path)
    assert finding_of(findings, "loss").detail.endswith("the loss is no number at step 2")
    assert "neither model.keras nor a checkpoint" in finding_of(findings, "finite_numbers").detail


def test_what_is_no_run_or_has_no_model_is_refused(numbers_run, tmp_path):
    with pytest.raises(InputError, match="must hold a recipe.yaml. Received"):
        examine(tmp_path)
    shutil.copy(numbers_run.recipe_path, tmp_path / "recipe.yaml")
    with pytest.raises(InputError, match="must hold a model.keras"):
        examine(tmp_path)
    with pytest.raises(InputError, match="sentences must be at least 1. Received: 0"):
        examine(numbers_run.path, 0)
