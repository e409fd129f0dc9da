"""Texts of a report's numbers, as tables for people show them."""

from collections.abc import Mapping, Sequence

from flows.report.cells import NO_BUDGET, Aggregate, Cell, Comparison, Section
from flows.report.text_lists import counted

MISSING = "–"
ACCEPTED_MARK = " †"
BFLOAT16_MARK = " ‡"


def number_text(value: float | None) -> str:
    """Returns the value with one decimal, or a dash if it is missing."""
    return MISSING if value is None else f"{value + 0.0:.1f}"  # + 0.0: no score reads "-0.0".


def budget_text(budget: int) -> str:
    """Returns a budget [tokens], or a dash for a model that has none."""
    return MISSING if budget == NO_BUDGET else str(budget)


def score_text(cell: Cell) -> str:
    """Returns `61.2 ± 1.3`, with `(2/3)` if seeds are missing.

    † marks a cell that rests on an artifact kept although its code has changed, ‡ one that was
    decoded from parameters in bfloat16.
    """
    spread = "" if cell.std is None else f" ± {cell.std:.1f}"
    seeds = _finished_text(cell)
    seeds = f" ({seeds})" if seeds else ""
    marks = ACCEPTED_MARK * cell.accepted + BFLOAT16_MARK * cell.bfloat16
    return f"{number_text(cell.mean)}{spread}{seeds}{marks}"


def _finished_text(cell: Cell) -> str:
    """Returns `2/3`, the finished seeds of those planned; "" for all, and for an unknown number."""
    return "" if cell.complete or not cell.seeds_known else f"{cell.n}/{cell.expected}"


def score_latex(section: Section, cell: Cell, place: int) -> str:
    r"""Returns `$61.2_{\pm 1.3}^{2/3}$`, `score_text` in LaTeX; `^{\times}` is not above chance.

    The best score of its budget is bold, `$\mathbf{61.2}_{\pm 1.3}^{*}$`, with a star where its
    difference to each other method stands; the second best is underlined.
    """
    above = _finished_text(cell)
    if cell.mean is None:
        return "--" + (f"$^{{{above}}}$" if above else "")
    above += "*" * section.stands_out(cell) + r"\times" * (cell.above_chance is False)
    return _ranked_latex(cell.mean, _spread_latex(cell), place, above)


def mean_latex(entry: Aggregate, place: int) -> str:
    """Returns the mean score over several benchmarks as `score_latex` writes a score."""
    return "--" if entry.mean is None else _ranked_latex(entry.mean, _spread_latex(entry), place)


def _spread_latex(scored: Cell | Aggregate) -> str:
    return "" if scored.std is None else rf"\pm {scored.std:.1f}"


def number_latex(value: float | None, place: int) -> str:
    """Returns the value with one decimal, bold if it is the best, underlined if the second best."""
    if value is None:
        return "--"
    form = {1: r"\textbf{%.1f}", 2: r"\underline{%.1f}"}.get(place, "%.1f")
    return form % value


def retention_latex(scored: Cell | Aggregate, place: int) -> str:
    """Returns `$95.3_{[90.1, 100.6]}$`, `retention_text` in LaTeX."""
    if scored.retention is None:
        return "--"
    ends = _ends_text(scored.retention_low, scored.retention_high)
    return _ranked_latex(scored.retention, ends, place)


def difference_latex(entry: Comparison) -> str:
    """Returns `$+2.1_{[0.4, 3.9]}^{*}$`, `difference_text` in LaTeX."""
    ends = _ends_text(entry.low, entry.high)
    below, star = f"_{{{ends}}}" if ends else "", "^{*}" if entry.stands else ""
    return f"${entry.mean:+.1f}{below}{star}$"


def _ranked_latex(value: float, below: str, place: int, above: str = "") -> str:
    number = rf"\mathbf{{{value:.1f}}}" if place == 1 else f"{value:.1f}"
    scripts = "".join(f"{sign}{{{text}}}" for sign, text in (("_", below), ("^", above)) if text)
    text = f"${number}{scripts}$"
    return rf"\underline{{{text}}}" if place == 2 else text


