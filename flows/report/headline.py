"""The one number of a report that a list of studies shows."""

from flows.report.cell_text import score_text
from flows.report.cells import Report


def headline_text(report: Report) -> str:
    """Returns the highest mean over benchmarks, or else the highest score; "" if there is none.

    "parcel@64: 61.2 over 27 benchmarks", or "chartqa parcel@64: 61.2 ± 1.3".
    """
    means = [(entry.mean, entry) for entry in report.aggregates if entry.mean is not None]
    if means:
        mean, entry = max(means, key=lambda one: one[0])
        backbone = f"{entry.backbone} " if entry.backbone else ""
        over = f"over {entry.expected} benchmarks"
        return f"{backbone}{entry.method}@{entry.budget}: {mean:.1f} {over}"
    cells = [cell for section in report.sections for cell in section.cells if cell.n]
    if not cells:
        return ""
    best = max(cells, key=lambda cell: cell.mean or 0.0)
    return f"{best.benchmark} {best.method}@{best.budget}: {score_text(best)}"
