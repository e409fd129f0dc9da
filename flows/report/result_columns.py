"""The columns of the results, declared once: every file, table and page is written from here.

A new column is one `ResultColumn` below, and the code that computes its value. It then stands in
`results.csv` and `results.json`; with a `heading` also in the Markdown and on the pages, and with a
`latex_heading` in the LaTeX table. The reference page of the documentation has its `meaning`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from flows.report.cell_text import (
    difference_latex,
    interval_text,
    margin_text,
    mean_latex,
    mean_retention_text,
    mean_score_text,
    number_latex,
    number_text,
    retention_latex,
    retention_text,
    score_latex,
    score_text,
)
from flows.report.cells import Aggregate, Cell, Score, Section, rank_values


class CellRow(NamedTuple):
    """A cell, and the section of the benchmark that it belongs to."""

    section: Section
    cell: Cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """A table that each benchmark has: methods down, its columns across, once per budget.

    Attributes:
      corner: function from a section to the heading of the methods.
      is_shown: function that returns whether a section has this table.
      note: sentence below all tables, if any section has this one.
    """

    corner: Callable[[Section], str] = lambda section: "method"
    is_shown: Callable[[Section], bool] = lambda section: True
    note: str = ""


# Scores and intervals are apart, so that each fits the width of a page of Prefect's UI.
SCORES = Grid()
SPREADS = Grid()
UNSEEN = Grid(
    corner=lambda section: f"without {section.seen} of {section.items} items",
    is_shown=lambda section: section.seen > 0,
    note="Without items: mean scores without the items whose picture hygiene found in a training "
    "corpus.",
)

Row = TypeVar("Row")


def json_number(value: Any) -> Any:
    """Rounds floats to 6 decimals: the last bits may differ from one C library to the next."""
    return round(value, 6) if isinstance(value, float) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultColumn(Generic[Row]):
    """A column of the results, in every form that they are written in.

    Attributes:
      name: its name in the CSV and in the JSON.
      meaning: what it is, for the documentation.
      value: function from a row to the value.
      csv: function from the value to the CSV's field; default the value, floats with 4 decimals.
      json: function from the value to the JSON's; None if the JSON has it in another place.
      is_optional: whether files have it only where some row has a value.
      is_shown: function from a section to whether tables and files have it; files do where they
        have any such section.
      is_shared: whether all cells of a benchmark have the same value: the JSON and the tables then
        have it once.
      is_count: whether it counts what a method's scores rest on: a table has it once, as the range
        over the budgets that have a score, `2–3`.
      heading: heading in the Markdown and on the pages, "score @{}" with the budget for {}; without
        a heading it is not shown there.
      grid: the table that it stands in.
      rank: shown columns are ordered by this, then as they are declared.
      text: function from a row to the text shown; default the value with one decimal.
      is_linked: whether the text leads to the cell's page.
      is_ranked: whether the best and the second best method at each budget are marked.
      latex_heading: heading in the LaTeX table; without one it is not there.
      latex: function from a row and its place at its budget (1, 2 or 0) to its LaTeX; default the
        value with one decimal, bold where it is the best and underlined where the second best.
    """

    name: str
    meaning: str
    value: Callable[[Row], Any]
    csv: Callable[[Any], object] = lambda value: value
    json: Callable[[Any], Any] | None = json_number
    is_optional: bool = False
    is_shown: Callable[[Section], bool] = lambda section: True
    is_shared: bool = False
    is_count: bool = False
    heading: str = ""
    grid: Grid = SCORES
    rank: int = 0
    text: Callable[[Row], str] | None = None
    is_linked: bool = False
    is_ranked: bool = False
    latex_heading: str = ""
    latex: Callable[[Row, int], str] | None = None

    def text_of(self, row: Row) -> str:
        """Returns the text that tables show of a row."""
        return self.text(row) if self.text else number_text(self.value(row))

    def latex_of(self, row: Row, place: int = 0) -> str:
        """Returns the LaTeX of a row whose value has the given place among its budget's."""
        place = place if self.is_ranked else 0
        return self.latex(row, place) if self.latex else number_latex(self.value(row), place)