def interval_text(scored: Cell | Aggregate) -> str:
    """Returns `55.0 … 65.0`, the ends of the 95 % interval."""
    if scored.low is None or scored.high is None:
        return MISSING
    return f"{number_text(scored.low)} … {number_text(scored.high)}"


def retention_text(scored: Cell | Aggregate) -> str:
    """Returns `95.3 [90.1, 100.6]`, a retention with its 95 % interval."""
    ends = _ends_text(scored.retention_low, scored.retention_high)
    return f"{number_text(scored.retention)} {ends}".rstrip()


def _ends_text(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{number_text(low)}, {number_text(high)}]"


def range_text(counts: Sequence[float]) -> str:
    """Returns `3`, or `2–3` where the counts differ; a dash where all are 0, which is unknown."""
    ends = dict.fromkeys((min(counts, default=0), max(counts, default=0)))
    return "–".join(map(str, ends)) if any(ends) else MISSING


def margin_text(cell: Cell) -> str:
    """Returns `38.2 (18.2 errors)`, the margin over chance; ✗ marks one that is too small."""
    errors = ""
    if cell.error and cell.margin is not None and cell.margin > 0:
        errors = f" ({number_text(cell.margin / cell.error)} errors)"
    return f"{number_text(cell.margin)}{errors}{' ✗' if cell.above_chance is False else ''}"


def mean_score_text(entry: Aggregate) -> str:
    """Returns `57.8 ± 0.3`: of the paper's groups, as in its tables, with the deviation over seeds.

    A mean over all has none: so the columns of a small study fit a terminal.
    """
    spread = f" ± {entry.std:.1f}" if entry.of and entry.std is not None else ""
    return f"{number_text(entry.mean)}{spread}"


def num_rows_text(entry: Aggregate) -> str:
    """Returns `5`, or `5 of 27` where the paper's group has more benchmarks than there are."""
    return f"{entry.expected} of {entry.of}" if entry.of > entry.expected else str(entry.expected)


def mean_retention_text(entry: Aggregate) -> str:
    """Returns the retention; if benchmarks are missing, a dash and the mean of the others."""
    if entry.retention is not None:
        return retention_text(entry)
    rows = f"{entry.rows}/{entry.expected} rows"
    partial = "" if entry.partial is None else f"{number_text(entry.partial)} over "
    return f"{MISSING} ({partial}{rows})"


def draws_text(seeds: int, pretrainings: int, items: int, pictures: int) -> str:
    """Returns `3 seeds, 1 pretraining, 900 items, 150 pictures`, which an interval is over."""
    if not seeds:  # A file of an earlier version.
        return ""
    counts = [(seeds, "seed"), (pretrainings, "pretraining"), (items, "item")]
    counts.append((pictures, "picture"))
    return ", ".join(counted(num, name) for num, name in counts if num)


def difference_text(entry: Comparison) -> str:
    """Returns `+2.1 [0.4, 3.9]`; * marks a difference significant after Holm's correction.

    Over several benchmarks it has the number of those of them that are so: `5 better, 1 worse`.
    """
    counts = ((entry.better, "better"), (entry.worse, "worse"))
    several = ", ".join(f"{num} {word}" for num, word in counts if num)
    ends = _ends_text(entry.low, entry.high)
    star = "*" if entry.stands else ""
    texts = (f"{entry.mean:+.1f}", ends, star, several and f"({several})")
    return " ".join(text for text in texts if text)


def drawn_budgets_text(draws: Mapping[str, Sequence[int]], view: str = "") -> str:
    """Returns a sentence on methods that draw other budgets in training than each other.

    Args:
      draws: method -> the budgets that it draws from; empty for all that it serves.
      view: resolution and backbone of the methods; "" where there is one of each.
    """
    methods_by_budgets: dict[tuple[int, ...], list[str]] = {}
    for method, budgets in draws.items():
        methods_by_budgets.setdefault(tuple(budgets), []).append(method)
    groups = (
        f"{', '.join(methods)} from {', '.join(map(str, budgets)) or 'all that they serve'}"
        for budgets, methods in methods_by_budgets.items()
    )
    at = f" ({view})" if view else ""
    return (
        f"methods draw other budgets in training{at}: {'; '.join(groups)}. So they differ by their "
        f"training, too."
    )
