"""The table from given figures: means, spreads, directions, and what it looks like."""

from __future__ import annotations

import json
import math

import pytest

from trainers.ablation_table import ONE_SEED, direction, render, summarize
from trainers.recipe import load_recipe
from trainers.table_3 import rows_of

RECIPE = load_recipe("ablation-en-de-small.yaml")
SIGNATURE = "nrefs:1|tok:13a"
SEEDS = (1, 2)


def line(row, seed, perplexity, bleu, **others):
    figures = {"perplexity": perplexity, "bleu": bleu, "bleu_signature": SIGNATURE, "pairs": 10}
    return {"row": row, "seed": seed, "parameters": 1000, **figures, **others}


def lines_of(*rows):
    return [
        line(row, seed, perplexity, bleu)
        for row, figures in rows
        for seed, (perplexity, bleu) in enumerate(figures, 1)
    ]


BASE_LINES = lines_of(("base", [(10.0, 20.0), (10.2, 21.0)]))


def by_name(result):
    return {row["row"]: row for row in result["rows"]}


@pytest.mark.parametrize(
    ("ours", "papers", "spread", "expected"),
    [
        (1.0, 0.4, 0.5, "agrees"),
        (-1.0, -0.4, 0.5, "agrees"),
        (1.0, -0.4, 0.5, "disagrees"),
        (0.5, -0.4, 0.5, "within the spread"),
        (-0.5, -0.4, 0.5, "within the spread"),
        (0.1, 0.4, None, "one seed"),
        (0.0, 0.0, None, "one seed"),
        (0.1, 0.4, 0.0, "agrees"),
        (0.0, 0.4, 0.0, "within the spread"),
        (0.3, 0.0, 0.5, "agrees"),
        (0.7, 0.0, 0.5, "disagrees"),
    ],
)
def test_directions(ours, papers, spread, expected):
    assert direction(ours, papers, spread) == expected


def test_means_differences_and_spread_of_all_rows_together():
    lines = BASE_LINES + lines_of(
        ("C-1-layer", [(14.0, 15.0), (14.0, 15.5)]), ("C-2-layers", [(10.1, 20.4), (10.3, 20.4)])
    )
    result = summarize(rows_of(RECIPE, ["C"]), SEEDS, lines, None)
    rows = by_name(result)
    assert list(rows) == ["base", "C-1-layer", "C-2-layers"] and not result["finished"]
    bleu = rows["C-1-layer"]["bleu"]
    assert bleu["mean"] == 15.25 and bleu["difference"] == pytest.approx(-5.25)
    assert bleu["deviation"] == pytest.approx(0.5 / math.sqrt(2))
    # Variances 0.5, 0.125 and 0, one degree of freedom each: the median, or a row's own.
    typical = math.sqrt(0.125 / (7 / 9) ** 3)
    assert bleu["spread"] == pytest.approx(2 * math.sqrt((0.5 + typical**2) / 2))
    assert (bleu["paper"], bleu["paper_difference"]) == (23.7, -2.1)
    assert bleu["direction"] == "agrees"
    assert rows["C-2-layers"]["bleu"]["direction"] == "within the spread"
    perplexity = rows["C-1-layer"]["perplexity"]
    assert perplexity["difference"] == pytest.approx(3.9)
    typical = math.log(10.3 / 10.1) / math.sqrt(2) / (7 / 9) ** 1.5
    assert perplexity["spread"] == pytest.approx(math.exp(2 * typical), rel=1e-4)
    assert perplexity["direction"] == "agrees"
    assert rows["base"]["bleu"]["difference"] is rows["base"]["bleu"]["direction"] is None
    assert rows["C-1-layer"]["changes"] == {"num_encoder_layers": 1, "num_decoder_layers": 1}
    assert rows["C-1-layer"]["paper_parameters_millions"] == 36
    json.dumps(result)


def test_one_seed_has_no_spread_and_no_direction():
    lines = [line("base", 1, 10.0, 20.0), line("E-learned-positions", 1, 10.5, 20.2)]
    result = summarize(rows_of(RECIPE, ["E"]), [1], lines, None)
    row = by_name(result)["E-learned-positions"]
    assert row["bleu"]["spread"] is row["bleu"]["deviation"] is None
    assert row["perplexity"]["direction"] == row["bleu"]["direction"] == ONE_SEED
    assert row["paper_parameters_millions"] == 65  # as base, where the table prints none
    table = render(result).split("\n\n")[0]
    assert result["finished"] and "±" not in table
    assert table.split("\n")[-1].count("one seed") == 2 and "agrees" not in table


