"""Compares budgets chosen per input with a random mixture of budgets of the same mean cost.

    score ^        o 256      --- a mixture: each item at one of two budgets, by lot
          |   _--o 64         ... the router, from threshold 1 (all at the least) to 0
          | o 16
          +----------> mean tokens, log2

Of all mixtures of that mean cost, the best one is taken: that of the two budgets whose line is
highest there. Nothing that ignores the input can score more, so a router that knows nothing has no
gain. The mixture's expected score follows from the items' scores at each budget; nothing is drawn.
The two budgets are picked by the same scores, which favours the mixture a little.
"""

import dataclasses
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flows.report import latex
from flows.report.cells import Plan, Report
from flows.report.interval import Interval, Paired, estimate
from flows.report.items import by_source
from flows.report.markdown import number, table
from flows.report.plot import COLORS, DPI, PANEL_INCHES, draw_legend, style
from flows.report.render import to_csv_lines
from infra.store.store import Artifact
from model.router.files import ANSWERS, NEEDS

_ROLE = "routed/chosen"  # A whole role has five parts, so it is not taken for a cell's, of four.
_MOST_THRESHOLDS = 200
"""Largest number of distinct chances used as thresholds of a curve; above, their quantiles."""

COLUMNS = (
    "over",
    "modality",
    "method",
    "seeds",
    "tokens",
    "score",
    "mixture",
    "gain",
    "gain_low",
    "gain_high",
    "area",
    "area_low",
    "area_high",
    "other_seed",
    "other_seed_low",
    "other_seed_high",
    "oracle",
    "oracle_other_seed",
)

NOTES = """\
Tokens and score at the router's own threshold, which was chosen before any of these items was \
seen. Gain is score − that of the best random mixture of budgets at the same mean tokens; \
area is the gain's mean over all thresholds, each doubling of tokens counting alike. On another \
seed is the area when the budgets that one seed's router chose are scored with the next seed's \
answers. The oracle takes the smallest of each item's best budgets. Its gain is given with its own \
seed's answers, which includes luck, and with the next seed's answers. 95 % intervals are over \
seeds and items.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutedKey:
    """The key of an evaluation at chosen budgets: benchmark, method and transfer seed."""

    benchmark: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{_ROLE}/{self.benchmark}/{self.method}/{self.seed}"

    @classmethod
    def of_role(cls, role: str) -> "RoutedKey | None":
        """Returns the key whose `str` is the role of a report's input; None for other roles."""
        match role.split("/"):
            case ["routed", "chosen", benchmark, method, seed]:
                return cls(benchmark=benchmark, method=method, seed=int(seed))
            case _:
                return None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """One checkpoint's items: the output of its router for each, and the score at each budget.

    Attributes:
      budgets: budgets, ascending [tokens per image].
      sources: picture of each item, in the order of the items' ids.
      need: predicted chance that a budget is not enough, for each budget but the largest.
      chosen: index into `budgets` of the budget chosen at the router's own threshold.
      scores: score at each budget, 0-1.
    """

    budgets: tuple[int, ...]
    sources: tuple[str, ...]
    need: Float[np.ndarray, "N K1"]
    chosen: Int[np.ndarray, " N"]
    scores: Float[np.ndarray, "N K"]

    @classmethod
    def read(cls, path: Path, budgets: tuple[int, ...]) -> "Routed":
        """Reads a file that `model.eval.routed.route` wrote."""
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return cls(
            budgets=budgets,
            sources=tuple(row["source_sha256"] for row in rows),
            need=np.array([row["need"] for row in rows]),
            chosen=np.array([budgets.index(row["budget"]) for row in rows]),
            scores=np.array([row["scores"] for row in rows], np.float64),
        )

    def scored_by(self, other: "Routed") -> "Routed":
        """Returns the same choices, scored with another checkpoint's answers to the same items."""
        return dataclasses.replace(self, scores=other.scores)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """The gain of choosing budgets per input, for a method on one benchmark or over several.

    Attributes:
      over: name of the benchmark, or "all".
      modality: "image" or "video".
      seeds: number of seeds.
      tokens: mean budget chosen [tokens per image].
      score: mean score at the chosen budgets, 0-100.
      mixture: score of the best random mixture of budgets with the same mean cost, 0-100.
      gain: score - mixture [points].
      area: mean gain over all thresholds [points].
      other: `area` when one seed's choices are scored with the next seed's answers; None with one
        seed.
      oracle: gain of an oracle, which takes each item's cheapest best budget, over the mixture of
        the oracle's mean cost [points].
      oracle_other: `oracle` scored with the next seed's answers; None with one seed.
      curve: (mean tokens, score) from threshold 1 to 0, averaged over seeds.
      fixed: pairs of a budget and its score, averaged over seeds.
    """

    over: str
    modality: str
    method: str
    seeds: int
    tokens: float
    score: float
    mixture: float
    gain: Interval
    area: Interval
    other: Interval | None
    oracle: float
    oracle_other: float | None
    curve: tuple[tuple[float, float], ...] = ()
    fixed: tuple[tuple[int, float], ...] = ()


