"""The one number of a report that a list of studies shows."""

from collections.abc import Sequence
from typing import TypeVar

from flows.report.average import ALL
from flows.report.cell_text import score_text
from flows.report.cells import Aggregate, Cell, Report
from pipelines.sources.paper_groups import HIGH_SUITE, MAIN_SUITE

_Scored = TypeVar("_Scored", Aggregate, Cell)


def headline_text(report: Report) -> str:
    """Returns the highest mean retention of a method other than the reference; "" for no score.

    "parcel@64: 95.3 % of vanilla over 5 of the 27 benchmarks": over what the study has of the
    paper's main suite, else of the suite at 448 px, else over all its benchmarks. Where the
    reference is missing or not above chance, the highest mean score stands there; for a study of
    one benchmark, its best score: "chartqa parcel@64: 61.2 ± 1.3, 95.3 % of vanilla".
    """
    reference = report.sections[0].reference
    names = {entry.name for entry in report.aggregates}
    over = next((name for name in (MAIN_SUITE, HIGH_SUITE, ALL) if name in names), "")
    entries = [entry for entry in report.aggregates if entry.name == over or not over]
    if entry := _best_mean_for_headline(entries, reference):
        backbone = f"{entry.backbone} " if entry.backbone else ""
        value = _headline_retention_text(entry, reference) or f"{entry.mean:.1f}"
        over = _headline_benchmarks_text(entry)
        return f"{backbone}{entry.method}@{entry.budget}: {value} over {over}"
    cells = [cell for section in report.sections for cell in section.cells if cell.n]
    if cell := _best_mean_for_headline(cells, reference):
        texts = [score_text(cell), _headline_retention_text(cell, reference)]
        score = ", ".join(text for text in texts if text)
        return f"{cell.benchmark} {cell.method}@{cell.budget}: {score}"
    return ""


def _best_mean_for_headline(scored: Sequence[_Scored], reference: str) -> _Scored | None:
    """Returns the mean with the highest retention, else the highest one; None if there is none."""
    # The reference retains 100 % of itself: it counts only where it is all there is.
    known = [one for one in scored if one.mean is not None]
    known = [one for one in known if one.method != reference] or known
    return max(known, key=lambda one: (one.retention or 0.0, one.mean or 0.0), default=None)


def _headline_retention_text(one: Aggregate | Cell, reference: str) -> str:
    if one.retention is None or one.method == reference:
        return ""
    return f"{one.retention:.1f} % of {reference}"


def _headline_benchmarks_text(entry: Aggregate) -> str:
    if entry.of > entry.expected:
        return f"{entry.expected} of the {entry.of} benchmarks"
    return f"the {entry.of} benchmarks" if entry.of else f"{entry.expected} benchmarks"
