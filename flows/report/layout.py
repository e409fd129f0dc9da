"""Lays a report out for people: the blocks that the Markdown, and the pages, then write."""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from flows.report import result_columns
from flows.report.cell_text import (
    budget_text,
    difference_text,
    num_rows_text,
    range_text,
)
from flows.report.cells import (
    NO_BUDGET,
    Aggregate,
    Cell,
    Comparison,
    Report,
    Section,
    standing_over_all,
)
from flows.report.result_columns import SCORES, SPREADS, UNSEEN, CellRow, Grid, ResultColumn
from flows.report.text_lists import abbreviate_list

NOTES = """\
Scores are mean ± sample standard deviation over seeds; (2/3) says how many of the planned seeds \
are there, – is missing, an empty cell is a budget the method does not serve. {retention}95 % \
intervals are over as many seeds and, where they are known, items as stand beside them; \
{condition}. \
{marks} \
Chance is the best guess that never sees the pixels. A margin over it is also given in standard \
errors, over seeds and items; ✗ marks one that is not positive or below three of them."""
RETENTION = """\
Retention is 100 × mean / {reference}'s mean at {full} tokens, over the seeds both have; over \
several benchmarks it is the unweighted mean of theirs; [its 95 % interval] is over seeds and \
items of both; there is none where {reference} is not above chance. """
WITHOUT_QUESTION = """\
No question is the score of the best one answer to all questions on a picture, taken from the \
right answers: no model that does not read the questions scores more, and one that scores as much \
may not read them."""
DIFFERENCES = """\
Differences are paired by seed and item, with their 95 % intervals: of two methods, and of a \
budget and the method's largest{reference}. Better, worse and * are differences that stand when \
corrected for the number of benchmarks (Holm, 5 %). Detectable is the true difference that 80 of \
100 studies with such seeds and items would find, as far as these show{detectable}. Differences \
over benchmarks are not corrected."""
FAMILY = """\
The number of benchmarks is that on which two methods or budgets are compared. In all, {num} \
differences on single benchmarks are compared here: corrected for all of them, {standing}."""
MARKS = (
    "At each budget the best is bold and the second best italic{apart}; what reads the same is "
    "marked the same."
)
GROUPS = (
    "Means over benchmarks are over the paper's groups, and over all; 5 of 27 are those of a "
    "group's benchmarks that this table has. Their ± is over seeds."
)
LEFT_OUT = "{names} counts in no mean over benchmarks, as in the paper."
ACCEPTED = "† rests on an artifact that was kept although its code has changed since."
BFLOAT16 = (
    "‡ was decoded from parameters kept in bfloat16, after the float32 ones that the other cells "
    "were decoded from had been let go."
)
UNKNOWN_DRAWS = "the number of pretrainings behind them is not known"
ONE_SEED = "they hold for these trainings, since there is one seed"
ONE_CHECKPOINT = "they hold for these checkpoints, one of each model"
ONE_PRETRAINING = "they hold given these checkpoints, since there is one pretraining"
NESTED = "each of {num} pretrainings, with all that follows from it, counts as one draw"


_COUNTS = ("seeds", "pretrainings", "items", "pictures")
"""What a difference is over, as its table shows it."""


class TableField(NamedTuple):
    """A field of a table.

    Attributes:
      text: what it shows.
      cell: the cell whose page it leads to, for whoever shows the table and has such pages.
      place: 1 if it is the best at its budget, 2 if the second best, else 0.
    """

    text: str
    cell: Cell | None = None
    place: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table of texts; the columns whose numbers are in `left` are set to the left."""

    head: Sequence[str]
    rows: Sequence[Sequence[TableField]]
    left: Sequence[int] = (0,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportBlock:
    """Tables of the report below a title, of a benchmark or of all."""

    title: str
    tables: Sequence[ReportTable]
    section: Section | None = None


def report_blocks(report: Report) -> list[ReportBlock]:
    """Returns the means over benchmarks, the methods compared, and a block per benchmark."""
    return [*overall_blocks(report), *map(section_block, report.sections)]


def overall_blocks(report: Report) -> list[ReportBlock]:
    """Returns the means over benchmarks, and the methods compared."""
    blocks = [
        _aggregate_block(list(entries), _first_section(report, view))
        for view, entries in itertools.groupby(report.aggregates, lambda entry: entry.view)
    ]
    num = collections.Counter(section.view for section in report.sections if section.in_means)
    for view, entries in itertools.groupby(report.comparisons, lambda entry: entry.view):
        section, of_view = _first_section(report, view), list(entries)
        table = _difference_table(of_view, section.budgets, num[view])
        title = f"Methods and budgets compared{_block_view_text(section)}"
        blocks.append(ReportBlock(title=title, tables=[table]))
    return blocks


def _block_view_text(section: Section) -> str:
    return f" ({section.view_text})" if section.view_text else ""


def report_notes(report: Report) -> list[str]:
    """Returns the paragraphs below the tables: how to read them, then the report's own notes."""
    sections = report.sections
    full = " or ".join(budget_text(b) for b in dict.fromkeys(s.full_budget for s in sections))
    condition = _interval_condition(report)
    reference = sections[0].reference
    marks = MARKS.format(apart=apart_text(sections))
    retention = to_reference = ""
    if any(section.has_reference for section in sections):
        to_reference = f" or {reference}'s at {full} tokens"
        retention = RETENTION.format(reference=reference, full=full)
    notes = [NOTES.format(retention=retention, condition=condition, marks=marks)]
    if any(section.without_question is not None for section in sections):
        notes.append(WITHOUT_QUESTION)
    if any(section.comparisons for section in sections):
        detectable = _detectable_text(sections)
        notes.append(DIFFERENCES.format(reference=to_reference, detectable=detectable))
        notes += _family_note(sections)
    # Each note once, in the order of the columns whose table it explains.
    grids = dict.fromkeys(column.grid for column in result_columns.CELL_COLUMNS if column.heading)
    notes += [g.note for g in grids if g.note and any(map(g.is_shown, sections))]
    if any(entry.of for entry in report.aggregates):
        notes.append(GROUPS)
    if left_out := [section.benchmark for section in sections if not section.in_means]:
        notes.append(LEFT_OUT.format(names=", ".join(left_out)))
    notes += report.notes
    if any(cell.accepted for section in sections for cell in section.cells):
        notes.append(ACCEPTED)
    if any(cell.bfloat16 for section in sections for cell in section.cells):
        notes.append(BFLOAT16)
    return notes