def judge(plan: Plan, artifacts: Mapping[str, Artifact], report: Report) -> list[Judged]:
    """Returns the judgement of every benchmark and method that has budgets chosen per input.

    Judgements over several benchmarks follow, images and video apart. Seeds whose scores the report
    leaves out are left out here, too.

    Args:
      plan: the study's plan.
      artifacts: role -> input artifact of the report.
      report: report of the same artifacts.
    """
    cells = [cell for section in report.sections for cell in section.cells]
    told = {(one.benchmark, one.method, one.seed) for cell in cells for one in cell.scores}
    found: dict[tuple[str, str], dict[int, Routed]] = {}
    for role, artifact in artifacts.items():
        key = RoutedKey.of_role(role)
        if key and (key.benchmark, key.method, key.seed) in told:
            read = Routed.read(artifact.path / NEEDS, _budgets(artifact))
            found.setdefault((key.benchmark, key.method), {})[key.seed] = read
    return judged(plan, found)


def judged(plan: Plan, found: Mapping[tuple[str, str], Mapping[int, Routed]]) -> list[Judged]:
    """Returns the judgements of `judge`; `found` is (benchmark, method) -> seed -> items."""
    rows: list[tuple[Judged, Mapping[str, Paired], list[int]]] = []
    for one in (plan, *plan.also):
        for benchmark in one.benchmarks:
            for method in one.methods:
                runs = found.get((benchmark, method), {})
                seeds = [seed for seed in one.seeds if seed in runs]
                if seeds:
                    ordered = [runs[seed] for seed in seeds]
                    draws = [one.pretraining_of[seed] for seed in seeds]
                    paired = _paired(ordered, one.trainings.get(benchmark, benchmark))
                    modality = _modality(one, benchmark)
                    rows.append(
                        (_row(benchmark, modality, method, ordered, paired, draws), paired, draws)
                    )
    return [row for row, *_ in rows] + list(_over(rows))


def _over(
    rows: Sequence[tuple[Judged, Mapping[str, Paired], list[int]]],
) -> Iterator[Judged]:
    for key in dict.fromkeys((row.modality, row.method) for row, *_ in rows):
        same = [entry for entry in rows if (entry[0].modality, entry[0].method) == key]
        draws = same[0][2]
        if len(same) < 2 or any(entry[2] != draws for entry in same):
            continue
        each = [row for row, *_ in same]

        def mean(name: str, each: Sequence[Judged] = each) -> float:
            return float(np.mean([getattr(row, name) for row in each]))

        def over(name: str, same: Any = same, draws: Any = draws) -> Interval:
            return estimate([paired[name] for _, paired, _ in same], draws)

        several = all(row.other for row in each)
        yield Judged(
            over="all",
            modality=key[0],
            method=key[1],
            seeds=len(draws),
            tokens=mean("tokens"),
            score=mean("score"),
            mixture=mean("mixture"),
            gain=over("gain"),
            area=over("area"),
            other=over("other") if several else None,
            oracle=mean("oracle"),
            oracle_other=mean("oracle_other") if several else None,
        )


def _row(
    benchmark: str,
    modality: str,
    method: str,
    runs: Sequence[Routed],
    paired: Mapping[str, Paired],
    draws: Sequence[int],
) -> Judged:
    tokens = float(np.mean([_tokens(run, run.chosen).mean() for run in runs]))
    score = 100 * float(np.mean([_taken(run, run.chosen).mean() for run in runs]))
    gain = estimate([paired["gain"]], draws)
    several = len(runs) > 1
    others = [run.scored_by(other) for run, other in _with_next(runs)]
    best = [run.scores.argmax(axis=1) for run in runs]  # Of equal budgets, the smallest.
    first = runs[0]
    return Judged(
        over=benchmark,
        modality=modality,
        method=method,
        seeds=len(runs),
        tokens=tokens,
        score=score,
        mixture=score - gain.mean,
        gain=gain,
        area=estimate([paired["area"]], draws),
        other=estimate([paired["other"]], draws) if several else None,
        oracle=_mean_gain(runs, best),
        oracle_other=_mean_gain(others, best) if several else None,
        curve=_mean_curve(runs),
        fixed=tuple(
            (budget, 100 * float(np.mean([run.scores[:, k].mean() for run in runs])))
            for k, budget in enumerate(first.budgets)
        ),
    )


