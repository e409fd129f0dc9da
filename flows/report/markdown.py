"""Writes a report as Markdown tables: one per benchmark, methods down, budgets across."""

import collections
import itertools
from collections.abc import Callable, Sequence

from flows.report.cells import Aggregate, Cell, Comparison, Report, Section

MISSING = "–"
KEPT = " †"
Link = Callable[[Cell], str | None]

NOTES = """\
Scores are mean ± sample standard deviation over seeds; (2/3) says how many of the planned seeds \
are there, – is missing, an empty cell is a budget the method does not serve. Retention is 100 × \
mean / {reference}'s mean at {full} tokens, over the seeds both have; over several benchmarks it \
is the unweighted mean of theirs; there is none where {reference} is not above chance. 95 % \
intervals are over seeds and, where they are known, items; {given}. Chance is the best guess that \
never sees the pixels; beside a score's margin over it stands the standard error, over seeds and \
items, and ✗ where the margin is less than three of them.
"""
DIFFERENCES = """\
Differences are paired by seed and item, with their 95 % intervals. Better, worse and * are \
differences that stand when corrected for the number of benchmarks (Holm, 5 %).
"""
SEEN = """\
Without items: mean scores without the items whose picture hygiene found in a training corpus.
"""
ONE_SEED = "they hold for these trainings, since there is one seed"
GIVEN = "they hold given these checkpoints, since there is one pretraining"
NESTED = "each of {num} pretrainings, with all that follows from it, counts as one draw"


def to_markdown(report: Report, *, link: Link | None = None) -> str:
    """Returns the aggregates, then a table per benchmark, then notes that explain the columns.

    Args:
      report: a report of at least one benchmark.
      link: function from a cell to its page's address; where it gives None, or is None itself, the
        cell is not linked.
    """
    blocks = [
        _aggregates(list(same), _budgets(report, resolution))
        for resolution, same in itertools.groupby(report.aggregates, key=lambda a: a.resolution)
    ]
    if report.comparisons:
        blocks.append(_comparisons(report))
    blocks += [_section(section, link) for section in report.sections]
    first = report.sections[0]
    full = " or ".join(str(b) for b in dict.fromkeys(s.full_budget for s in report.sections))
    blocks.append(NOTES.format(reference=first.reference, full=full, given=_given(report)))
    if any(section.comparisons for section in report.sections):
        blocks.append(DIFFERENCES)
    if any(section.seen for section in report.sections):
        blocks.append(SEEN)
    blocks += [f"{note}\n" for note in report.notes]
    if any(cell.accepted for section in report.sections for cell in section.cells):
        blocks.append("† rests on an artifact that was kept although its code has changed since.\n")
    return "\n".join(blocks)


def _given(report: Report) -> str:
    """Returns the part of the notes that says what the intervals are conditional on."""
    if all(cell.expected <= 1 for section in report.sections for cell in section.cells):
        return ONE_SEED
    num = report.num_pretrainings
    return GIVEN if num == 1 else NESTED.format(num=num)


def number(value: float | None) -> str:
    """Returns the value with one decimal, or a dash if it is missing."""
    return MISSING if value is None else f"{value + 0.0:.1f}"


def score_text(cell: Cell) -> str:
    """Returns `61.2 ± 1.3`, with `(2/3)` if seeds are missing; "" if the cell is not planned.

    † marks a cell that rests on an artifact kept although its code has changed.
    """
    if not cell.expected:
        return ""
    spread = "" if cell.std is None else f" ± {cell.std:.1f}"
    seeds = "" if cell.complete else f" ({cell.n}/{cell.expected})"
    return f"{number(cell.mean)}{spread}{seeds}{KEPT if cell.accepted else ''}"


def margin_text(cell: Cell) -> str:
    """Returns `38.2 ± 2.1`, the margin over chance and its error; ✗ marks a margin too small."""
    error = "" if cell.error is None or cell.margin is None else f" ± {cell.error:.1f}"
    return f"{number(cell.margin)}{error}{' ✗' if cell.above_chance is False else ''}"


def retention_text(entry: Aggregate) -> str:
    """Returns the retention; if benchmarks are missing, a dash and the mean of the others."""
    if entry.retention is not None:
        return number(entry.retention)
    there = f"{entry.rows}/{entry.expected} rows"
    return f"{MISSING} ({there})" if entry.partial is None else _partial(entry.partial, there)


def comparison_text(entry: Comparison, num_benchmarks: int) -> str:
    """Returns `parcel − mqt at 64: +2.1 [0.4, 3.9], 27 benchmarks; better on 9, worse on 1`."""
    num = len(entry.benchmarks)
    there = (
        f"{num} benchmarks" if num == num_benchmarks else f"{num} of {num_benchmarks} benchmarks"
    )
    sure = f"; better on {entry.better}, worse on {entry.worse}" if entry.p is not None else ""
    pixels = f" ({entry.resolution} px)" if entry.resolution else ""
    return f"{entry.pair} at {entry.budget}{pixels}: {difference_text(entry)}, {there}{sure}"


