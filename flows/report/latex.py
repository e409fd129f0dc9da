"""Writes a report as LaTeX tables (packages booktabs and amsmath)."""

from collections.abc import Sequence
from typing import Any

from flows.report import result_columns
from flows.report.cell_text import budget_text, num_rows_text, range_text
from flows.report.cells import NO_BUDGET, Aggregate, Cell, Report, Section, standing_over_all
from flows.report.layout import apart_text
from flows.report.result_columns import CellRow, ResultColumn

_ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"–": "--", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


_RETENTION_ENDS = r"its 95\,\% interval"


def to_latex(report: Report) -> str:
    """Returns two tables per set of budgets, resolution and backbone: means, then benchmarks.

    The columns of a benchmark's are those with a `latex_heading`. `--` marks a missing number; a
    cell that is not planned is empty. The caption says how many seeds, pretrainings and items there
    are, and what bold, underlines and stars mean. The report's own notes are comments below.
    """
    groups: dict[Any, list[Section]] = {}
    for section in report.sections:
        groups.setdefault((section.budgets, section.view), []).append(section)
    tables = []
    for (_, view), sections in groups.items():
        if aggregates := [entry for entry in report.aggregates if entry.view == view]:
            tables.append(
                _latex_table(_means_caption(sections), _means_tabular(aggregates, sections[0]))
            )
        tables.append(_latex_table(_scores_caption(sections), _scores_tabular(sections)))
    # A table for a paper has no notes: whoever pastes it reads them in comments.
    return "\n".join([*tables, *(f"% {note}" for note in report.notes), ""]).rstrip("\n") + "\n"


def _latex_table(caption: str, tabular: str) -> str:
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", tabular, r"\end{table}"]
    return "\n".join([*lines, ""])


def _means_caption(sections: list[Section]) -> str:
    cells = [cell for section in sections for cell in section.cells if cell.expected]
    reference = escape_latex(sections[0].reference)
    retentions = f", and mean of the benchmarks' retentions of {reference} with {_RETENTION_ENDS}"
    return (
        f"Means over benchmarks{_latex_view_text(sections)}: {_draws_text(cells)}"
        f"{retentions if sections[0].has_reference else ''}. "
        f"{_marks_text(sections)}."
    )


def _scores_caption(sections: list[Section]) -> str:
    # A caption stands alone in a paper: what ± is and over how many draws, what retentions and
    # differences are against, and what the marks mean; each only where the table has it.
    cells = [cell for section in sections for cell in section.cells if cell.expected]
    items = [cell.items for cell in cells if cell.items]
    pictures = [cell.pictures for cell in cells if cell.pictures]
    of_items = f", each score over {escape_latex(range_text(items))} items" if items else ""
    of_items += f" about {escape_latex(range_text(pictures))} pictures" if pictures else ""
    retention = (
        f". Retention is against {escape_latex(sections[0].reference)}; below it {_RETENTION_ENDS}"
    )
    differences = (
        f". Differences to {escape_latex(sections[0].baseline)} at "
        f"{'all its' if sections[0].baseline == sections[0].reference else 'the same'} tokens, "
        "paired by seed and item, with their 95\\,\\% intervals, and $^{*}$ where one stands "
        "(95\\,\\%, corrected for the number of benchmarks)"
    )
    starred = any(section.stands_out(cell) for section in sections for cell in section.cells)
    num, standing = standing_over_all(sections)
    star = (
        r", with $^{*}$ where its difference to each other method there stands (95\,\%, corrected "
        f"for the number of benchmarks; of all {num} differences {len(standing)} stand when "
        "corrected for that number)"
    )
    at_chance = any(cell.above_chance is False for cell in cells)
    chance = r". $^{\times}$: less than three standard errors, over seeds and items, above chance"
    return (
        f"Scores{_latex_view_text(sections)}: {_draws_text(cells)}{of_items}"
        f"{retention * sections[0].has_reference}{differences * bool(sections[0].baseline)}. "
        f"{_marks_text(sections, star * starred)}{chance * at_chance}."
    )


def _latex_view_text(sections: list[Section]) -> str:
    resolution, backbone = sections[0].view
    images = f" on {escape_latex(backbone)}" if backbone else ""
    return images + (rf" at {resolution}\,px" if resolution else "")


def _draws_text(cells: Sequence[Cell]) -> str:
    # A model of another system is one checkpoint, whoever trained it, from however many seeds.
    own = [cell for cell in cells if cell.budget != NO_BUDGET]
    if not own:
        return "one checkpoint of each model"
    others = ", and one checkpoint of each model at --" if len(own) < len(cells) else ""
    return f"mean $\\pm$ sample standard deviation over {_seeds_text(own)}{others}"