def _paired(runs: Sequence[Routed], training: str) -> dict[str, Paired]:
    """Returns gains and areas, with their items by seed and picture, for the intervals."""
    others = [run.scored_by(other) for run, other in _with_next(runs)]

    def of(rows: Sequence[Routed], values: Callable[[Routed], np.ndarray]) -> Paired:
        items = [by_source(zip(run.sources, values(run).tolist(), strict=True)) for run in rows]
        means = [100 * float(values(run).mean()) for run in rows]
        return Paired.of(means, items, training)

    return {
        "gain": of(runs, lambda run: gains(run, run.chosen)),
        "area": of(runs, areas),
        "other": of(others, areas),
    }


def gains(run: Routed, places: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Returns each item's gain over the best random mixture of the same mean cost, in 0-1 units.

    The mixture's mean cost is that of the items, so an item that costs more moves the mixture up
    its line. That shift is subtracted from the item's gain. The shifts sum to 0, so the mean gain
    stays the same, and the spread over items becomes that of the difference.

    Args:
      run: the items.
      places: index of the budget that each item is given.
    """
    cost = _tokens(run, places)
    mean = float(cost.mean())
    lower, upper = _beside(run.budgets, run.scores.mean(axis=0), mean)
    low, high = run.budgets[lower], run.budgets[upper]
    share = (mean - low) / (high - low)
    mixture = (1 - share) * run.scores[:, lower] + share * run.scores[:, upper]
    slope = (run.scores[:, upper] - run.scores[:, lower]).mean() / (high - low)
    return _taken(run, places) - mixture - slope * (cost - mean)


def _beside(budgets: Sequence[int], scores: Sequence[float], mean: float) -> tuple[int, int]:
    """Returns the indices of the two budgets whose mixture scores most at a mean cost."""

    def score(pair: tuple[int, int]) -> float:
        low, high = pair
        share = (mean - budgets[low]) / (budgets[high] - budgets[low])
        return (1 - share) * scores[low] + share * scores[high]

    pairs = itertools.combinations(range(len(budgets)), 2)
    return max((p for p in pairs if budgets[p[0]] <= mean <= budgets[p[1]]), key=score)


def mixture_at(budgets: Sequence[int], scores: Sequence[float], mean: float) -> float:
    """Returns the score of the best mixture of budgets at a mean cost [tokens]."""
    low, high = _beside(budgets, scores, mean)
    return float(np.interp(mean, (budgets[low], budgets[high]), (scores[low], scores[high])))


def areas(run: Routed) -> Float[np.ndarray, " N"]:
    """Returns each item's mean gain over all thresholds, in 0-1 units.

    It is the area between the router's curve and the best mixtures, over log2 of the mean tokens,
    divided by the width.
    """
    points = [(math.log2(_tokens(run, p).mean()), gains(run, p)) for p in _choices(run)]
    x = np.array([at for at, _ in points])
    steps = np.diff(x)
    weights = np.zeros(len(x))  # Weights of the trapezoid rule.
    weights[:-1] += steps / 2
    weights[1:] += steps / 2
    width = math.log2(run.budgets[-1] / run.budgets[0])
    return weights @ np.stack([gain for _, gain in points]) / width


def _budgets(artifact: Artifact) -> tuple[int, ...]:
    """Returns the budgets that a routed artifact chose from, ascending."""
    roles = (role for role in artifact.manifest.inputs if role.startswith(ANSWERS))
    return tuple(sorted(int(role.removeprefix(ANSWERS)) for role in roles))


def _choices(run: Routed) -> list[np.ndarray]:
    """Returns the chosen indices at falling thresholds, from all smallest to all largest."""
    values = np.unique(run.need)
    if len(values) > _MOST_THRESHOLDS:
        values = np.quantile(values, np.linspace(0, 1, _MOST_THRESHOLDS))
    thresholds = [1.0, *values[::-1].tolist(), -1.0]
    # The need falls with the budget, so the count is the index of the smallest sufficient budget.
    return [(run.need > threshold).sum(axis=1) for threshold in thresholds]


def _mean_curve(runs: Sequence[Routed]) -> tuple[tuple[float, float], ...]:
    budgets = runs[0].budgets
    grid = np.linspace(math.log2(budgets[0]), math.log2(budgets[-1]), 65)
    lines = []
    for run in runs:
        choices = _choices(run)
        x = [math.log2(_tokens(run, p).mean()) for p in choices]
        lines.append(np.interp(grid, x, [100 * _taken(run, p).mean() for p in choices]))
    return tuple(zip((2**grid).tolist(), np.mean(lines, axis=0).tolist(), strict=True))


def _with_next(runs: Sequence[Routed]) -> list[tuple[Routed, Routed]]:
    return list(zip(runs, [*runs[1:], runs[0]], strict=True))


def _mean_gain(runs: Sequence[Routed], places: Sequence[np.ndarray]) -> float:
    each = [gains(run, at).mean() for run, at in zip(runs, places, strict=True)]
    return 100 * float(np.mean(each))


def _tokens(run: Routed, places: np.ndarray) -> Float[np.ndarray, " N"]:
    return np.array(run.budgets, np.float64)[places]


def _taken(run: Routed, places: np.ndarray) -> Float[np.ndarray, " N"]:
    return run.scores[np.arange(len(places)), places]


def _modality(plan: Plan, benchmark: str) -> str:
    """Returns "video" for prompts of three images or more; a pair of images is no video."""
    images = next((c.num_images for c in plan.costs if benchmark in c.benchmarks), 1)
    return "video" if images > 2 else "image"


def to_csv(rows: Sequence[Judged]) -> str:
    """Returns one CSV line per judgement; empty fields are unknown."""
    lines = []
    for row in rows:
        values = vars(row) | {"other_seed": None, "oracle_other_seed": row.oracle_other}
        for name, found in (("gain", row.gain), ("area", row.area), ("other_seed", row.other)):
            ends = (found.mean, found.low, found.high) if found else (None, None, None)
            values |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        lines.append(values)
    return to_csv_lines(COLUMNS, lines)


_HEAD = (
    "over",
    "of",
    "method",
    "tokens @auto",
    "score @auto",
    "mixture",
    "gain",
    "area",
    "area on another seed",
    "oracle",
    "oracle on another seed",
)
_LEFT = (0, 1, 2)
"""Columns of `_HEAD` that hold words."""


def to_markdown(rows: Sequence[Judged]) -> str:
    """Returns the report's section on budgets chosen per input."""
    return f"## Budgets chosen per input\n\n{table(_HEAD, _lines(rows), left=_LEFT)}\n{NOTES}"


def to_latex(rows: Sequence[Judged]) -> str:
    """Returns the table of `to_markdown` as a tabular, for after those of the scores."""
    return latex.table(_HEAD, _lines(rows), left=_LEFT)


SECTIONS = {"md": to_markdown, "latex": to_latex}
"""Format of a results table -> function that returns what follows its tables of scores."""


def _lines(rows: Sequence[Judged]) -> list[list[str]]:
    return [
        [
            row.over,
            row.modality,
            row.method,
            number(row.tokens),
            number(row.score),
            number(row.mixture),
            _interval(row.gain),
            _interval(row.area),
            _interval(row.other),
            number(row.oracle),
            number(row.oracle_other),
        ]
        for row in rows
    ]


def _interval(found: Interval | None) -> str:
    if found is None or found.low is None or found.high is None:
        return number(found.mean if found else None)
    return f"{found.mean + 0.0:+.1f} [{number(found.low)}, {number(found.high)}]"


def plot_png(rows: Sequence[Judged]) -> bytes:
    """Returns a PNG with a panel per benchmark and method: the router's curve and the mixtures."""
    drawn = [row for row in rows if row.curve]
    with style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        columns = min(4, len(drawn))
        lines = math.ceil(len(drawn) / columns)
        size = (PANEL_INCHES[0] * max(columns, 1.5), PANEL_INCHES[1] * lines + 0.45)
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        panels = [*figure.subplots(lines, columns, squeeze=False).flat]
        for axes, row in zip(panels, drawn, strict=False):
            budgets = [budget for budget, _ in row.fixed]
            ends = budgets[0], budgets[-1]
            grid = np.geomspace(*ends, 200)
            scores = [score for _, score in row.fixed]
            mixture = [mixture_at(budgets, scores, float(np.clip(at, *ends))) for at in grid]
            look = {"color": "#767676", "linestyle": (0, (5, 2.5)), "linewidth": 1.3}
            axes.plot(grid, mixture, label="random mixture", **look)
            axes.plot(*zip(*row.fixed, strict=True), "o", color="#767676", label="fixed budgets")
            axes.plot(*zip(*row.curve, strict=True), color=COLORS[0], label="chosen per input")
            axes.plot([row.tokens], [row.score], "*", color=COLORS[1], label="auto", markersize=10)
            axes.set_xscale("log", base=2)
            axes.set_xticks(budgets, [str(budget) for budget in budgets])
            axes.minorticks_off()
            axes.set_title(f"{row.method}, {row.over}")
            axes.set_xlabel("mean tokens per image")
            axes.set_ylabel("score")
        for axes in panels[len(drawn) :]:
            axes.set_axis_off()
        draw_legend(figure, columns)
        png = io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
        return png.getvalue()
