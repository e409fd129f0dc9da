"""Unweighted means over several benchmarks."""

import statistics
from collections.abc import Collection, Mapping, Sequence

from flows.report.cells import Aggregate, Cell, Section

ALL = "all"
"""Name of the mean over every benchmark, of those that are in means at all."""


def group_means(
    sections: Sequence[Section],
    groups: Mapping[str, Collection[str]],
    sizes: Mapping[str, int],
) -> list[Aggregate]:
    """Returns the means over each group with two of the benchmarks or more, and over all.

    A group of the same benchmarks as one before it is left out, and so is what a section keeps out
    of means.

    Args:
      sections: all benchmarks of one view.
      groups: name -> names of its benchmarks; some of them may have no section.
      sizes: group -> number of benchmarks that it has in the paper.
    """
    counted = [section for section in sections if section.in_means]
    every = [section.benchmark for section in counted]
    shown: dict[tuple[str, ...], list[Aggregate]] = {}
    for name, members in {**groups, ALL: every}.items():
        chosen = [section for section in counted if section.benchmark in members]
        names = tuple(section.benchmark for section in chosen)
        if len(chosen) > 1 and names not in shown:
            shown[names] = aggregate_sections(name, chosen, of=sizes.get(name, 0))
    return [entry for entries in shown.values() for entry in entries]


def aggregate_sections(name: str, sections: Sequence[Section], *, of: int = 0) -> list[Aggregate]:
    """Returns one aggregate per method and budget that every section plans for.

    Args:
      name: name of the aggregate in the table.
      sections: the benchmarks, all of one view, with the same methods and budgets.
      of: number of benchmarks that the group has in the paper; 0 if it is none of the paper's.
    """
    entries = []
    for method in sections[0].methods:
        for budget in sections[0].budgets:
            cells = [s.cell(method, budget) for s in sections]
            if all(c.expected for c in cells):
                entries.append(_aggregate_cells(name, cells, of, sections[0]))
    return entries


def _aggregate_cells(name: str, cells: list[Cell], of: int, section: Section) -> Aggregate:
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
        expected=len(cells),
        benchmarks=tuple(c.benchmark for c in cells),
        of=of,
        mean=statistics.mean(means) if len(means) == len(cells) else None,
        std=_std_of_mean(cells) if len(means) == len(cells) else None,
        retention=partial if len(retentions) == len(cells) else None,
        partial=partial,
        resolution=section.resolution,
        backbone=section.backbone,
        # One count that is not known leaves that of the mean unknown.
        seeds=max((c.n for c in complete), default=0) if all(c.seeds_known for c in cells) else 0,
        pretrainings=max((c.pretrainings for c in complete), default=0),
    )


def _std_of_mean(cells: Sequence[Cell]) -> float | None:
    """Returns the deviation over seeds of the mean over benchmarks; None if seeds are unknown."""
    by_seed = [{score.seed: score.score for score in cell.scores} for cell in cells]
    seeds = by_seed[0].keys()
    if len(seeds) < 2 or any(scores.keys() != seeds for scores in by_seed):
        return None
    return statistics.stdev(
        statistics.mean(scores[seed] for scores in by_seed) for seed in sorted(seeds)
    )