def _cost_column(name: str, meaning: str) -> ResultColumn[CellRow]:
    return ResultColumn(
        name=name,
        meaning=meaning,
        value=lambda row: getattr(row.cell.cost, name, None),
        # Four decimals would show a small model's costs as 0.0000.
        csv=lambda value: None if value is None else f"{value:.6g}",
        json=lambda value: value,
    )


def _difference_latex(row: CellRow) -> str:
    entry = row.section.difference(row.cell)
    return difference_latex(entry) if entry else ""


def _seed_scores(scores: tuple[Score, ...]) -> str:
    return " ".join(f"{score.seed}={score.score:.4f}" for score in scores)


CELL_COLUMNS: tuple[ResultColumn[CellRow], ...] = (
    ResultColumn(
        name="benchmark",
        meaning="row of the results; with several resolutions it ends with one, `chartqa@448`, and "
        "with several backbones, with one, `chartqa@siglip2+gemma3`",
        value=lambda row: row.section.benchmark,
        is_shared=True,
    ),
    ResultColumn(name="method", meaning="name of the method", value=lambda row: row.cell.method),
    ResultColumn(name="budget", meaning="soft tokens per image", value=lambda row: row.cell.budget),
    ResultColumn(
        name="mean",
        meaning="mean score over seeds; shown ± `std`, and with (2/3), the seeds that are finished "
        "of those planned, while some are missing; † where it depends on an artifact that was kept "
        "although its code has changed, ‡ where it was decoded from parameters in bfloat16",
        value=lambda row: row.cell.mean,
        heading="score @{}",
        text=lambda row: score_text(row.cell),
        is_linked=True,
        is_ranked=True,
        latex_heading="Score",
        latex=lambda row, place: score_latex(row.section, row.cell, place),
    ),
    ResultColumn(
        name="std",
        meaning="sample standard deviation over seeds",
        value=lambda row: row.cell.std,
    ),
    ResultColumn(
        name="n",
        meaning="seeds that have a score; empty if unknown",
        value=lambda row: row.cell.n if row.cell.seeds_known else None,
        heading="seeds",
        grid=SPREADS,
        rank=1,
        is_count=True,
    ),
    ResultColumn(
        name="expected",
        meaning="planned seeds; empty if unknown",
        value=lambda row: row.cell.expected if row.cell.seeds_known else None,
    ),
    ResultColumn(
        name="retention",
        meaning="100 × mean / the reference's mean at its full budget, over the seeds both have; "
        "shown [with its 95 % interval]; none where the reference is not above chance, and no "
        "column where it is not compared",
        value=lambda row: row.cell.retention,
        is_shown=lambda section: section.has_reference,
        heading="retention @{} [%]",
        text=lambda row: retention_text(row.cell),
        latex_heading=r"Retention [\%]",
        latex=lambda row, place: retention_latex(row.cell, place),
    ),
    ResultColumn(
        name="low",
        meaning="lower end of the mean's 95 % interval, over seeds and, where they are known, "
        "items; shown with their numbers; with a single pretraining it holds given its "
        "checkpoints",
        value=lambda row: row.cell.low,
        heading="95 % interval @{}",
        grid=SPREADS,
        text=lambda row: interval_text(row.cell),
    ),
    ResultColumn(name="high", meaning="its upper end", value=lambda row: row.cell.high),
    ResultColumn(
        name="chance",
        meaning="score of the best guess from the training texts or masks that never sees the "
        "pixels",
        value=lambda row: row.section.chance,
        is_shared=True,
        heading="chance",
        latex_heading="Chance",
    ),
    ResultColumn(
        name="without_question",
        meaning="score of the best one answer to all questions on a picture, taken from the right "
        "answers: the most that a model can have that sees the picture and not the question; only "
        "where pictures have several questions",
        value=lambda row: row.section.without_question,
        is_optional=True,
        is_shown=lambda section: section.without_question is not None,
        is_shared=True,
        heading="no question",
        latex_heading="No question",
    ),
    ResultColumn(
        name="error",
        meaning="standard error of `margin`, over seeds and items",
        value=lambda row: row.cell.error,
    ),
    ResultColumn(
        name="margin",
        meaning="mean − chance; shown with the number of `error`s that it is; ✗ marks one that is "
        "not positive or below three errors",
        value=lambda row: row.cell.margin,
        heading="over chance @{}",
        grid=SPREADS,
        text=lambda row: margin_text(row.cell),
    ),
    ResultColumn(
        name="above_chance",
        meaning="whether `margin` is positive and at least three `error`s",
        value=lambda row: row.cell.above_chance,
    ),
    ResultColumn(
        name="accepted",
        meaning="whether it depends on an artifact that was kept although its code has changed",
        value=lambda row: row.cell.accepted,
    ),
    ResultColumn(
        name="bfloat16",
        meaning="whether it was decoded from parameters kept in bfloat16, and not from the float32 "
        "ones (`keep.transfers`)",
        value=lambda row: row.cell.bfloat16,
    ),
    ResultColumn(
        name="metric",
        meaning="metric of the score",
        value=lambda row: row.section.metric,
        is_shared=True,
    ),
    ResultColumn(
        name="scores",
        meaning="score of each seed; in the JSON with the key of its artifact",
        value=lambda row: row.cell.scores,
        csv=_seed_scores,
        json=None,  # `json_file` nests them, the last of a cell's entries.
    ),
    ResultColumn(
        name="group",
        meaning="group of the paper whose table has it: Video, RefCOCO, Resolution-sensitive or "
        "General; none for another benchmark",
        value=lambda row: row.section.group,
        is_shared=True,
    ),
    ResultColumn(
        name="resolution",
        meaning="image side in pixels, if the study has several",
        value=lambda row: row.section.resolution,
        is_shared=True,
    ),
    ResultColumn(
        name="unseen",
        meaning="mean score without the items whose picture hygiene found in a training corpus; "
        "only with `hygiene.contamination: report`",
        value=lambda row: row.cell.unseen,
        heading="@{}",
        grid=UNSEEN,
    ),
    ResultColumn(
        name="pretrainings",
        meaning="pretrainings that its seeds start from; 0 if unknown",
        value=lambda row: row.cell.pretrainings,
        heading="pretrainings",
        grid=SPREADS,
        rank=1,
        is_count=True,
    ),
    ResultColumn(
        name="items",
        meaning="items under each seed, which its interval is over; 0 if unknown",
        value=lambda row: row.cell.items,
        heading="items",
        grid=SPREADS,
        rank=1,
        is_count=True,
    ),
    ResultColumn(
        name="backbone",
        meaning="tower and decoder, if the study has several",
        value=lambda row: row.section.backbone,
        is_shared=True,
        is_optional=True,
    ),
    ResultColumn(
        name="pictures",
        meaning="pictures or videos that these items are about; items of one are one draw",
        value=lambda row: row.cell.pictures,
        heading="pictures",
        grid=SPREADS,
        rank=1,
        is_count=True,
    ),
    ResultColumn(
        name="retention_low",
        meaning="lower end of the retention's 95 % interval, over seeds and items of both",
        value=lambda row: row.cell.retention_low,
        is_shown=lambda section: section.has_reference,
    ),
    ResultColumn(
        name="retention_high",
        meaning="its upper end",
        value=lambda row: row.cell.retention_high,
        is_shown=lambda section: section.has_reference,
    ),
    ResultColumn(
        name="difference",
        meaning="mean − the baseline's at the same budget, or at its full one if the baseline is "
        "the reference; paired by seed and item; with `baseline` in the file of `--labels`",
        value=lambda row: row.section.difference(row.cell),
        csv=lambda value: value and value.mean,
        json=None,
        is_optional=True,
        is_shown=lambda section: bool(section.baseline),
        latex_heading="Difference",
        latex=lambda row, place: _difference_latex(row),
    ),
    _cost_column("tokens", "soft tokens of the longest prompt"),
    _cost_column("tflops", "compute of its prefill [1e12 FLOPs]"),
    _cost_column("kv_mb", "size of its key-value cache [2**20 bytes]"),
)
"""Columns of a cell, in the order of the CSV."""

