"""The rows of the paper's table 3, scaled to any base model: the same ratios to the base."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from keras_transformer.config import (
    TABLE_3,
    TABLE_3_LABEL_SMOOTHING,
    TransformerConfig,
)
from keras_transformer.errors import InputError
from trainers.recipe import Recipe

# What table 3 does not have: the compatibility functions of section 3.2.1, and positions on
# sentences longer than any that was trained on (section 3.5).
COMPATIBILITY, LENGTH = "compatibility", "length"
GROUPS = ("A", "B", "C", "D", "E", COMPATIBILITY, LENGTH)

BASE = "base"

_PAPERS_BASE = TransformerConfig.preset("base", vocabulary_size=37000)
_EXTRA_ROWS = {
    COMPATIBILITY: {
        f"{COMPATIBILITY}-{name}": {"compatibility": name} for name in ("dot_product", "additive")
    },
    LENGTH: {f"{LENGTH}-{name}": {"positions": name} for name in ("sinusoidal", "learned")},
}


class Row(NamedTuple):
    """One row of the table: a model to train and measure.

    - `name`: such as `"A-4-heads"`, with the numbers of the recipe.
    - `group`: one of `GROUPS`, or `"base"`.
    - `paper`: name of the paper's row in `TABLE_3`, `"base"`, or None where it has none.
    - `changes`: what differs from the base's `model` and `training`, by field.
    - `recipe`: `Recipe` of the row.
    """

    name: str
    group: str
    paper: str | None
    changes: dict[str, Any]
    recipe: Recipe


def rows_of(recipe: Recipe, groups: Sequence[str]) -> list[Row]:
    """The rows of table 3 around a recipe's model: the base, and each group's.

    A row has the ratio to the recipe's base that the paper's row has to the paper's: a quarter of
    d_k, a third of the layers. One head stays one head, and dropout and label smoothing are the
    paper's figures.

    Args:
        recipe: `Recipe` of the base.
        groups: some of `GROUPS`.

    Returns:
        The rows, base first, then in the order of `GROUPS`.

    Raises:
        InputError: where a group is unknown, or the recipe cannot have a row: it would have a
            fraction of a head, or would be the same as another.

    Example:

    >>> from trainers.recipe import load_recipe
    >>> rows = rows_of(load_recipe("wmt14-en-de-base.yaml"), ["B"])
    >>> [(row.name, row.changes) for row in rows]
    [('base', {}), ('B-d_k-16', {'d_k': 16}), ('B-d_k-32', {'d_k': 32})]

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762),
          section 6.2
    """
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"A row must be one of {', '.join(GROUPS)}. Received: {group!r}")
    rows = [Row(BASE, BASE, BASE, {}, recipe)]
    for group in GROUPS:
        if group not in groups:
            continue
        if group in _EXTRA_ROWS:
            added = [
                _row(recipe, name, group, None, changes)
                for name, changes in _EXTRA_ROWS[group].items()
            ]
        else:
            added = [
                _row(recipe, _named(paper, changes), group, paper, changes)
                for paper in TABLE_3
                if paper.startswith(f"{group}-")
                for changes in [_scaled(recipe, paper)]
            ]
        # A row of `length` is compared with the other, and is never the base.
        known = [] if group == LENGTH else rows
        for row in added:
            same = next((other for other in known if other.recipe == row.recipe), None)
            if same is not None:
                raise InputError(
                    f"The row {row.paper or row.name} must differ from every other one; with this "
                    f"recipe's model it is the same as {same.name}. Received: "
                    f"{_show(recipe, row.changes)}"
                )
            rows.append(row)
    return rows


def _row(recipe: Recipe, name: str, group: str, paper: str | None, changes: dict[str, Any]) -> Row:
    """The row with its recipe, whose own checks name the row where they fail."""
    model = {key: value for key, value in changes.items() if key != "label_smoothing"}
    training = {key: value for key, value in changes.items() if key == "label_smoothing"}
    try:
        changed = dataclasses.replace(
            recipe,
            model=dataclasses.replace(recipe.model, **model),
            training=dataclasses.replace(recipe.training, **training),
        )
    except InputError as error:
        raise InputError(f"The row {name}: {error}") from None
    return Row(name, group, paper, changes, changed)


def _scaled(recipe: Recipe, paper: str) -> dict[str, Any]:
    """What a row of the paper changes, for the recipe's model."""
    if paper in TABLE_3_LABEL_SMOOTHING:
        return {"label_smoothing": TABLE_3_LABEL_SMOOTHING[paper]}
    papers = TABLE_3[paper]
    if "num_heads" in papers:
        # "keeping the amount of computation constant": h d_k and h d_v stay what they are.
        heads = 1
        if papers["num_heads"] > 1:
            heads = _in_ratio(recipe, paper, "num_heads", papers["num_heads"])
        ratio = Fraction(recipe.model.num_heads, heads)
        widths = {name: _times(recipe, paper, name, ratio) for name in ("d_k", "d_v")}
        return {"num_heads": heads, **widths}
    return {
        name: _in_ratio(recipe, paper, name, value)
        if isinstance(value, int)
        else value  # a rate, or a name
        for name, value in papers.items()
    }


def _in_ratio(recipe: Recipe, paper: str, name: str, value: int) -> int:
    """A field of the recipe's model times the ratio of the paper's row to the paper's base."""
    return _times(recipe, paper, name, Fraction(value, _size(_PAPERS_BASE, name)))


def _times(recipe: Recipe, paper: str, name: str, ratio: Fraction) -> int:
    config = recipe.transformer_config(1000, None if recipe.tokenizer.shared else 1000)
    size = _size(config, name)
    result = size * ratio
    if result.denominator != 1:
        is_derived = getattr(recipe.model, name) is None
        raise InputError(
            f"The row {paper} of the paper has {ratio} of the base's {name}: model.{name}"
            f"{', which is d_model / num_heads where it is null,' if is_derived else ''} must be "
            f"a multiple of {ratio.denominator}. Received: {size}"
        )
    return int(result)


def _size(config: TransformerConfig, name: str) -> int:
    """A field, resolved where it may be None."""
    return {"d_k": config.key_size, "d_v": config.value_size}.get(name) or getattr(config, name)


def _named(paper: str, changes: dict[str, Any]) -> str:
    """The paper's name of the row, with the number that the row has here."""
    value = next(iter(changes.values()))
    if not isinstance(value, int):
        return paper
    name = re.sub(r"(?<=-)\d+(?=-|$)", str(value), paper)
    return re.sub(r"(?<=-1-)(head|layer)s$", r"\1", name)


def _show(recipe: Recipe, changes: dict[str, Any]) -> str:
    sections = {"label_smoothing": "training"}
    return ", ".join(
        f"{sections.get(name, 'model')}.{name}="
        f"{getattr(getattr(recipe, sections.get(name, 'model')), name)!r}"
        for name in changes
    )
