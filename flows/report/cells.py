"""The parts of a report: scores of single runs, the plan, and the cells they become."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from flows.report.items import Items
from flows.report.spread import LEVEL, holm_correction

CHANCE = "chance/"
"""Prefix of the role of a report's input that holds a benchmark's chance score."""

SCREENED = "screened/"
"""Prefix of the role of a screening, which lists the evaluation pictures found in a corpus."""


NUM_ERRORS = 3.0
"""Number of standard errors by which a mean must exceed chance to count as above it."""

NO_BUDGET = 0
"""Stands in a budget's place for models of other systems, which log no number of soft tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellKey:
    """The key of one score in a study: benchmark, method, budget [tokens] and transfer seed."""

    benchmark: str
    method: str
    budget: int
    seed: int

    def __str__(self) -> str:
        return f"{self.cell}/{self.seed}"

    @property
    def cell(self) -> str:
        """Name of the table's cell, which all seeds share."""
        return f"{self.benchmark}/{self.method}/{self.budget}"

    @classmethod
    def of_role(cls, role: str) -> "CellKey | None":
        """Returns the key whose `str` is the role of a report's input; None for other roles."""
        # Other roles, "chance/chartqa" and "screened/web", have fewer parts.
        match role.split("/"):
            case [benchmark, method, budget, seed] if budget.isdigit() and seed.isdigit():
                return cls(benchmark=benchmark, method=method, budget=int(budget), seed=int(seed))
            case _:
                return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreOrigin:
    """The circumstances a score was made in, which decide whether scores may be averaged.

    Attributes:
      data: digest of the evaluation data: its split, its prompts and its pictures.
      decoding: settings that answers were decoded and scored with, as canonical JSON.
      platform: versions of the libraries and kind of accelerator, in training and in evaluation.
      cpu: models of the processors, in training and in evaluation.
    """

    data: str
    decoding: str
    platform: str
    cpu: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """The score of one checkpoint on one benchmark at one budget.

    Attributes:
      score: the score, 0–100 (CIDEr may exceed 100).
      metric: name of the metric; one per benchmark.
      artifact: key of the scores artifact that has the score and its items.
      items: score of each item, by source; empty if unknown.
      plain: whether the items' values are their own scores, see `items_reader.ItemsReader`.
      accepted: whether it rests on an artifact that was kept although its code has changed since.
      bfloat16: whether it was decoded from parameters that were kept in bfloat16.
      origin: the circumstances it was made in; None if unknown.
      answer_ms: measured time of an answer within a whole batch [ms]; None if unknown.
    """

    benchmark: str
    method: str
    budget: int
    seed: int
    score: float
    metric: str
    artifact: str
    accepted: bool = False
    bfloat16: bool = False
    origin: "ScoreOrigin | None" = None
    answer_ms: float | None = None
    items: Items = dataclasses.field(default_factory=dict, repr=False)
    plain: bool = True

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise ValueError(
                f"score must be finite, got {self.score} for {self.benchmark}/{self.method}/"
                f"{self.budget} seed {self.seed}; leave a missing score out instead."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one prompt for a method at a budget, computed by `model.analysis.flops`.

    Attributes:
      benchmarks: benchmarks whose prompts have this size.
      num_images: images or frames of a prompt.
      tflops: compute of one prefill [1e12 FLOPs].
      kv_mb: size of its key-value cache [2**20 bytes].
    """

    benchmarks: tuple[str, ...]
    method: str
    budget: int
    num_images: int
    tflops: float
    kv_mb: float

    @property
    def tokens(self) -> int:
        """Number of soft tokens in a prompt."""
        return self.num_images * self.budget


class InView:
    """What belongs to one view of a study: a backbone at a resolution."""

    resolution: int | None
    backbone: str | None

    @property
    def view(self) -> tuple[int | None, str | None]:
        """The resolution and the backbone; each is None where there is one only."""
        return self.resolution, self.backbone

    @property
    def view_text(self) -> str:
        """Both in words, "448 px, siglip2+gemma3"; "" where there is one of each."""
        pixels = f"{self.resolution} px" if self.resolution else ""
        return ", ".join(part for part in (pixels, self.backbone) if part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(InView):
    """The cells that a study plans to fill; its order is the order of every table.

    Attributes:
      methods: rows of each table.
      budgets: columns of each table [tokens].
      seeds: transfer seeds, shared by all methods.
      reference: the method that retention is measured against.
      full_budget: the reference's budget; default the largest [tokens].
      budgets_of: method -> its budgets, for methods that run at some of them only; the reference
        runs at `full_budget` alone unless named here.
      groups: name -> benchmarks that are averaged, the widest group first; "all" is added to them.
      group_sizes: group -> number of benchmarks that the paper's group of that name has.
      blocks: benchmark -> the one group whose table of the paper has it.
      left_out: benchmarks that no mean and no comparison over benchmarks is over.
      pretrainings: number of the pretraining that each of `seeds` starts from; empty if all seeds
        share one.
      trainings: benchmark -> name of the training whose checkpoints it is scored with; a benchmark
        that is not named has a training to itself.
      costs: costs of the cells, as far as they are known.
      resolution: image side [pixels]; None if the study has one resolution only.
      also: plans of the study's other views. The names of their benchmarks end with the resolution
        and the backbone: "chartqa@448", "chartqa@siglip2+gemma3".
      backbone: name of the backbone; None if the study has one only.
      draws: elastic method -> the budgets that its trainings draw from, () for all that it serves;
        empty where all draw alike.
    """

    methods: tuple[str, ...]
    benchmarks: tuple[str, ...]
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    reference: str = "vanilla"
    full_budget: int | None = None
    budgets_of: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    group_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    blocks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    pretrainings: tuple[int, ...] = ()
    trainings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    costs: tuple[Cost, ...] = ()
    resolution: int | None = None
    also: tuple["Plan", ...] = ()
    backbone: str | None = None
    draws: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Two pretrainings with two seeds each: the seeds differ, since each pretraining has its
        # own.
        #
        #   seeds          48213  1977  30122  555
        #   pretrainings       0     0      1    1
        if len(self.pretrainings) not in (0, len(self.seeds)):
            raise ValueError(
                f"pretrainings must be one per seed, {len(self.seeds)}, or none, got "
                f"{len(self.pretrainings)}."
            )
        for field in ("methods", "benchmarks", "budgets", "seeds"):
            values = getattr(self, field)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{field} must be distinct and at least one, got {values}.")
        if self.full not in self.budgets:
            raise ValueError(f"full_budget must be one of {self.budgets}, got {self.full}.")
        named = {f"groups.{name}": members for name, members in self.groups.items()}
        for field, members in {**named, "left_out": self.left_out, "blocks": self.blocks}.items():
            if unknown := sorted(set(members) - set(self.benchmarks)):
                raise ValueError(f"{field} must name planned benchmarks, got {unknown}.")

    @property
    def full(self) -> int:
        """The reference's budget [tokens]."""
        return max(self.budgets) if self.full_budget is None else self.full_budget

    @property
    def pretraining_of(self) -> dict[int, int]:
        """Map from seed to the number of the pretraining that it starts from."""
        numbers = self.pretrainings or (0,) * len(self.seeds)
        return dict(zip(self.seeds, numbers, strict=True))

    @property
    def views(self) -> tuple["Plan", ...]:
        """The plans of all the study's views, this one first."""
        return (self, *self.also)

    @property
    def pretraining_in_any_view(self) -> dict[int, int]:
        """`pretraining_of`, with the seeds of the study's other views."""
        return {s: n for plan in self.views for s, n in plan.pretraining_of.items()}

    def runs(self, method: str, budget: int) -> bool:
        """Returns whether the study plans to score `method` at `budget`."""
        # The reference runs with all tokens: at one budget, unless the plan says otherwise.
        budgets = (self.full,) if method == self.reference else self.budgets
        return budget in self.budgets and budget in self.budgets_of.get(method, budgets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One method on one benchmark at one budget, over its seeds.

    Attributes:
      mean: mean score of the `n` seeds; None without any.
      std: sample standard deviation (ddof=1); None below two seeds.
      n: number of seeds that have a score.
      expected: number of planned seeds; 0 if the method does not run at this budget.
      retention: 100 · mean / the reference's mean at its full budget, both over the seeds that
        both have (paired); None without common seeds, or if the reference is not above chance or 0.
      low: lower end of the mean's 95 % interval (`interval.estimate_interval`); None if it has a
        single seed and its items are unknown.
      high: upper end of that interval.
      chance: score of the best guess that never sees pixels; None if unknown.
      error: standard error of mean - chance, over seeds and items (`margin.margin_errors`); None
        if the items are unknown.
      scores: one score per seed, in the order of the plan's seeds; empty if only the mean is known.
      unseen: mean over the items whose picture hygiene found in no training corpus. None if that
        leaves all items or none, the items are unknown, or the score is not their plain mean.
      cost: cost of a prompt; None if unknown.
      pretrainings: number of pretrainings that its seeds start from; 0 if unknown.
      items: number of items under each seed; 0 if unknown, or not the same for all seeds.
      pictures: number of pictures or videos that these items are about.
      retention_low: lower end of the retention's 95 % interval (`retention.py`); None if unknown.
      retention_high: upper end of that interval.
      seeds_known: whether `n` and `expected` are numbers of seeds. If not, the mean is over an
        unknown number of them, and counts as one of one.
      has_outlier_seeds: whether its seeds differ far more than the method's on other benchmarks.
    """

    benchmark: str
    method: str
    budget: int
    mean: float | None
    std: float | None
    n: int
    expected: int
    retention: float | None
    low: float | None
    high: float | None
    chance: float | None
    metric: str = ""
    error: float | None = None
    scores: tuple[Score, ...] = ()
    unseen: float | None = None
    cost: Cost | None = None
    pretrainings: int = 0
    items: int = 0
    pictures: int = 0
    retention_low: float | None = None
    retention_high: float | None = None
    seeds_known: bool = True
    has_outlier_seeds: bool = False

    @property
    def margin(self) -> float | None:
        """Mean - chance [points]; None if either is unknown."""
        return None if self.mean is None or self.chance is None else self.mean - self.chance

    @property
    def above_chance(self) -> bool | None:
        """Whether the margin is positive and at least three standard errors; None if unknown.

        A margin of 0 or less is False even if the standard error is unknown.
        """
        if self.margin is None:
            return None
        if self.margin <= 0:
            return False
        return None if self.error is None else self.margin >= NUM_ERRORS * self.error

    @property
    def answer_ms(self) -> float | None:
        """Measured time of an answer, the median over seeds [ms]; None if it was not measured."""
        measured = [s.answer_ms for s in self.scores if s.answer_ms is not None]
        return statistics.median(measured) if measured else None

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Keys of the scores behind the cell, in the order of the seeds."""
        return tuple(s.artifact for s in self.scores)

    @property
    def accepted(self) -> bool:
        """Whether a score rests on an artifact kept although its code has changed since."""
        return any(score.accepted for score in self.scores)

    @property
    def bfloat16(self) -> bool:
        """Whether a score was decoded from parameters that were kept in bfloat16."""
        return any(score.bfloat16 for score in self.scores)

    @property
    def complete(self) -> bool:
        """Whether every planned seed has a score, and at least one is planned."""
        return 0 < self.expected == self.n


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison(InView):
    """The difference between two methods at one budget, or of two budgets, by seed and item.

    Attributes:
      method, other: the two methods; the difference is the score of `method` - that of `other`.
      budget: budget of `method` [tokens].
      other_budget: budget of `other`; None for the same.
      benchmarks: benchmarks that the difference is the unweighted mean over; one in a section.
      mean: the difference [points].
      low: lower end of its 95 % interval; None with a single seed and unknown items.
      high: upper end of that interval.
      p: p-value of the difference; None like `low`.
      holm: p-value corrected for the number of benchmarks that these two are compared on; None in
        a comparison over several benchmarks.
      over: sources of variance in the interval: "seeds and items", "seeds", "items" or "".
      seeds: number of seeds that both methods have.
      pretrainings: number of pretrainings that these seeds start from.
      items: number of items under each seed; 0 if they are unknown.
      pictures: number of pictures or videos that these items are about.
      detectable: true difference that 80 of 100 such studies call, at 5 % over the number of
        benchmarks.
      better: number of benchmarks on which `method` is better, with `holm` up to 5 %.
      worse: number of benchmarks on which it is worse, likewise.
      resolution: image side [pixels]; None if the report holds one resolution only.
      backbone: name of the backbone; None if the report holds one only.
    """

    method: str
    other: str
    budget: int
    benchmarks: tuple[str, ...]
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    holm: float | None = None
    over: str = ""
    seeds: int = 0
    pretrainings: int = 1
    items: int = 0
    pictures: int = 0
    detectable: float | None = None
    better: int = 0
    worse: int = 0
    other_budget: int | None = None
    resolution: int | None = None
    backbone: str | None = None

    @property
    def stands(self) -> bool:
        """Whether it is significant when corrected for the number of benchmarks."""
        return self.holm is not None and self.holm <= LEVEL

    @property
    def sides(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Method and budget of both sides."""
        other_budget = self.budget if self.other_budget is None else self.other_budget
        return (self.method, self.budget), (self.other, other_budget)

    @property
    def reverse(self) -> "Comparison":
        """The same comparison, as the difference of the other method to this one."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        swapped = dataclasses.replace(
            self,
            method=self.other,
            other=self.method,
            mean=-self.mean,
            low=low,
            high=high,
            better=self.worse,
            worse=self.better,
        )
        if self.other_budget is None:
            return swapped
        return dataclasses.replace(swapped, budget=self.other_budget, other_budget=self.budget)

    @property
    def pair(self) -> str:
        """Names of the two methods, "parcel − mqt"; or with a budget, "parcel − parcel@256"."""
        at = "" if self.other_budget is None else f"@{self.other_budget}"
        return f"{self.method} − {self.other}{at}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section(InView):
    """All cells of one benchmark: a table of methods × budgets.

    Attributes:
      reference: the method that retention is measured against, at `full_budget` [tokens].
      cells: one cell per method and budget, method by method.
      group: name of the benchmark's group; "" if it has none.
      in_means: whether means and comparisons over benchmarks are over this one, too.
      resolution: image side [pixels]; None if the report holds one resolution only.
      comparisons: comparisons of every two methods that share a budget and a seed, where `method`
        is the later one of the two in the plan; then of each budget with the method's largest, and
        with the reference's.
      seen: number of items whose picture a training corpus holds.
      items: number of all items; 0 if unknown.
      backbone: name of the backbone; None if the report holds one only.
      baseline: the method that LaTeX and CSV have differences to; "" for none.
      without_question: score of the best one answer to all questions on a picture; None if unknown
        or if no picture has two questions.
    """

    benchmark: str
    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    reference: str
    full_budget: int
    metric: str
    chance: float | None
    cells: tuple[Cell, ...]
    group: str = ""
    in_means: bool = True
    resolution: int | None = None
    comparisons: tuple[Comparison, ...] = ()
    seen: int = 0
    items: int = 0
    backbone: str | None = None
    without_question: float | None = None
    baseline: str = ""

    @property
    def has_reference(self) -> bool:
        """Whether the reference is compared, without which there is no retention."""
        return self.reference in self.methods

    @property
    def title(self) -> str:
        """The benchmark's name without resolution and backbone, where these are shown apart."""
        return self.benchmark.removesuffix(f"@{self.backbone}").removesuffix(f"@{self.resolution}")

    def cell(self, method: str, budget: int) -> Cell:
        """Returns the cell of `method` at `budget`."""
        row = self.methods.index(method)
        return self.cells[row * len(self.budgets) + self.budgets.index(budget)]

    def peers(self, budget: int) -> list[str]:
        """Returns the methods whose scores at a budget are ranked among each other.

        The reference is what they are measured against, and not one of them. Models of other
        systems have no common budget to be measured at, so there it is.
        """
        apart = () if budget == NO_BUDGET else (self.reference,)
        return [method for method in self.methods if method not in apart]

    def place(self, cell: Cell) -> int:
        """Returns the cell's place among its `peers` as of `rank_values`: 1, 2, or 0 for others."""
        means = {
            method: peer.mean if peer.complete else None
            for method in self.peers(cell.budget)
            if (peer := self.cell(method, cell.budget)).expected
        }
        return rank_values(means).get(cell.method, 0)

    def difference(self, cell: Cell) -> Comparison | None:
        """Returns the difference of a cell to the baseline; None if it has none.

        It is to the baseline at the same budget; if there is none and the baseline is the
        reference, at its full one.
        """
        own = cell.method, cell.budget
        found = self.comparison(own, (self.baseline, cell.budget))
        if found is None and self.baseline == self.reference:
            found = self.comparison(own, (self.reference, self.full_budget))
        return found

    def comparison(self, first: tuple[str, int], other: tuple[str, int]) -> Comparison | None:
        """Returns the difference of a method at a budget to another; None if it is not compared."""
        for entry in self.comparisons:
            if entry.sides == (first, other):
                return entry
            if entry.sides == (other, first):
                return entry.reverse
        return None

    def stands_out(self, cell: Cell) -> bool:
        """Whether it is the best of its `peers`, and its difference to each of them stands."""
        peers = self.peers(cell.budget)
        against = [
            entry
            for entry in self.comparisons
            if entry.budget == cell.budget
            and entry.other_budget is None
            and cell.method in (entry.method, entry.other)
            and entry.method in peers
            and entry.other in peers
        ]
        return self.place(cell) == 1 and bool(against) and all(entry.stands for entry in against)


def standing_over_all(sections: Sequence[Section]) -> tuple[int, list[Comparison]]:
    """Returns how many comparisons a table holds, and those that stand when corrected over all."""
    entries = [entry for section in sections for entry in section.comparisons]
    chances = {str(place): c.p for place, c in enumerate(entries) if c.p is not None}
    corrected = holm_correction(chances)
    return len(chances), [entries[int(place)] for place, p in corrected.items() if p <= LEVEL]


def rank_values(values: Mapping[str, float | None]) -> dict[str, int]:
    """Returns name -> 1 for the best value and 2 for the second best; others are not there.

    Values count as tables show them, with one decimal: what reads the same has the same place, as
    in the paper. Of fewer than two values none is best.
    """
    shown = {name: round(value, 1) for name, value in values.items() if value is not None}
    if len(shown) < 2:
        return {}
    order = sorted(set(shown.values()), reverse=True)[:2]
    return {name: order.index(value) + 1 for name, value in shown.items() if value in order}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregate(InView):
    """Unweighted means over several benchmarks, for one method at one budget.

    Attributes:
      rows: number of benchmarks whose cell is complete and has a retention.
      expected: number of benchmarks the aggregate is made of.
      benchmarks: names of these benchmarks; empty if unknown.
      of: number of benchmarks that the paper's group of that name has; 0 if it is none of them.
      mean: mean score; None unless every benchmark's cell is complete.
      low, high: ends of that mean's 95 % interval; None like `Cell.low`.
      std: sample standard deviation of that mean over seeds; None if it is unknown.
      retention: mean retention; None unless `rows` is `expected`.
      retention_low, retention_high: ends of that retention's 95 % interval.
      partial: mean retention over the `rows`; None if there is none.
      seeds: number of seeds under each complete benchmark; 0 without any, or if unknown.
      pretrainings: number of pretrainings that these seeds start from; 0 if unknown.
      backbone: name of the backbone; None if the report holds one only.
    """

    name: str
    method: str
    budget: int
    rows: int
    expected: int
    mean: float | None
    retention: float | None
    partial: float | None
    benchmarks: tuple[str, ...] = ()
    of: int = 0
    std: float | None = None
    low: float | None = None
    high: float | None = None
    retention_low: float | None = None
    retention_high: float | None = None
    resolution: int | None = None
    seeds: int = 0
    pretrainings: int = 0
    backbone: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a study's tables, files and plots.

    Attributes:
      comparisons: comparisons of two methods over the benchmarks on which both have all seeds, if
        there are two or more.
      num_pretrainings: number of pretrainings behind the scores; with one, the intervals hold for
        its checkpoints only. 0 if unknown.
      notes: remarks on scores that were left out or mixed, one line each.
    """

    sections: tuple[Section, ...]
    aggregates: tuple[Aggregate, ...]
    comparisons: tuple[Comparison, ...] = ()
    num_pretrainings: int = 1
    notes: tuple[str, ...] = ()