def difference_text(entry: Comparison) -> str:
    """Returns `+2.1 [0.4, 3.9]`; * marks a difference significant after Holm's correction."""
    if entry.low is None or entry.high is None:
        return f"{entry.mean:+.1f}"
    star = " *" if entry.is_sure else ""
    return f"{entry.mean:+.1f} [{number(entry.low)}, {number(entry.high)}]{star}"


def _comparisons(report: Report) -> str:
    num = collections.Counter(section.resolution for section in report.sections)
    lines = [f"- {comparison_text(c, num[c.resolution])}\n" for c in report.comparisons]
    return f"## Methods compared\n\n{''.join(lines)}"


def _partial(value: float, there: str) -> str:
    return f"{MISSING} ({number(value)} over {there})"


def _budgets(report: Report, resolution: int | None) -> tuple[int, ...]:
    """Returns the budgets of a resolution, which all its sections share."""
    return next(s.budgets for s in report.sections if s.resolution == resolution)


def _aggregates(entries: list[Aggregate], budgets: Sequence[int]) -> str:
    cells = {(e.name, e.method, e.budget): e for e in entries}
    lines = []
    for name, method in dict.fromkeys((e.name, e.method) for e in entries):
        row = [cells.get((name, method, b)) for b in budgets]
        kept = ["" if e is None else retention_text(e) for e in row]
        means = ["" if e is None else number(e.mean) for e in row]
        lines.append([name, str(next(e.expected for e in row if e)), method, *kept, *means])
    head = [*(f"retention @{b} [%]" for b in budgets), *(f"mean score @{b}" for b in budgets)]
    pixels = f" ({entries[0].resolution} px)" if entries[0].resolution else ""
    body = table(["over", "rows", "method", *head], lines, left=(0, 2))
    return f"## Over benchmarks{pixels}\n\n{body}"


def _section(section: Section, link: Link | None) -> str:
    """Returns the tables of a section; scores and intervals are apart to fit a page of the UI."""
    scores, spreads = [], []
    for method in section.methods:
        cells = [section.cell(method, b) for b in section.budgets]
        kept = [number(c.retention) if c.expected else "" for c in cells]
        spans = [_interval(c) if c.expected else "" for c in cells]
        margins = [margin_text(c) if c.expected else "" for c in cells]
        scores.append([method, *(_linked(c, link) for c in cells), *kept, number(section.chance)])
        spreads.append([method, *spans, *margins])

    def head(*names: str) -> list[str]:
        return ["method", *(name.format(b) for name in names for b in section.budgets)]

    first = table([*head("score @{}", "retention @{} [%]"), "chance"], scores, left=(0,))
    second = table(head("95 % interval @{}", "over chance @{}"), spreads, left=(0,))
    tables = [first, second]
    if section.comparisons:
        tables.append(_differences(section))
    if section.seen:
        tables.append(_without_seen(section))
    return f"## {_title(section)}\n\n" + "\n".join(tables)


def _differences(section: Section) -> str:
    found = {(c.pair, c.budget): difference_text(c) for c in section.comparisons}
    pairs = dict.fromkeys(pair for pair, _ in found)
    lines = [[pair, *(found.get((pair, b), "") for b in section.budgets)] for pair in pairs]
    head = ["difference", *(f"@{b}" for b in section.budgets)]
    return table(head, lines, left=(0,))


def _without_seen(section: Section) -> str:
    """Returns the scores without the items whose pictures a training corpus holds."""
    lines = []
    for method in section.methods:
        cells = [section.cell(method, b) for b in section.budgets]
        lines.append([method, *(number(c.unseen) if c.expected else "" for c in cells)])
    head = [f"without {section.seen} of {section.items} items", *(f"@{b}" for b in section.budgets)]
    return table(head, lines, left=(0,))


def _title(section: Section) -> str:
    pixels = f"{section.resolution} px" if section.resolution else ""
    extra = ", ".join(part for part in (section.metric, section.group, pixels) if part)
    return f"{section.title} ({extra})" if extra else section.title


def _linked(cell: Cell, link: Link | None) -> str:
    text = score_text(cell)
    address = link(cell) if link and cell.n else None
    return f"[{text}]({address})" if address else text


def _interval(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return MISSING
    return f"{number(cell.low)} … {number(cell.high)}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Returns a Markdown table; `left` holds the numbers of the columns aligned to the left."""
    rule = [":--" if i in left else "--:" for i in range(len(head))]
    rows = [[text.replace("|", "\\|") for text in row] for row in (head, rule, *lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
