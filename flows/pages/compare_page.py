"""Compares cells, methods or runs: scores, paired differences, loss curves, and what differs.

    RUN/BENCHMARK/METHOD/BUDGET    a cell
    RUN/*/METHOD                   a method of a run, over all its benchmarks and budgets
    RUN                            a run

Two sides are compared cell by cell. Cells of two methods belong together if they have the same
benchmark and budget, those of two runs if they also have the same method. Cells of two benchmarks,
metrics or sets of questions stand side by side, without a difference.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.lookup.runs import config_differences
from flows.lookup.target import LookupTarget
from flows.pages.chart import (
    Chart,
    Curve,
    LossReader,
    chart_of,
    loss_titles,
    method_colors,
)
from flows.pages.curves import CurvePoints
from flows.pages.run_results import Column, ScoredRun, scored_run_of
from flows.report.cell_text import draws_text
from flows.report.cells import Cell, Section
from flows.report.gather import trained_checkpoint
from flows.report.interval import ScoreInterval, estimate_interval
from flows.report.items import is_percentage
from flows.report.items_reader import ItemsReader
from flows.report.paired_scores import PairedScores
from flows.steps.labels import labels_of
from infra.store.manifest import Manifest
from infra.store.store import Store
from model.eval.items_file import ItemsFile

_ALL = "*"
"""Stands for all benchmarks in the name of a method's side."""
_MAX_CURVES = 48
"""Largest number of curves in one drawing; more of them hide each other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """A cell, a method or a run that is compared.

    Attributes:
      name: its name in addresses, as at the head of this file.
      study: the run that it is of, with its table.
      label: its name for people.
      sort: what it is.
      cells: what a cell must share with one of the other side -> the cell and its section.
    """

    name: str
    study: ScoredRun
    label: str
    sort: str
    cells: Mapping[tuple[object, ...], tuple[Section, Cell]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellPair:
    """Two cells that belong together, with their difference.

    Attributes:
      label: what both have in common.
      names: names of the two sides that these cells are.
      cells: the cells.
      difference: the second less the first, over their common seeds [points]; None without any.
      reason: why there is no difference; "" if there is one.
    """

    label: str
    names: tuple[str, str]
    cells: tuple[Cell, Cell]
    difference: ScoreInterval | None
    reason: str = ""

    @property
    def draws(self) -> str:
        """Numbers of draws in the interval: "3 seeds, 1 pretraining, 900 items"."""
        found = self.difference
        if not found:
            return ""
        return draws_text(found.seeds, found.pretrainings, found.items, found.pictures)


def _find_side(study: ScoredRun, parts: Sequence[str]) -> Side:
    """Returns the side of a run that the rest of a name means.

    Raises:
      KeyError: if the run has no such cell or method, or the name is neither.
    """
    filled = [
        (section, cell) for section in study.report.sections for cell in section.cells if cell.n
    ]
    cells: Mapping[tuple[object, ...], tuple[Section, Cell]]
    match parts:
        case []:
            cells = {(s.benchmark, c.method, c.budget): (s, c) for s, c in filled}
            label, sort = f"{study.record['name']} {_run_finish_time(study)}", "run"
        case [benchmark, method] if benchmark == _ALL:
            cells = {(s.benchmark, c.budget): (s, c) for s, c in filled if c.method == method}
            label, sort = method, "method"
        case [benchmark, method, budget]:
            named = {(s.benchmark, c.method, str(c.budget)): (s, c) for s, c in filled}
            cells = {(): named[key]} if (key := (benchmark, method, budget)) in named else {}
            label, sort = f"{method}@{budget} on {benchmark}", "cell"
        case _:
            raise KeyError(f"There is nothing to compare with the name {'/'.join(parts)!r}.")
    if not cells:
        raise KeyError(f"{study.run} has no scores of {'/'.join(parts) or 'any cell'}.")
    return Side(
        name="/".join([study.run, *parts]), study=study, label=label, sort=sort, cells=cells
    )


def find_sides(store: Store, names: Sequence[str]) -> list[Side]:
    """Returns the sides of names, each once; of several runs, the labels name the runs.

    Raises:
      ConfigError: if there is no such run.
      KeyError: if a side does not exist, or the sides are not all of one sort.
    """
    parts = [name.split("/") for name in dict.fromkeys(names)]
    # The table of a run may have thousands of cells: it is read once for all sides of the run.
    studies = {run: scored_run_of(store, run) for run in dict.fromkeys(run for run, *_ in parts)}
    sides = [_find_side(studies[run], rest) for run, *rest in parts]
    if len(sorts := dict.fromkeys(side.sort for side in sides)) > 1:
        raise KeyError(f"Only like is compared with like, not a {' with a '.join(sorts)}.")
    if len({side.study.run for side in sides}) > 1:
        sides = [
            side
            if side.sort == "run"
            else dataclasses.replace(
                side,
                label=f"{side.label}, {side.study.record['name']} {_run_finish_time(side.study)}",
            )
            for side in sides
        ]
    return sides


def _run_finish_time(study: ScoredRun) -> str:
    return str(study.record["finished"])[:16].replace("T", " ")


def common_cells(first: Side, second: Side) -> list[tuple[object, ...]]:
    """Returns the keys of the cells in both tables, in the order of the first one's."""
    return [key for key in first.cells if key in second.cells]


