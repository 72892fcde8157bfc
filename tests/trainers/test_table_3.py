"""The rows of table 3: the paper's for the paper's base, and the same ratios for any other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import InputError, TransformerConfig
from keras_transformer.config import TABLE_3, TABLE_3_LABEL_SMOOTHING
from trainers.ablation_table import PAPERS_FIGURES
from trainers.recipe import Recipe, load_recipe
from trainers.table_3 import BASE, GROUPS, rows_of

PAPERS_GROUPS = ("A", "B", "C", "D", "E")
PAPERS_RECIPE = "wmt14-en-de-base.yaml"
SMALL = "ablation-en-de-small.yaml"


def changed(recipe: Recipe, **model) -> Recipe:
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, **model))


def test_the_papers_base_has_the_papers_rows():
    recipe = load_recipe(PAPERS_RECIPE)
    base, *rows = rows_of(recipe, PAPERS_GROUPS)
    assert base.recipe == recipe and base.name == BASE
    assert [row.name for row in rows] == list(TABLE_3)
    for row in rows:
        config = row.recipe.transformer_config(37000)
        assert config == TransformerConfig.preset(row.name, vocabulary_size=37000)
        smoothing = TABLE_3_LABEL_SMOOTHING.get(row.name, recipe.training.label_smoothing)
        assert row.recipe.training == dataclasses.replace(
            recipe.training, label_smoothing=smoothing
        )
        assert (row.recipe.data, row.recipe.tokenizer) == (recipe.data, recipe.tokenizer)


def test_the_papers_figures_are_of_its_rows():
    assert list(PAPERS_FIGURES) == [BASE, *TABLE_3]


@settings(deadline=None, max_examples=20)
@given(
    heads=st.sampled_from([4, 8, 12]),
    layers=st.integers(1, 4).map(lambda number: 3 * number),
    key_size=st.integers(1, 4).map(lambda number: 4 * number),
    d_ff=st.integers(1, 50).map(lambda number: 2 * number),
)
def test_any_base_keeps_the_papers_ratios(heads, layers, key_size, d_ff):
    recipe = changed(
        load_recipe(SMALL),
        num_heads=heads,
        d_model=heads * key_size,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        d_ff=d_ff,
    )
    for row in rows_of(recipe, PAPERS_GROUPS)[1:]:
        paper = TransformerConfig.preset(row.paper, vocabulary_size=1000)
        model, base = row.recipe.transformer_config(1000), recipe.transformer_config(1000)
        papers_base = TransformerConfig.preset("base", vocabulary_size=1000)
        if row.group == "A":
            assert model.num_heads * model.key_size == model.num_heads * model.value_size
            assert model.num_heads * model.key_size == base.d_model
            if paper.num_heads > 1:
                assert model.num_heads * papers_base.num_heads == base.num_heads * paper.num_heads
            else:
                assert model.num_heads == 1
            continue
        for name in ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "key_size"):
            ratio = getattr(paper, name) / getattr(papers_base, name)
            assert getattr(model, name) == getattr(base, name) * ratio, (row.name, name)
        assert (model.dropout, model.positions) == (paper.dropout, paper.positions)


def test_names_have_the_numbers_of_the_recipe():
    names = [row.name for row in rows_of(load_recipe(SMALL), ["A", "B", "C"])]
    assert names == [
        "base",
        *("A-1-head", "A-4-heads", "A-16-heads", "A-32-heads"),
        *("B-d_k-2", "B-d_k-4"),
        *("C-1-layer", "C-2-layers", "C-4-layers"),
        *("C-d_model-32", "C-d_model-128", "C-d_ff-128", "C-d_ff-512"),
    ]


def test_rows_beyond_the_papers():
    rows = rows_of(load_recipe(SMALL), ["length", "compatibility"])[1:]
    assert [(row.group, row.paper, row.changes) for row in rows] == [
        ("compatibility", None, {"compatibility": "dot_product"}),
        ("compatibility", None, {"compatibility": "additive"}),
        ("length", None, {"positions": "sinusoidal"}),
        ("length", None, {"positions": "learned"}),
    ]
    for row in rows:
        assert row.recipe == changed(load_recipe(SMALL), **row.changes)


@pytest.mark.parametrize(
    ("model", "groups", "message"),
    [
        ({"num_heads": 1}, "A", "A-4-heads.*1/2 .*model.num_heads must be a multiple of 2.* 1$"),
        ({"num_heads": 2}, "A", "A-4-heads must differ .* same as A-1-head.*model.num_heads=2"),
        ({"num_encoder_layers": 2}, "C", "C-2-layers.*num_encoder_layers must be a multiple of 3"),
        ({"num_heads": 32}, "B", "B-d_k-16.*d_k, which is d_model / num_heads.*multiple of 4.* 2$"),
        ({"d_k": 6}, "B", "B-d_k-16.*: model.d_k must be a multiple of 4. Received: 6$"),
        ({"d_ff": 33}, "C", "C-d_ff-1024.*model.d_ff must be a multiple of 2. Received: 33$"),
        ({"dropout": 0.2}, "D", "D-dropout-0.2 must differ .*base. Received: model.dropout=0.2$"),
        ({"positions": "learned"}, "E", "E-learned-positions must differ.*same as base"),
        ({"maximum_positions": 100}, "E", "E-learned-positions: model.maximum_positions must be"),
        ({"compatibility": "additive"}, "compatibility", "compatibility-additive must differ"),
        ({}, "F", "must be one of A, B, C, D, E, compatibility, length. Received: 'F'$"),
    ],
)
def test_a_row_that_cannot_be_is_named(model, groups, message):
    recipe = changed(load_recipe(SMALL), **model)
    with pytest.raises(InputError, match=message) as error:
        rows_of(recipe, [groups])
    assert "\n" not in str(error.value) and "Received: " in str(error.value)


def test_the_shipped_recipe_has_all_rows_and_ends_by_steps():
    recipe = load_recipe(SMALL)
    assert len(rows_of(recipe, GROUPS)) == 1 + len(TABLE_3) + 4
    assert recipe.training.minutes is None and recipe.training.steps is not None
