"""Lays a report out for people: the blocks that the Markdown, and the pages, then write."""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from flows.report import result_columns
from flows.report.cell_text import budget_text, comparison_text, difference_text, range_text
from flows.report.cells import Aggregate, Cell, Report, Section
from flows.report.result_columns import SCORES, SPREADS, UNSEEN, CellRow, Grid, ResultColumn

NOTES = """\
Scores are mean ± sample standard deviation over seeds; (2/3) says how many of the planned seeds \
are there, – is missing, an empty cell is a budget the method does not serve. Retention is 100 × \
mean / {reference}'s mean at {full} tokens, over the seeds both have; over several benchmarks it \
is the unweighted mean of theirs; there is none where {reference} is not above chance. 95 % \
intervals are over as many seeds and, where they are known, items as stand beside them; \
{condition}. \
Chance is the best guess that never sees the pixels; beside a score's margin over it stands the \
standard error, over seeds and items, and ✗ where the margin is less than three of them."""
DIFFERENCES = """\
Differences are paired by seed and item, with their 95 % intervals. Better, worse and * are \
differences that stand when corrected for the number of benchmarks (Holm, 5 %)."""
ACCEPTED = "† rests on an artifact that was kept although its code has changed since."
BFLOAT16 = (
    "‡ was decoded from parameters kept in bfloat16, after the float32 ones that the other cells "
    "were decoded from had been let go."
)
ONE_SEED = "they hold for these trainings, since there is one seed"
ONE_PRETRAINING = "they hold given these checkpoints, since there is one pretraining"
NESTED = "each of {num} pretrainings, with all that follows from it, counts as one draw"


class TableField(NamedTuple):
    """A field of a table.

    Attributes:
      text: what it shows.
      cell: the cell whose page it leads to, for whoever shows the table and has such pages.
    """

    text: str
    cell: Cell | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table of texts; the columns whose numbers are in `left` are set to the left."""

    head: Sequence[str]
    rows: Sequence[Sequence[TableField]]
    left: Sequence[int] = (0,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportBlock:
    """A part of the report below a title: tables or a list of lines; of a benchmark, or of all."""

    title: str
    tables: Sequence[ReportTable] = ()
    lines: Sequence[str] = ()
    section: Section | None = None


def report_blocks(report: Report) -> list[ReportBlock]:
    """Returns the means over benchmarks, the methods compared, and a block per benchmark."""
    return [*overall_blocks(report), *map(section_block, report.sections)]


def overall_blocks(report: Report) -> list[ReportBlock]:
    """Returns the means over benchmarks, and the methods compared."""
    blocks = [
        _aggregate_block(list(entries), _shared_budgets(report, view))
        for view, entries in itertools.groupby(report.aggregates, lambda entry: entry.view)
    ]
    if report.comparisons:
        num = collections.Counter(section.view for section in report.sections)
        lines = [comparison_text(c, num[c.view]) for c in report.comparisons]
        blocks.append(ReportBlock(title="Methods compared", lines=lines))
    return blocks


def report_notes(report: Report) -> list[str]:
    """Returns the paragraphs below the tables: how to read them, then the report's own notes."""
    sections = report.sections
    full = " or ".join(budget_text(b) for b in dict.fromkeys(s.full_budget for s in sections))
    condition = _interval_condition(report)
    notes = [NOTES.format(reference=sections[0].reference, full=full, condition=condition)]
    if any(section.comparisons for section in sections):
        notes.append(DIFFERENCES)
    # Each note once, in the order of the columns whose table it explains.
    grids = dict.fromkeys(column.grid for column in result_columns.CELL_COLUMNS if column.heading)
    notes += [g.note for g in grids if g.note and any(map(g.is_shown, sections))]
    notes += report.notes
    if any(cell.accepted for section in sections for cell in section.cells):
        notes.append(ACCEPTED)
    if any(cell.bfloat16 for section in sections for cell in section.cells):
        notes.append(BFLOAT16)
    return notes