def _seeds_text(cells: Sequence[Cell]) -> str:
    seeds = max((cell.expected for cell in cells if cell.seeds_known), default=0)
    if not seeds:
        return "an unknown number of seeds"
    pretrainings = max(cell.pretrainings for cell in cells)
    of_pretrainings = ""
    if pretrainings:
        of_pretrainings = f" from {pretrainings} pretraining{'s' * (pretrainings != 1)}"
    known = "" if all(cell.seeds_known for cell in cells) else ", where their number is known"
    return f"{seeds} seed{'s' * (seeds != 1)}{known}{of_pretrainings}"


def _marks_text(sections: list[Section], star: str = "") -> str:
    apart = escape_latex(apart_text(sections))
    return f"Bold: the best at a budget{star}; underlined: the second best{apart}"


def _scores_tabular(sections: list[Section]) -> str:
    columns = [
        column
        for column in result_columns.CELL_COLUMNS
        if column.latex_heading and any(map(column.is_shown, sections))
    ]
    lines = _tabular_headings(["Benchmark", "Method"], columns, sections[0].budgets)
    for section in sections:
        lines += [r"\midrule", *_section_rows(section, columns)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _means_tabular(aggregates: list[Aggregate], section: Section) -> str:
    columns = [
        column
        for column in result_columns.AGGREGATE_COLUMNS
        if column.latex_heading and column.is_shown(section)
    ]
    lines = _tabular_headings(["Mean over", "Method"], columns, section.budgets)
    for name in dict.fromkeys(entry.name for entry in aggregates):
        of_name = [entry for entry in aggregates if entry.name == name]
        lines += [r"\midrule", *_mean_rows(of_name, section, columns)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _tabular_headings(
    names: Sequence[str], columns: Sequence[ResultColumn[Any]], budgets: Sequence[int]
) -> list[str]:
    """Returns the first lines of a tabular: its columns, and two lines of headings."""
    # Two lines of headings. A column with a field per budget has its name above the budgets, and a
    # rule (cmidrule) between; one that is shared has its name in the lower line:
    #
    #              &        &    Score    & Retention [%] &
    #              &        & ----------- & ------------- &
    #    Benchmark & Method &  64  &  256 &  64  &  256   & Chance
    upper, lower, rules = [], [*names], []
    for column in columns:
        if column.is_shared:
            upper.append("")
            lower.append(column.latex_heading)
            continue
        start = len(lower) + 1  # LaTeX counts columns from 1.
        upper.append(rf"\multicolumn{{{len(budgets)}}}{{c}}{{{column.latex_heading}}}")
        lower += [escape_latex(budget_text(budget)) for budget in budgets]
        rules.append(rf"\cmidrule(lr){{{start}-{len(lower)}}}")
    # Two columns of names set to the left, all numbers to the right.
    return [
        rf"\begin{{tabular}}{{ll{'r' * (len(lower) - 2)}}}",
        r"\toprule",
        rf"& & {' & '.join(upper).rstrip()} \\",
        " ".join(rules),
        _tabular_row(lower),
    ]


def _section_rows(section: Section, columns: Sequence[ResultColumn[CellRow]]) -> list[str]:
    rows = []
    for i, method in enumerate(section.methods):
        cells = [CellRow(section, section.cell(method, budget)) for budget in section.budgets]
        # The benchmark, and what its cells share, stand in its first row only.
        fields = [escape_latex(section.title) if i == 0 else "", escape_latex(method)]
        for column in columns:
            if column.is_shared:
                fields.append(column.latex_of(cells[0]) if i == 0 else "")
            else:
                fields += [
                    column.latex_of(row, section.place(row.cell)) if row.cell.expected else ""
                    for row in cells
                ]
        rows.append(_tabular_row(fields))
    return rows


def _mean_rows(
    entries: list[Aggregate], section: Section, columns: Sequence[ResultColumn[Aggregate]]
) -> list[str]:
    """Returns a row per method of the means over one group of benchmarks."""
    by_place = {(entry.method, entry.budget): entry for entry in entries}
    ranks = {c.name: result_columns.rank_means(c, entries, section) for c in columns}
    rows = []
    for i, method in enumerate(dict.fromkeys(entry.method for entry in entries)):
        # The group stands in its first row only.
        name = f"{escape_latex(entries[0].name)} ({num_rows_text(entries[0])})" if i == 0 else ""
        fields = [name, escape_latex(method)]
        for column in columns:
            for budget in section.budgets:
                entry = by_place.get((method, budget))
                place = ranks[column.name].get((method, budget), 0)
                fields.append(column.latex_of(entry, place) if entry else "")
        rows.append(_tabular_row(fields))
    return rows


def _tabular_row(fields: Sequence[str]) -> str:
    return " & ".join(fields) + r" \\"


def escape_latex(text: str) -> str:
    """Returns a text in which LaTeX reads nothing as a command."""
    return text.translate(_ESCAPES)
