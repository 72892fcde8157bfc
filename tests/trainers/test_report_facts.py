"""What a report knows of a run: trained here, imported, or moved away from its corpus."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from trainers.imported import import_marian
from trainers.report_facts import (
    ENGLISH,
    Sample,
    best_and_worst,
    steps_and_minutes,
    translate_sample,
    versions,
)
from trainers.run import RunDirectory

CHECKPOINT = Path(__file__).parent.parent / "data" / "marian-en-de-tiny"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    path = tmp_path_factory.mktemp("imported") / "run"
    import_marian(CHECKPOINT, path)
    return RunDirectory(path)


def test_the_test_set_is_translated_and_scored(numbers_run):
    translator = numbers_run.load_translator()
    found = translate_sample(numbers_run.load_recipe(), translator, 5)
    assert found.what == "the first 5 test sentences" and len(found.samples) == 5
    assert found.scores["sentences"] == 5
    for sample in found.samples:
        assert sample.translation == translator.translate([sample.source])[0][0].text
        assert (sample.chrf == 100) == (sample.translation == sample.reference)


def test_the_validation_set_stands_in_for_it(numbers_run):
    recipe = numbers_run.load_recipe()
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, test=None))
    found = translate_sample(recipe, numbers_run.load_translator(), 3)
    assert found.what == "the first 3 validation sentences"


def test_a_run_without_its_corpus_and_an_imported_one_translate_some_english(
    numbers_run, imported, tmp_path
):
    text = numbers_run.recipe_path.read_text()
    moved = RunDirectory(shutil.copytree(numbers_run.path, tmp_path / "run"))
    moved.recipe_path.write_text(text.replace("valid.", "gone."))
    for run in (moved, imported):
        found = translate_sample(run.load_recipe(), run.load_translator(), 5)
        assert [sample.source for sample in found.samples] == list(ENGLISH)
        assert found.scores is None and found.samples[0].reference is None


def test_nothing_is_translated_where_the_language_is_another_or_unknown(imported):
    recipe = imported.load_recipe()
    for language in ("fr", None):
        data = dataclasses.replace(recipe.data, source_language=language)
        found = translate_sample(
            dataclasses.replace(recipe, data=data), imported.load_translator(), 5
        )
        assert found.samples == []


def test_the_best_and_the_worst_do_not_overlap():
    def sample(source, chrf):
        return Sample(source, "", "", chrf)

    samples = [sample(str(number), float(number)) for number in range(20)]
    best, worst = best_and_worst([*samples, samples[0]], 3)
    assert [each.chrf for each in best] == [19, 18, 17]
    assert [each.chrf for each in worst] == [0, 1, 2]
    assert best_and_worst([sample("short", 100.0), sample("a longer one", 100.0)], 1)[0] == [
        sample("a longer one", 100.0)
    ]
    few_best, few_worst = best_and_worst(samples[:3], 5)
    assert (len(few_best), len(few_worst)) == (2, 1)
    assert best_and_worst([Sample("a", "b", None, None)]) == ([], [])


def test_steps_and_minutes_are_those_of_the_run(finished_run, imported, numbers_run):
    steps, minutes = steps_and_minutes(finished_run)
    assert steps == 8 and 0 < minutes < 5
    assert steps_and_minutes(imported) == (None, None)
    assert steps_and_minutes(numbers_run) == (300, None)


def test_versions_name_what_the_results_depend_on():
    names = dict(versions())
    assert {"keras_transformer", "python", "tensorflow", "keras", "tensorflow-text"} <= set(names)
    assert "sacrebleu" in names and "not installed" not in names.values()
