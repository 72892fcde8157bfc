"""Marian checkpoints compute here what Hugging Face computed for the golden files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from marian_files import SHAPES, write_hugging_face, write_release
from marian_searches import check_logits, check_searches, golden_name
from marian_tokenizers import CHECKPOINT, checkpoint_lines

from keras_transformer.marian.checkpoint import read_marian
from keras_transformer.translator import Translator

DATA = Path(__file__).parents[2] / "data"
# Of 44 million parameters.
FAST_SHAPES = [name for name in SHAPES if name != "base"]
SHAPE_NAMES = [pytest.param("base", marks=pytest.mark.slow), *FAST_SHAPES]
# A release has no pad word, and its words are always scaled.
RELEASED = ("released", "released relu")


def read_golden(name: str) -> dict:
    path = DATA / "marian_golden" / golden_name(name)
    golden = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
        return {**golden, "logits": file["logits"]}


@pytest.fixture(scope="module")
def hugging_face_model(tmp_path_factory):
    """Shape name -> its golden file and the model read from the same checkpoint, kept."""
    models: dict[str, tuple] = {}

    def of(name: str):
        if name not in models:
            golden = read_golden(name)
            folder = tmp_path_factory.mktemp("checkpoint")
            write_hugging_face(folder, SHAPES[name], golden["seed"])
            models[name] = (golden, read_marian(folder).build_model())
        return models[name]

    return of


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_logits_equal_hugging_faces(hugging_face_model, name):
    golden, model = hugging_face_model(name)
    check_logits(model, SHAPES[name], golden)


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_searches_equal_hugging_faces(hugging_face_model, name):
    golden, model = hugging_face_model(name)
    check_searches(model, SHAPES[name], golden)


@pytest.mark.parametrize("name", ["swish", "deep decoder"])
def test_tensorflow_weights_equal_hugging_faces(tmp_path, name):
    golden = read_golden(name)
    write_hugging_face(tmp_path, SHAPES[name], golden["seed"], weights_file="tf_model.h5")
    check_logits(read_marian(tmp_path).build_model(), SHAPES[name], golden)


@pytest.mark.parametrize("name", RELEASED)
def test_a_marian_release_equals_hugging_faces_form(tmp_path, name):
    golden = read_golden(name)
    write_release(tmp_path, SHAPES[name], golden["seed"])
    model = read_marian(tmp_path).build_model()
    check_logits(model, SHAPES[name], golden)
    check_searches(model, SHAPES[name], golden)


def test_golden_outputs_are_of_many_lengths():
    # Else the comparison of searches would say little.
    lengths, at_the_limit = set(), 0
    for name in SHAPES:
        for recorded in read_golden(name)["searches"]:
            for rows in recorded["outputs"]:
                lengths.add(len(rows[0]))
                at_the_limit += len(rows[0]) == recorded["max_length"] - 1
    assert len(lengths) > 8
    assert at_the_limit > 20


@pytest.fixture(scope="module")
def fixture_translator():
    checkpoint = read_marian(CHECKPOINT)
    return Translator(checkpoint.build_model(), checkpoint.tokenizer, **checkpoint.decoding)


def test_first_lines_of_the_trained_checkpoint_equal_hugging_faces(fixture_translator):
    sources, expected = checkpoint_lines("source.en")[:24], checkpoint_lines("beam4.de")[:24]
    assert _translations(fixture_translator, sources) == expected


@pytest.mark.slow
def test_all_lines_of_the_trained_checkpoint_equal_hugging_faces(fixture_translator):
    assert _translations(fixture_translator, checkpoint_lines("source.en")) == (
        checkpoint_lines("beam4.de")
    )


def _translations(translator: Translator, sources: list[str]) -> list[str]:
    return [hypotheses[0].text for hypotheses in translator.translate(sources)]