def compare_cells(store: Store, first: Side, second: Side, key: tuple[object, ...]) -> CellPair:
    """Returns the paired difference of the cells that two sides have under a key."""
    (section, a), (other, b) = first.cells[key], second.cells[key]
    names = (_cell_name(first, a), _cell_name(second, b))
    # As tables have it: "chartqa parcel@64", or without what the two do not share.
    of_both = ", ".join(dict.fromkeys((section.benchmark, other.benchmark)))
    label = f"{' '.join(map(str, key[:-1]))} @{key[-1]}" if key else of_both
    of_a, of_b = ({score.seed: score for score in cell.scores} for cell in (a, b))
    seeds = [seed for seed in of_a if seed in of_b]
    reason = incomparable_reason(store, first, second, key)
    if reason or not seeds:
        reason = reason or "no seed in common, so nothing is paired"
        return CellPair(label=label, names=names, cells=(a, b), difference=None, reason=reason)
    if first.study.run == second.study.run and (known := _difference_in_table(section, a, b)):
        return CellPair(label=label, names=names, cells=(a, b), difference=known)
    # One reader for all seeds of both: they share the sources of their items.
    reader = ItemsReader()
    less, more = (
        PairedScores.of(
            [scores[seed].score for seed in seeds],
            [
                reader.of_scores(store.get_cached(scores[seed].artifact).path, scores[seed].score)[
                    0
                ]
                for seed in seeds
            ],
            is_percentage=is_percentage(cell.metric),
        )
        for cell, scores in ((a, of_a), (b, of_b))
    )
    difference = more.minus(less)
    numbers = first.study.pretrainings
    return CellPair(
        label=label,
        names=names,
        cells=(a, b),
        difference=estimate_interval([difference], [numbers.get(seed, 0) for seed in seeds]),
    )


def incomparable_reason(store: Store, first: Side, second: Side, key: tuple[object, ...]) -> str:
    """Returns why two cells cannot be subtracted, whatever their seeds; "" if they can."""
    a, b = first.cells[key][1], second.cells[key][1]
    for what in ("benchmark", "metric"):
        values = [getattr(cell, what) for cell in (a, b)]
        if values[0] != values[1]:
            return f"two {what}s, {' and '.join(values)}: their difference has no meaning"
    # Within a run, all scores of a benchmark are of the same questions.
    if first.study.run == second.study.run or not (a.scores and b.scores):
        return ""
    files = (ItemsFile(store.get_cached(cell.scores[0].artifact).path) for cell in (a, b))
    one, other = (file.columns("id", "source_sha256", "answers") for file in files)
    return "" if one == other else "two sets of questions: their difference has no meaning"


def _difference_in_table(section: Section, a: Cell, b: Cell) -> ScoreInterval | None:
    """Returns the difference b - a of a table; None if it does not compare them."""
    # The table knows more of two of its cells than their own seeds: those of its other benchmarks.
    entry = section.comparison((b.method, b.budget), (a.method, a.budget))
    if entry is None or entry.low is None:
        return None
    names = (field.name for field in dataclasses.fields(ScoreInterval))
    return ScoreInterval(**{name: getattr(entry, name) for name in names})


def _cell_name(side: Side, cell: Cell) -> str:
    return f"{side.study.run}/{cell.benchmark}/{cell.method}/{cell.budget}"


def column_of(side: Side, key: tuple[object, ...]) -> Column:
    """Returns the answers of a side's cell, as lists of items take them."""
    _, cell = side.cells[key]
    return Column(
        method=side.label,
        budget=cell.budget,
        artifacts={score.seed: score.artifact for score in cell.scores},
    )


def lineage_target(store: Store, side: Side, key: tuple[object, ...]) -> LookupTarget:
    """Returns the artifacts of a side's cell, to compare their histories."""
    _, cell = side.cells[key]
    return LookupTarget(
        name=side.label,
        artifacts=tuple(store.get_cached(score.artifact) for score in cell.scores),
        seeds=tuple(score.seed for score in cell.scores),
    )