def test_all_rows_with_all_seeds_are_the_end():
    rows = rows_of(RECIPE, ["E"])
    lines = [line(row.name, seed, 10.0, 20.0) for seed in (1, 2) for row in rows]
    finished = [summarize(rows, [1, 2], lines[:n], None)["finished"] for n in range(5)]
    assert finished == [False, False, False, False, True]


def test_rows_of_other_seeds_and_without_a_base_have_no_direction():
    result = summarize(
        rows_of(RECIPE, ["E"]), [1], [line("E-learned-positions", 1, 9.0, 2.0)], None
    )
    (row,) = result["rows"]
    assert row["bleu"]["mean"] == 2.0 and row["bleu"]["direction"] is None
    assert not result["finished"]


def test_a_row_that_the_paper_has_not_has_no_direction():
    lines = BASE_LINES + lines_of(("compatibility-additive", [(9.0, 23.0), (9.0, 23.0)]))
    row = by_name(summarize(rows_of(RECIPE, ["compatibility"]), SEEDS, lines, None))[
        "compatibility-additive"
    ]
    assert row["bleu"]["difference"] == 2.5
    assert row["bleu"]["paper"] is row["bleu"]["direction"] is None
    assert row["paper_row"] is row["paper_parameters_millions"] is None


def test_diverged_seeds_are_told_and_do_not_count():
    lines = [
        *BASE_LINES,
        line("compatibility-dot_product", 1, 12.0, 11.0),
        {"row": "compatibility-dot_product", "seed": 2, "diverged": "The loss became nan"},
        {"row": "compatibility-additive", "seed": 1, "diverged": "The loss became nan"},
    ]
    result = summarize(rows_of(RECIPE, ["compatibility"]), SEEDS, lines, None)
    rows = by_name(result)
    assert rows["compatibility-dot_product"]["diverged"] == [2]
    assert rows["compatibility-dot_product"]["bleu"]["mean"] == 11.0
    assert rows["compatibility-additive"]["bleu"]["mean"] is None
    text = render(result)
    assert "12.00 (+1.90), 1 diverged" in text and "none, 1 diverged" in text


def test_lengths_stand_in_a_table_of_their_own():
    def length_line(row, seed, within, longer):
        parts = {
            name: {"perplexity": figures[0], "bleu": figures[1], "pairs": pairs}
            for name, figures, pairs in (("within", within, 7), ("longer", longer, 3))
        }
        return line(row, seed, 10.0, 20.0, **parts)

    lines = [
        *BASE_LINES,
        length_line("length-sinusoidal", 1, (8.0, 20.0), (15.0, 10.0)),
        length_line("length-sinusoidal", 2, (9.0, 21.0), (16.0, 11.0)),
        length_line("length-learned", 1, (8.5, 20.0), (90.0, 2.0)),
        length_line("length-learned", 2, (8.5, 20.0), (90.0, 2.0)),
    ]
    result = summarize(rows_of(RECIPE, ["length"]), SEEDS, lines, 12)
    assert list(by_name(result)) == ["base"] and result["finished"]
    assert [row["row"] for row in result["length"]] == ["length-sinusoidal", "length-learned"]
    assert result["length"][0]["longer"]["bleu"]["mean"] == 10.5
    text = render(result)
    assert "at most 12 tokens" in text
    (row,) = [each for each in text.split("\n") if each.startswith("length-learned")]
    assert row.split() == [
        "length-learned",
        *("7", "8.50", "±", "0.00", "20.0", "±", "0.0"),
        *("3", "90.00", "±", "0.00", "2.0", "±", "0.0"),
    ]


def test_the_table_stands_beside_the_papers_in_text_and_markdown():
    lines = BASE_LINES + lines_of(("C-1-layer", [(14.0, 15.0), (14.2, 15.5)]))
    result = summarize(rows_of(RECIPE, ["C"]), SEEDS, lines, None)
    text, markdown = render(result), render(result, markdown=True)
    for table in (text, markdown):
        row = next(each for each in table.split("\n") if "C-1-layer" in each)
        cells = ("14.10 ± 0.14 (+4.00)", "6.11 (+1.19)", "15.2 ± 0.4 (-5.2)", "23.7 (-2.1)")
        for cell in (*cells, "1,000", "36 M"):
            assert cell in row
        assert row.count("agrees") == 2 and SIGNATURE in table
    rows = markdown.split("\n\n")[0].split("\n")
    assert {row.count("|") for row in rows} == {10}
    assert set(rows[1]) <= set("| -")
