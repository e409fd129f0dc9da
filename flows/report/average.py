"""Unweighted means over several benchmarks."""

import statistics
from collections.abc import Sequence

from flows.report.cells import Aggregate, Cell, Section


def aggregate(
    name: str, sections: Sequence[Section], expected: int, resolution: int | None = None
) -> list[Aggregate]:
    """Returns one aggregate per method and budget that every section plans for.

    Args:
      name: name of the aggregate in the table.
      sections: the benchmarks at hand, all with the same methods and budgets.
      expected: number of benchmarks that the aggregate should have.
      resolution: image side [pixels]; None if the report holds one resolution only.
    """
    entries = []
    for method in sections[0].methods:
        for budget in sections[0].budgets:
            cells = [s.cell(method, budget) for s in sections]
            if all(c.expected for c in cells):
                entries.append(_average(name, cells, expected, resolution))
    return entries


def _average(name: str, cells: list[Cell], expected: int, resolution: int | None) -> Aggregate:
    there = [c for c in cells if c.complete]
    means = [c.mean for c in there if c.mean is not None]
    kept = [c.retention for c in there if c.retention is not None]
    partial = statistics.mean(kept) if kept else None
    return Aggregate(
        name=name,
        method=cells[0].method,
        budget=cells[0].budget,
        rows=len(kept),
        expected=expected,
        mean=statistics.mean(means) if len(means) == expected else None,
        retention=partial if len(kept) == expected else None,
        partial=partial,
        resolution=resolution,
    )