def _interval_condition(report: Report) -> str:
    """Returns the part of the notes that says what the intervals are conditional on."""
    if all(cell.expected <= 1 for section in report.sections for cell in section.cells):
        return ONE_SEED
    num = report.num_pretrainings
    return ONE_PRETRAINING if num == 1 else NESTED.format(num=num)


def _shared_budgets(report: Report, view: tuple[int | None, str | None]) -> tuple[int, ...]:
    """Returns the budgets of a view, which all its sections share."""
    return next(s.budgets for s in report.sections if s.view == view)


def _aggregate_block(entries: Sequence[Aggregate], budgets: Sequence[int]) -> ReportBlock:
    columns = [column for column in result_columns.AGGREGATE_COLUMNS if column.heading]
    columns.sort(key=lambda column: column.rank)
    # Names and methods down, means and retentions across, each once per budget, then the counts.
    means, counts = (
        [column for column in columns if column.is_count is is_count] for is_count in (False, True)
    )
    by_place = {(e.name, e.method, e.budget): e for e in entries}
    rows = []
    for name, method in dict.fromkeys((e.name, e.method) for e in entries):
        across = [by_place.get((name, method, budget)) for budget in budgets]
        expected = next(entry.expected for entry in across if entry)
        texts = [c.text_of(entry) if entry else "" for c in means for entry in across]
        texts += [range_text([n for e in across if e and (n := c.value(e))]) for c in counts]
        rows.append([TableField(text) for text in (name, str(expected), method, *texts)])
    head = [column.heading.format(budget_text(b)) for column in means for b in budgets]
    head += [column.heading for column in counts]
    table = ReportTable(head=["over", "rows", "method", *head], rows=rows, left=(0, 2))
    view = f" ({entries[0].view_text})" if entries[0].view_text else ""
    return ReportBlock(title=f"Over benchmarks{view}", tables=[table])


def section_block(section: Section) -> ReportBlock:
    """Returns the tables of a benchmark."""
    tables = [_grid_table(section, grid) for grid in (SCORES, SPREADS) if grid.is_shown(section)]
    if section.comparisons:
        tables.append(_difference_table(section))
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
    columns = [c for c in result_columns.CELL_COLUMNS if c.heading and c.grid is grid]
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
                row.append(TableField(_count_text(column, section, method)))
                continue
            budgets = section.budgets[:1] if column.is_shared else section.budgets
            row += [_cell_field(column, section, section.cell(method, b)) for b in budgets]
        rows.append(row)
    return ReportTable(head=head, rows=rows)


def _cell_field(column: ResultColumn[CellRow], section: Section, cell: Cell) -> TableField:
    # A budget that the method does not serve stays empty; what is shared by all cells does not.
    if not cell.expected and not column.is_shared:
        return TableField("")
    text = column.text_of(CellRow(section, cell))
    return TableField(text, cell if column.is_linked and cell.n else None)


def _count_text(column: ResultColumn[CellRow], section: Section, method: str) -> str:
    cells = [section.cell(method, budget) for budget in section.budgets]
    return range_text([column.value(CellRow(section, cell)) for cell in cells if cell.n])


def _difference_table(section: Section) -> ReportTable:
    """Returns the differences of a benchmark: pairs of methods down, budgets across."""
    by_place = {(c.pair, c.budget): c for c in section.comparisons}
    rows = []
    for pair in dict.fromkeys(pair for pair, _ in by_place):
        across = [by_place.get((pair, budget)) for budget in section.budgets]
        entries = [entry for entry in across if entry]
        # Mostly the same at every budget: then once, else "2–3".
        counts = [
            range_text([getattr(entry, name) for entry in entries])
            for name in ("seeds", "pretrainings", "items")
        ]
        rows.append([pair, *(difference_text(e) if e else "" for e in across), *counts])
    budgets = [f"@{budget_text(budget)}" for budget in section.budgets]
    return ReportTable(
        head=["difference", *budgets, "seeds", "pretrainings", "items"],
        rows=[[TableField(text) for text in row] for row in rows],
    )
