"""Writes a report as one LaTeX table (packages booktabs and amsmath)."""

from collections.abc import Sequence

from flows.report.cells import Aggregate, Cell, Report, Section

_ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"–": "--", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def to_latex(report: Report) -> str:
    """Returns one tabular per set of budgets and resolution.

    Its columns are the scores with their spread, the retentions [%] and chance. `--` marks a
    missing number; a cell that is not planned is empty.
    """
    shared: dict[tuple[tuple[int, ...], int | None], list[Section]] = {}
    for section in report.sections:
        shared.setdefault((section.budgets, section.resolution), []).append(section)
    return "\n".join(
        _tabular(sections, [a for a in report.aggregates if a.resolution == resolution])
        for (_, resolution), sections in shared.items()
    )


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Returns a plain tabular; `left` are the columns set to the left, the others to the right."""
    columns = "".join("l" if i in left else "r" for i in range(len(head)))
    rows = [_row([_text(field) for field in fields]) for fields in (head, *lines)]
    body = [r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}", ""])


def _tabular(sections: list[Section], aggregates: list[Aggregate]) -> str:
    budgets = sections[0].budgets
    across = len(budgets)
    lines = [
        rf"\begin{{tabular}}{{ll{'r' * 2 * across}r}}",
        r"\toprule",
        rf"& & \multicolumn{{{across}}}{{c}}{{Score}}"
        rf" & \multicolumn{{{across}}}{{c}}{{Retention [\%]}} & \\",
        rf"\cmidrule(lr){{3-{2 + across}}} \cmidrule(lr){{{3 + across}-{2 + 2 * across}}}",
        _row(["Benchmark", "Method", *(str(b) for b in budgets * 2), "Chance"]),
    ]
    for section in sections:
        lines.append(r"\midrule")
        lines += _section_rows(section)
    for name in dict.fromkeys(a.name for a in aggregates):
        lines.append(r"\midrule")
        lines += _aggregate_rows([a for a in aggregates if a.name == name], budgets)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _section_rows(section: Section) -> list[str]:
    rows = []
    for i, method in enumerate(section.methods):
        cells = [section.cell(method, b) for b in section.budgets]
        name = section.title if i == 0 else ""
        kept = [_number(c.retention) if c.expected else "" for c in cells]
        chance = _number(section.chance) if i == 0 else ""
        rows.append(_row([_text(name), _text(method), *map(_score, cells), *kept, chance]))
    return rows


def _aggregate_rows(aggregates: list[Aggregate], budgets: Sequence[int]) -> list[str]:
    rows = []
    for i, method in enumerate(dict.fromkeys(a.method for a in aggregates)):
        own = {a.budget: a for a in aggregates if a.method == method}
        means = [_number(own[b].mean) if b in own else "" for b in budgets]
        kept = [_number(own[b].retention) if b in own else "" for b in budgets]
        first = aggregates[0]
        name = f"Mean, {_text(first.name)} ({first.expected})" if i == 0 else ""
        rows.append(_row([name, _text(method), *means, *kept, ""]))
    return rows


def _row(fields: Sequence[str]) -> str:
    return " & ".join(fields) + r" \\"


def _score(cell: Cell) -> str:
    if not cell.expected:
        return ""
    spread = "" if cell.std is None else rf"_{{\pm {cell.std:.1f}}}"
    seeds = "" if cell.complete else rf"^{{{cell.n}/{cell.expected}}}"
    return (
        "--" + (f"${seeds}$" if seeds else "")
        if cell.mean is None
        else (f"${cell.mean:.1f}{spread}{seeds}$")
    )


def _number(value: float | None) -> str:
    return "--" if value is None else f"{value:.1f}"


def _text(text: str) -> str:
    return text.translate(_ESCAPES)
