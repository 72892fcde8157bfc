"""Our table 3 beside the paper's: means, spreads, differences, and whether directions agree."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from trainers.table_3 import BASE, LENGTH, Row

# Table 3 of Vaswani et al., 2017, on newstest2013, English to German: perplexity by subword, BLEU,
# and millions of parameters where the table prints them ("unlisted values are identical to those
# of the base model").
PAPERS_FIGURES: dict[str, tuple[float, float, int | None]] = {
    "base": (4.92, 25.8, 65),
    "A-1-head": (5.29, 24.9, None),
    "A-4-heads": (5.00, 25.5, None),
    "A-16-heads": (4.91, 25.8, None),
    "A-32-heads": (5.01, 25.4, None),
    "B-d_k-16": (5.16, 25.1, 58),
    "B-d_k-32": (5.01, 25.4, 60),
    "C-2-layers": (6.11, 23.7, 36),
    "C-4-layers": (5.19, 25.3, 50),
    "C-8-layers": (4.88, 25.5, 80),
    "C-d_model-256": (5.75, 24.5, 28),
    "C-d_model-1024": (4.66, 26.0, 168),
    "C-d_ff-1024": (5.12, 25.4, 53),
    "C-d_ff-4096": (4.75, 26.2, 90),
    "D-dropout-0.0": (5.77, 24.6, None),
    "D-dropout-0.2": (4.95, 25.5, None),
    "D-label_smoothing-0.0": (4.67, 25.3, None),
    "D-label_smoothing-0.2": (5.47, 25.7, None),
    "E-learned-positions": (4.92, 25.7, None),
}

AGREES, DISAGREES, WITHIN = "agrees", "disagrees", "within the spread"
# The seeds' chance is not known, so no difference can be told from it.
ONE_SEED = "one seed"

# Seeds move a perplexity in proportion to it, and BLEU by points.
_SCALES: dict[str, Callable[[float], float]] = {"perplexity": math.log, "bleu": float}

# A difference counts from this many of its standard errors on: one in twenty does by chance.
_STANDARD_ERRORS = 2


def direction(ours: float, papers: float, spread: float | None) -> str:
    """Whether our difference from the base has the sign of the paper's.

    Args:
        ours: difference of our row from our base.
        papers: that of the paper's. Where it is 0, our row agrees if it differs by no more than
            the spread.
        spread: what a difference must exceed to be told from the seeds' chance. None where no row
            has a second seed.

    Returns:
        `"agrees"`, `"disagrees"`, `"within the spread"` or `"one seed"`.

    Example:

    >>> direction(-2.0, -0.9, 0.5), direction(2.0, -0.9, 0.5), direction(-0.1, -0.9, 0.5)
    ('agrees', 'disagrees', 'within the spread')
    """
    if spread is None:
        return ONE_SEED
    is_within = abs(ours) <= spread
    if papers == 0:
        return AGREES if is_within else DISAGREES
    if is_within:
        return WITHIN
    return AGREES if (ours > 0) == (papers > 0) else DISAGREES


def summarize(
    rows: Sequence[Row], seeds: Sequence[int], lines: Sequence[dict[str, Any]], limit: int | None
) -> dict:
    """The table, from the figures of all rows and seeds.

    Args:
        rows: all `Row`s, the base first.
        seeds: the seeds that each of them is to be trained with.
        lines: the lines of `results.jsonl`, of these rows.
        limit: int or None. Most tokens that the rows of `length` were trained on.

    Returns:
        A JSON-able dict. `rows`: for each measured row its `row`, `paper_row`, `changes`, `seeds`,
        `diverged` seeds, `parameters`, and under `perplexity` and `bleu` each a dict of `mean`,
        `deviation` (standard deviation of the seeds), `difference` from base, `spread` (two
        standard errors of a difference, by the median row's seeds or its own; of the perplexity
        as a factor), `paper`, `paper_difference` and `direction`. `length`: for its two rows the
        same on the pairs `within` the limit and `longer`. `bleu_signature`. `finished`: whether
        all rows have a line of each seed.
    """
    by_row = {
        row.name: [line for line in lines if line["row"] == row.name and "diverged" not in line]
        for row in rows
    }
    table = [row for row in rows if row.group != LENGTH]
    seeds_of = {
        figure: _typical_deviation(
            [[line[figure] for line in by_row[row.name]] for row in table], _SCALES[figure]
        )
        for figure in _SCALES
    }
    result: dict[str, Any] = {
        "rows": [],
        "length": [],
        "length_limit": limit,
        "bleu_signature": next(
            (each[0]["bleu_signature"] for each in by_row.values() if each), None
        ),
    }
    for row in table:
        seeds_done = [line["seed"] for line in lines if line["row"] == row.name]
        if not seeds_done:
            continue
        measured, base = by_row[row.name], by_row[BASE]
        result["rows"].append(
            {
                "row": row.name,
                "group": row.group,
                "paper_row": row.paper,
                "changes": row.changes,
                "seeds": seeds_done,
                "diverged": [s for s in seeds_done if s not in {each["seed"] for each in measured}],
                "parameters": measured[0]["parameters"] if measured else None,
                "paper_parameters_millions": _papers(row, 2),
                **{
                    figure: _figure(row, measured, base, figure, column, seeds_of[figure])
                    for column, figure in enumerate(_SCALES)
                },
            }
        )
    for row in rows:
        if row.group == LENGTH and by_row[row.name]:
            parts = {
                part: {
                    **{
                        figure: _mean([line[part][figure] for line in by_row[row.name]])
                        for figure in _SCALES
                    },
                    "pairs": by_row[row.name][0][part]["pairs"],
                }
                for part in ("within", "longer")
            }
            seeds_done = [line["seed"] for line in by_row[row.name]]
            result["length"].append({"row": row.name, "seeds": seeds_done, **parts})
    done = {(line["row"], line["seed"]) for line in lines}
    result["finished"] = done >= {(row.name, seed) for row in rows for seed in seeds}
    return result


def render(result: dict[str, Any], markdown: bool = False) -> str:
    """The table for a terminal, or in Markdown.

    Args:
        result: as of `summarize`.
        markdown: bool.
    """
    header = ["row", "perplexity", "paper", "direction", "BLEU", "paper", "direction"]
    header += ["parameters", "paper"]
    cells = []
    for row in result["rows"]:
        line = [row["row"]]
        for figure, digits in (("perplexity", 2), ("bleu", 1)):
            line += _shown(row[figure], digits, row["diverged"])
        parameters, papers = row["parameters"], row["paper_parameters_millions"]
        line += ["" if parameters is None else f"{parameters:,}", f"{papers} M" if papers else ""]
        cells.append(line)
    parts = [_frame(header, cells, markdown)]
    if result["length"]:
        header = ["row", "pairs", "perplexity", "BLEU", "longer pairs", "perplexity", "BLEU"]
        cells = [
            [row["row"]]
            + [
                cell
                for part in (row["within"], row["longer"])
                for cell in (
                    str(part["pairs"]),
                    _number(part["perplexity"], 2),
                    _number(part["bleu"], 1),
                )
            ]
            for row in result["length"]
        ]
        parts.append(
            f"Trained on pairs of at most {result['length_limit']} tokens a side, measured on test "
            "pairs of that length and on longer ones:"
        )
        parts.append(_frame(header, cells, markdown))
    parts.append(
        "In parentheses: difference from base. ±: standard deviation of the seeds. Within the "
        "spread: below two standard errors of a difference. One seed: whether a difference is "
        "chance cannot be told. Paper: table 3 of Vaswani et al., 2017. "
        f"BLEU: {result['bleu_signature']}"
    )
    return "\n\n".join(parts)


def _figure(
    row: Row,
    measured: list[dict],
    base: list[dict],
    figure: str,
    column: int,
    deviation: float | None,
) -> dict[str, Any]:
    """One figure of one row, beside the base's and the paper's."""
    scale = _SCALES[figure]
    values, bases = ([line[figure] for line in lines] for lines in (measured, base))
    paper = _papers(row, column)
    result = {
        **_mean(values),
        "difference": None,
        "spread": None,
        "paper": paper,
        "paper_difference": None
        if paper is None
        else round(paper - PAPERS_FIGURES[BASE][column], 2),
        "direction": None,
    }
    if row.name == BASE or not values or not bases:
        return result
    result["difference"] = statistics.mean(values) - statistics.mean(bases)
    spread = None
    if deviation is not None:
        errors = (_standard_error(each, deviation, scale) for each in (values, bases))
        spread = _STANDARD_ERRORS * math.hypot(*errors)
        result["spread"] = math.exp(spread) if scale is math.log else spread
    if paper is not None:
        scaled = [statistics.mean(map(scale, each)) for each in (values, bases)]
        result["direction"] = direction(scaled[0] - scaled[1], result["paper_difference"], spread)
    return result


def _papers(row: Row, column: int) -> float | None:
    """The paper's figure of a row: the base's where the row does not print one."""
    if row.paper is None:
        return None
    value = PAPERS_FIGURES[row.paper][column]
    return PAPERS_FIGURES[BASE][column] if value is None else value


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    return {
        "mean": statistics.mean(values) if values else None,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
    }


def _typical_deviation(
    rows: Sequence[Sequence[float]], scale: Callable[[float], float]
) -> float | None:
    """Standard deviation of a row's seeds, from all rows: two seeds alone would tell little.

    The median of the rows' own, so that one unsteady row does not hide what the others tell.
    """
    estimates = []
    for values in rows:
        freedom = len(values) - 1
        if freedom > 0:
            # Median of chi-squared by Wilson and Hilferty: few seeds mostly lie closer together
            # than their distribution is wide.
            median = freedom * (1 - 2 / (9 * freedom)) ** 3
            variance = statistics.variance(map(scale, values))
            estimates.append(math.sqrt(variance * freedom / median))
    return statistics.median(estimates) if estimates else None


def _standard_error(
    values: Sequence[float], typical: float, scale: Callable[[float], float]
) -> float:
    """Of a row's mean: by the typical deviation, or by its own where that is larger."""
    own = statistics.stdev(map(scale, values)) if len(values) > 1 else 0.0
    return max(own, typical) / math.sqrt(len(values))


