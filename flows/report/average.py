"""Unweighted means over several benchmarks."""

import statistics
from collections.abc import Sequence

from flows.report.cells import Aggregate, Cell, Section


def aggregate_sections(name: str, sections: Sequence[Section], expected: int) -> list[Aggregate]:
    """Returns one aggregate per method and budget that every section plans for.

    Args:
      name: name of the aggregate in the table.
      sections: the benchmarks at hand, all of one view, with the same methods and budgets.
      expected: number of benchmarks that the aggregate should have.
    """
    entries = []
    for method in sections[0].methods:
        for budget in sections[0].budgets:
            cells = [s.cell(method, budget) for s in sections]
            if all(c.expected for c in cells):
                entries.append(_aggregate_cells(name, cells, expected, sections[0]))
    return entries


def _aggregate_cells(name: str, cells: list[Cell], expected: int, section: Section) -> Aggregate:
    # A mean over four of five benchmarks is not comparable with one over five: only the complete
    # one is called a mean. `partial` is what there is, for whoever says over how many.
    complete = [c for c in cells if c.complete]
    means = [c.mean for c in complete if c.mean is not None]
    retentions = [c.retention for c in complete if c.retention is not None]
    partial = statistics.mean(retentions) if retentions else None
    return Aggregate(
        name=name,
        method=cells[0].method,
        budget=cells[0].budget,
        rows=len(retentions),
        expected=expected,
        mean=statistics.mean(means) if len(means) == expected else None,
        retention=partial if len(retentions) == expected else None,
        partial=partial,
        resolution=section.resolution,
        backbone=section.backbone,
        seeds=max((c.n for c in complete), default=0),
        pretrainings=max((c.pretrainings for c in complete), default=0),
    )