def chart_of_sides(
    store: Store, losses: LossReader, sides: Sequence[Side], key: tuple[object, ...]
) -> Chart | None:
    """Returns the losses of the trainings behind the cells that all sides have under a key.

    Sides have the colors of their methods. Those of one method are told apart by the patterns of
    their lines; if there are none such, the patterns tell the seeds apart.
    """
    colors = method_colors(*(side.study.report for side in sides))
    cells = [side.cells[key][1] for side in sides]
    are_one = len({cell.method for cell in cells}) < len(sides)
    found = [
        (number, place, score.seed, checkpoint)
        for number, cell in enumerate(cells)
        for place, score in enumerate(cell.scores)
        for checkpoint in _checkpoint_behind_scores(store, score.artifact)
    ]
    curves = [
        _loss_curve(
            f"{made.name}, seed {seed}",
            losses.points(made.key),
            colors[cells[number].method],
            number if are_one else place,
        )
        for number, place, seed, made in found[:_MAX_CURVES]
    ]
    keys = [
        (side.label, Curve(label="", color=colors[cell.method], points=(), dash=are_one * n).style)
        for n, (side, cell) in enumerate(zip(sides, cells, strict=True))
    ]
    left_out = max(len(found) - _MAX_CURVES, 0)
    return chart_of("loss by step", keys, curves, left_out=left_out)


def _loss_curve(label: str, points: CurvePoints, color: str, dash: int) -> Curve:
    titles = loss_titles(label, points)
    return Curve(label=label, color=color, points=points, dash=dash, titles=titles, sort="loss")


def charts_of_section(
    store: Store, losses: LossReader, section: Section, colors: Mapping[str, str]
) -> Iterator[Chart]:
    """Yields the losses of the trainings behind a benchmark's cells, in the methods' colors.

    The transfers come first, then the stages before them, each sort in a drawing of its own.

    Args:
      store: the store of the trainings.
      losses: reader of their losses.
      section: the benchmark.
      colors: method -> CSS class of its color, as of `method_colors`.
    """
    keys = [(method, colors[method]) for method in section.methods]
    for sort, trainings in trainings_by_sort(store, section).items():
        drawn = collections.Counter[str]()
        curves = []
        for group, made in trainings[:_MAX_CURVES]:
            # A stage that several methods rest on has the color of the one that it trained.
            own = labels_of(made).method
            method = own if own in colors else section.methods[group]
            points = losses.points(made.key)
            curves.append(_loss_curve(made.name, points, colors[method], drawn[method]))
            drawn[method] += 1
        left_out = max(len(trainings) - _MAX_CURVES, 0)
        chart = chart_of(f"{sort}: loss by step", keys, curves, left_out=left_out)
        if chart is not None:
            yield chart


def trainings_by_sort(
    store: Store, section: Section
) -> Mapping[str, Sequence[tuple[int, Manifest]]]:
    """Returns the trainings behind a benchmark's cells by sort, the transfers first.

    Each is a pair: the place in `section.methods` of the first method that rests on it, and its
    checkpoint.
    """
    # A method's checkpoints are shared by its budgets, and stages by seeds and methods: each
    # training counts once.
    #
    #   scores ─▶ predictions ─▶ transfer ─▶ init: intermediary ─▶ init: stage1
    by_sort: dict[str, dict[str, tuple[int, Manifest]]] = {}
    for group, method in enumerate(section.methods):
        cells = [cell for cell in section.cells if cell.method == method and cell.scores]
        for score in cells[0].scores if cells else ():
            for made in _checkpoint_behind_scores(store, score.artifact):
                while made is not None:
                    by_sort.setdefault(labels_of(made).action, {}).setdefault(
                        made.key, (group, made)
                    )
                    made = _init_checkpoint(store, made)
    return {sort: [*trainings.values()] for sort, trainings in by_sort.items()}


def _checkpoint_behind_scores(store: Store, scores: str) -> Iterator[Manifest]:
    """Yields the checkpoint behind some scores; nothing if an artifact on the way is not there."""
    try:
        predictions = store.get_cached(scores).manifest.inputs["predictions"]
        manifest = store.get_cached(predictions.key).manifest
        yield trained_checkpoint(manifest, store.get_cached)
    except (KeyError, ValueError):  # Deleted by `gc`; or a key that this version does not make.
        return


def _init_checkpoint(store: Store, made: Manifest) -> Manifest | None:
    try:
        return store.get_cached(made.inputs["init"].key).manifest
    except KeyError:
        return None


def run_differences(first: ScoredRun, second: ScoredRun) -> list[tuple[str, Any, Any]]:
    """Returns (path, value, value) of each value that the configs of two runs differ in."""
    found = config_differences(first.record["config"], second.record["config"])
    return [(path, was, now) for path, (was, now) in found.items()]