def _detectable_text(sections: Sequence[Section]) -> str:
    """Returns the part of a note with the least and the largest detectable difference."""
    entries = [e for s in sections for e in s.comparisons if e.detectable is not None]
    if not entries:
        return ""
    least, most = (of(entries, key=lambda entry: entry.detectable or 0.0) for of in (min, max))
    return (
        f": here {least.detectable:.1f} points ({_place_text(least)}) and more, up to "
        f"{most.detectable:.1f}"
    )


def _place_text(entry: Comparison) -> str:
    return f"{entry.pair} at {budget_text(entry.budget)} on {', '.join(entry.benchmarks)}"


def _family_note(sections: Sequence[Section]) -> list[str]:
    """Returns the note on the differences that stand when all are corrected together."""
    num, standing = standing_over_all(sections)
    starred = sum(entry.stands for section in sections for entry in section.comparisons)
    if not starred:
        return []
    names = [*map(_place_text, standing)]
    which = "none stands"
    if names:
        which = f"{len(names)} of the {starred} stand: {abbreviate_list(names, 6)}"
    return [FAMILY.format(num=num, standing=which)]


def apart_text(sections: Sequence[Section]) -> str:
    """Returns the part of a note that names the method that has no place; "" if all have one."""
    reference = sections[0].reference
    ranked = (
        section.peers(budget)
        for section in sections
        if section.has_reference
        for budget in section.budgets
    )
    return "" if all(reference in peers for peers in ranked) else f", {reference} apart"


def _interval_condition(report: Report) -> str:
    """Returns the part of the notes that says what the intervals are conditional on."""
    num = report.num_pretrainings
    if not num:
        return UNKNOWN_DRAWS
    if all(section.budgets == (NO_BUDGET,) for section in report.sections):
        return ONE_CHECKPOINT
    if all(cell.n <= 1 for section in report.sections for cell in section.cells):
        return ONE_SEED
    return ONE_PRETRAINING if num == 1 else NESTED.format(num=num)


def _first_section(report: Report, view: tuple[int | None, str | None]) -> Section:
    """Returns a benchmark of a view, all of which share methods and budgets."""
    return next(section for section in report.sections if section.view == view)


def _aggregate_block(entries: Sequence[Aggregate], section: Section) -> ReportBlock:
    columns = [
        column
        for column in result_columns.AGGREGATE_COLUMNS
        if column.heading and column.is_shown(section)
    ]
    columns.sort(key=lambda column: column.rank)
    by_place = {(e.name, e.method, e.budget): e for e in entries}
    groups = {e.name: [other for other in entries if other.name == e.name] for e in entries}
    ranks = {
        (name, column.name): result_columns.rank_means(column, of_group, section)
        for name, of_group in groups.items()
        for column in columns
    }

    def mean_field(column: ResultColumn[Aggregate], entry: Aggregate | None) -> TableField:
        if entry is None:
            return TableField("")
        place = ranks[entry.name, column.name].get((entry.method, entry.budget), 0)
        return TableField(column.text_of(entry), place=place)

    # Names and methods down; across, each mean once per budget, then the counts.
    tables = []
    for grid in (SCORES, SPREADS):
        means = [c for c in columns if c.grid is grid and not c.is_count]
        counts = [c for c in columns if c.grid is grid and c.is_count]
        rows = []
        for name, method in dict.fromkeys((e.name, e.method) for e in entries):
            across = [by_place.get((name, method, budget)) for budget in section.budgets]
            names = (name, num_rows_text(groups[name][0]), method)
            fields = [mean_field(column, entry) for column in means for entry in across]
            ranges = [range_text([n for e in across if e and (n := c.value(e))]) for c in counts]
            rows.append([*map(TableField, names), *fields, *map(TableField, ranges)])
        head = [column.heading.format(budget_text(b)) for column in means for b in section.budgets]
        head += [column.heading for column in counts]
        tables.append(ReportTable(head=["over", "rows", "method", *head], rows=rows, left=(0, 2)))
    return ReportBlock(title=f"Over benchmarks{_block_view_text(section)}", tables=tables)