def _shown(figure: dict[str, Any], digits: int, diverged: list[int]) -> list[str]:
    """The cells of a figure: ours, the paper's, the direction."""
    ours = _number(figure, digits)
    if figure["difference"] is not None:
        ours += f" ({figure['difference']:+.{digits}f})"
    if diverged:
        ours += f", {len(diverged)} diverged"
    papers = ""
    if figure["paper"] is not None:
        papers = f"{figure['paper']:.{digits}f}"
        if figure["direction"] is not None:
            papers += f" ({figure['paper_difference']:+.{digits}f})"
    return [ours, papers, figure["direction"] or ""]


def _number(figure: dict[str, Any], digits: int) -> str:
    if figure["mean"] is None:
        return "none"
    deviation = figure["deviation"]
    return f"{figure['mean']:.{digits}f}" + (
        "" if deviation is None else f" ± {deviation:.{digits}f}"
    )


def _frame(header: list[str], rows: list[list[str]], markdown: bool) -> str:
    """A table in columns of equal width, with Markdown's bars where wanted."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    separator, edge = (" | ", "|") if markdown else ("  ", "")

    def line(cells: list[str]) -> str:
        text = separator.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"{edge} {text} {edge}" if markdown else text.rstrip()

    rule = line(["-" * width for width in widths])
    return "\n".join([line(header), rule, *map(line, rows)])