AGGREGATE_COLUMNS: tuple[ResultColumn[Aggregate], ...] = (
    ResultColumn(name="name", meaning="the benchmarks it is over", value=lambda entry: entry.name),
    ResultColumn(
        name="resolution",
        meaning="their image side in pixels, if the study has several",
        value=lambda entry: entry.resolution,
    ),
    ResultColumn(
        name="backbone",
        meaning="their tower and decoder, if the study has several",
        value=lambda entry: entry.backbone,
        is_optional=True,
    ),
    ResultColumn(name="method", meaning="name of the method", value=lambda entry: entry.method),
    ResultColumn(name="budget", meaning="soft tokens per image", value=lambda entry: entry.budget),
    ResultColumn(
        name="rows",
        meaning="benchmarks that are complete and have a retention",
        value=lambda entry: entry.rows,
    ),
    ResultColumn(name="expected", meaning="all its benchmarks", value=lambda entry: entry.expected),
    ResultColumn(
        name="of",
        meaning="benchmarks that the paper's group of that name has, shown where they are more, "
        "`5 of 27`; 0 for a mean that is none of the paper's",
        value=lambda entry: entry.of,
    ),
    ResultColumn(
        name="mean",
        meaning="unweighted mean of the scores, shown ± `std` for the paper's groups and in LaTeX; "
        "none while benchmarks are incomplete",
        value=lambda entry: entry.mean,
        heading="mean score @{}",
        rank=1,
        text=mean_score_text,
        is_ranked=True,
        latex_heading="Score",
        latex=mean_latex,
    ),
    ResultColumn(
        name="std",
        meaning="sample standard deviation of `mean` over seeds",
        value=lambda entry: entry.std,
    ),
    ResultColumn(
        name="retention",
        meaning="unweighted mean of the retentions; none while benchmarks are incomplete, where "
        "`partial` is shown in its place",
        value=lambda entry: entry.retention,
        is_shown=lambda section: section.has_reference,
        heading="retention @{} [%]",
        text=mean_retention_text,
        is_ranked=True,
        latex_heading=r"Retention [\%]",
        latex=retention_latex,
    ),
    ResultColumn(
        name="retention_low",
        meaning="lower end of the 95 % interval of `retention`",
        value=lambda entry: entry.retention_low,
    ),
    ResultColumn(
        name="retention_high",
        meaning="its upper end",
        value=lambda entry: entry.retention_high,
    ),
    ResultColumn(
        name="low",
        meaning="lower end of the 95 % interval of `mean`, over seeds and items",
        value=lambda entry: entry.low,
        heading="95 % interval @{}",
        grid=SPREADS,
        text=interval_text,
    ),
    ResultColumn(name="high", meaning="its upper end", value=lambda entry: entry.high),
    ResultColumn(
        name="partial",
        meaning="mean of the retentions there are",
        value=lambda entry: entry.partial,
    ),
    ResultColumn(
        name="seeds",
        meaning="seeds under each of its complete benchmarks; 0 if unknown",
        value=lambda entry: entry.seeds,
        heading="seeds",
        grid=SPREADS,
        is_count=True,
    ),
    ResultColumn(
        name="pretrainings",
        meaning="pretrainings that these seeds start from; 0 if unknown",
        value=lambda entry: entry.pretrainings,
        heading="pretrainings",
        grid=SPREADS,
        is_count=True,
    ),
)
"""Columns of a mean over several benchmarks, in the order of the JSON.
"""


def rank_means(
    column: ResultColumn[Aggregate], entries: Sequence[Aggregate], section: Section
) -> dict[tuple[str, int], int]:
    """Returns (method, budget) -> place of the means of one group, as of `rank_values`.

    Args:
      column: the column whose values are compared.
      entries: the group's means.
      section: a benchmark of the group, which has its methods and budgets.
    """
    places: dict[tuple[str, int], int] = {}
    for budget in section.budgets if column.is_ranked else ():
        values = {
            entry.method: column.value(entry)
            for entry in entries
            if entry.budget == budget and entry.method in section.peers(budget)
        }
        places |= {(method, budget): place for method, place in rank_values(values).items()}
    return places