def section_block(section: Section) -> ReportBlock:
    """Returns the tables of a benchmark."""
    tables = [_grid_table(section, grid) for grid in (SCORES, SPREADS) if grid.is_shown(section)]
    if section.comparisons:
        tables.append(_difference_table(section.comparisons, section.budgets))
    if UNSEEN.is_shown(section):
        tables.append(_grid_table(section, UNSEEN))
    parts = (section.metric, section.group, section.view_text)
    extra = ", ".join(part for part in parts if part)
    title = f"{section.title} ({extra})" if extra else section.title
    return ReportBlock(title=title, tables=tables, section=section)


def _grid_table(section: Section, grid: Grid) -> ReportTable:
    r"""Returns one table of a benchmark.

    method | score @64  score @256 | retention @64  retention @256 | chance    | items
             \__ once a budget __/   \__________ once a budget __/   is_shared   is_count
    """
    columns = [
        c
        for c in result_columns.CELL_COLUMNS
        if c.heading and c.grid is grid and c.is_shown(section)
    ]
    columns.sort(key=lambda column: column.rank)
    head = [grid.corner(section)]
    for column in columns:
        is_once = column.is_shared or column.is_count
        budgets = section.budgets[:1] if is_once else section.budgets
        head += [column.heading.format(budget_text(budget)) for budget in budgets]
    rows = []
    for method in section.methods:
        row = [TableField(method)]
        for column in columns:
            if column.is_count:
                row.append(TableField(_cell_count_text(column, section, method)))
                continue
            budgets = section.budgets[:1] if column.is_shared else section.budgets
            row += [_cell_field(column, section, section.cell(method, b)) for b in budgets]
        rows.append(row)
    return ReportTable(head=head, rows=rows)


def _cell_field(column: ResultColumn[CellRow], section: Section, cell: Cell) -> TableField:
    # A budget that the method does not serve stays empty; what is shared by all cells does not.
    if not cell.expected and not column.is_shared:
        return TableField("")
    return TableField(
        column.text_of(CellRow(section, cell)),
        cell if column.is_linked and cell.n else None,
        section.place(cell) if column.is_ranked else 0,
    )


def _cell_count_text(column: ResultColumn[CellRow], section: Section, method: str) -> str:
    cells = [section.cell(method, budget) for budget in section.budgets]
    return range_text([column.value(CellRow(section, cell)) or 0 for cell in cells if cell.n])


def _difference_table(
    comparisons: Sequence[Comparison], budgets: Sequence[int], num_benchmarks: int = 0
) -> ReportTable:
    """Returns a table of differences: pairs of methods down, budgets across.

    Below them are those between budgets, "parcel − parcel@256".

    Args:
      comparisons: comparisons on one benchmark, or each over several.
      budgets: the columns.
      num_benchmarks: number of benchmarks that those over several could be over; 0 for one.
    """
    # One row where two methods are compared at the other's own budget as at every budget:
    #
    #   difference           @64   @256
    #   parcel − vanilla@256 -9.5  -3.0
    between = {c.pair for c in comparisons if c.other_budget is not None}
    by_place = {}
    for entry in comparisons:
        at_own = f"{entry.pair}@{entry.budget}"
        by_place[at_own if at_own in between else entry.pair, entry.budget] = entry
    rows = []
    for pair in dict.fromkeys(pair for pair, _ in by_place):
        across = [by_place.get((pair, budget)) for budget in budgets]
        entries = [entry for entry in across if entry]
        # Mostly the same at every budget: then once, else "2–3".
        counts = [range_text([getattr(entry, name) for entry in entries]) for name in _COUNTS]
        counts.append(range_text([round(e.detectable, 1) for e in entries if e.detectable]))
        if num_benchmarks:
            nums = [len(entry.benchmarks) for entry in entries]
            of_all = f" of {num_benchmarks}" if min(nums) < num_benchmarks else ""
            counts.insert(0, f"{range_text(nums)}{of_all}")
        rows.append([pair, *(difference_text(e) if e else "" for e in across), *counts])
    heads = [f"@{budget_text(budget)}" for budget in budgets]
    over = ["benchmarks"] * bool(num_benchmarks)
    return ReportTable(
        head=["difference", *heads, *over, *_COUNTS, "detectable"],
        rows=[[TableField(text) for text in row] for row in rows],
    )
