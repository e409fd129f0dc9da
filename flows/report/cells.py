"""The parts of a report: scores of single runs, the plan, and the cells they become."""

import dataclasses
import math
import statistics
from collections.abc import Mapping

from flows.report.items import NUM_ERRORS, Items
from flows.report.spread import LEVEL
from infra.store.digest import UNLESS_DEFAULT

CHANCE = "chance/"
"""Begins the role of a report's input that is a row's chance."""

SCREENED = "screened/"
"""Begins the role of a screening, which says what evaluation pictures a corpus holds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellKey:
    """Which number of a study: a benchmark's row, a method, a budget [tokens], a transfer seed."""

    benchmark: str
    method: str
    budget: int
    seed: int

    def __str__(self) -> str:
        return f"{self.cell}/{self.seed}"

    @property
    def cell(self) -> str:
        """Names the cell of the table: all seeds share it."""
        return f"{self.benchmark}/{self.method}/{self.budget}"

    @classmethod
    def of_role(cls, role: str) -> "CellKey | None":
        """Returns the cell whose `str` is the role of a report's input; None if it is no cell."""
        match role.split("/"):
            case [benchmark, method, budget, seed] if budget.isdigit():
                return cls(benchmark=benchmark, method=method, budget=int(budget), seed=int(seed))
            case _:
                return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """How a score came about.

    Attributes:
      data: digest of the evaluation data: its split, its prompts and its pictures.
      decoding: how answers were decoded and scored.
      platform: versions of the libraries and kind of accelerator that trained and evaluated.
      cpu: models of the processors that did.
    """

    data: str
    decoding: str
    platform: str
    cpu: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """The score of one checkpoint on one benchmark at one budget.

    Attributes:
      score: 0–100 (CIDEr may exceed 100).
      metric: name of the metric; one per benchmark.
      artifact: key of the predictions artifact the score was computed from.
      items: its items; empty where they are unknown.
      plain: whether the items' values are their own scores, see `items.read_items`.
      accepted: whether it rests on an artifact that was kept although its code has changed since.
      made: how it came about, which decides what it may be averaged with; None if unknown.
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
    made: "Made | None" = None
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
    """What one prompt costs a method at a budget, by `model.analysis.flops`.

    Attributes:
      benchmarks: those whose prompts are of this size.
      num_images: images or frames of a prompt.
      tflops: of one prefill [1e12 FLOPs].
      kv_mb: its key-value cache [2**20 bytes].
    """

    benchmarks: tuple[str, ...]
    method: str
    budget: int
    num_images: int
    tflops: float
    kv_mb: float

    @property
    def tokens(self) -> int:
        """Soft tokens of a prompt."""
        return self.num_images * self.budget


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Which cells a study means to fill; its order is the order of every table.

    Attributes:
      methods: rows of each table.
      budgets: columns of each table [tokens].
      seeds: shared by all methods.
      reference: the method that retention is measured against.
      full_budget: the reference's budget; default the largest [tokens].
      budgets_of: budgets of the methods that do not run at all of them; the reference runs
        at `full_budget` alone unless named here.
      groups: name -> benchmarks whose retentions are averaged; "all" is added when there are
        two benchmarks or more.
      pretrainings: number of the pretraining that each of `seeds` starts from; none: they share it.
      trainings: benchmark -> name of the training whose checkpoints it is scored with; one that is
        not named has its own.
      costs: of the cells; one that is not among them has none.
      resolution: side of its images, where a study has several [pixels].
      also: the plans of the study's other resolutions. Their rows have names of their own, which
        end with the resolution: "chartqa@448".
    """

    methods: tuple[str, ...]
    benchmarks: tuple[str, ...]
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    reference: str = "vanilla"
    full_budget: int | None = None
    budgets_of: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    pretrainings: tuple[int, ...] = ()
    trainings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    costs: tuple[Cost, ...] = ()
    resolution: int | None = dataclasses.field(default=None, metadata=UNLESS_DEFAULT)
    also: tuple["Plan", ...] = dataclasses.field(default=(), metadata=UNLESS_DEFAULT)

    def __post_init__(self) -> None:
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
        for name, members in self.groups.items():
            unknown = sorted(set(members) - set(self.benchmarks))
            if unknown:
                raise ValueError(f"groups.{name} must name planned benchmarks, got {unknown}.")

    @property
    def full(self) -> int:
        """The reference's budget [tokens]."""
        return max(self.budgets) if self.full_budget is None else self.full_budget

    @property
    def pretraining_of(self) -> dict[int, int]:
        """Seed -> number of the pretraining that it starts from."""
        numbers = self.pretrainings or (0,) * len(self.seeds)
        return dict(zip(self.seeds, numbers, strict=True))

    def runs(self, method: str, budget: int) -> bool:
        """Whether the study means to score `method` at `budget`."""
        own = (self.full,) if method == self.reference else self.budgets
        return budget in self.budgets and budget in self.budgets_of.get(method, own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One method on one benchmark at one budget, over its seeds.

    Attributes:
      mean: mean score of the `n` seeds there are; None if there is none.
      std: sample standard deviation (ddof=1); None below two seeds.
      n: seeds there are.
      expected: seeds planned; 0 if the method does not run at this budget.
      retention: 100 · mean / the reference's mean at its full budget, both over the seeds that
        both have (paired); None if there are none, or the reference is not above chance or 0.
      low: lower end of the mean's 95 % interval (`interval.estimate`); None if nothing tells.
      high: its upper end.
      chance: score of the best guess that never sees pixels; None if unknown.
      error: standard error of mean - chance, over seeds and items (`items.standard_error`); None
        if the items are unknown.
      scores: one per seed, in the order of the seeds; empty if only the mean is known.
      unseen: mean over the items whose picture no training corpus holds, as far as hygiene found;
        None where it found none, the items are unknown, or the score is no plain mean of theirs.
      cost: of a prompt; None if unknown.
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

    @property
    def margin(self) -> float | None:
        """How far the mean lies above chance; None if either is unknown."""
        return None if self.mean is None or self.chance is None else self.mean - self.chance

    @property
    def above_chance(self) -> bool | None:
        """Whether the margin is positive and at least three standard errors; None if unknown."""
        if self.margin is None:
            return None
        if self.margin <= 0:
            return False
        return None if self.error is None else self.margin >= NUM_ERRORS * self.error

    @property
    def answer_ms(self) -> float | None:
        """Measured time of an answer, the median over seeds [ms]; None if nobody measured it."""
        measured = [s.answer_ms for s in self.scores if s.answer_ms is not None]
        return statistics.median(measured) if measured else None

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Keys of the predictions behind the cell, in the order of the seeds."""
        return tuple(s.artifact for s in self.scores)

    @property
    def accepted(self) -> bool:
        """Whether a score of it rests on an artifact kept although its code has changed since."""
        return any(score.accepted for score in self.scores)

    @property
    def complete(self) -> bool:
        """Whether every planned seed is there."""
        return 0 < self.expected == self.n


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference between two methods at one budget, paired by seed and item.

    Attributes:
      method, other: it is the first one's score - the second one's.
      benchmarks: those it is the unweighted mean over; one in a section.
      mean: the difference [points].
      low: lower end of its 95 % interval; None if nothing tells.
      high: its upper end.
      p: the chance of so large a difference between methods that are alike; None likewise.
      holm: the same, corrected for the benchmarks that these methods are compared on.
      over: what the interval counts: "seeds and items", "seeds", "items" or "".
      better: benchmarks of all on which the first method is better, by `holm` up to 5 %.
      worse: those on which it is worse.
      resolution: as in `Section`.
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
    better: int = 0
    worse: int = 0
    resolution: int | None = None

    @property
    def is_sure(self) -> bool:
        """Whether it stands when corrected for the number of benchmarks."""
        return self.holm is not None and self.holm <= LEVEL

    @property
    def pair(self) -> str:
        """Names the methods: "parcel − mqt"."""
        return f"{self.method} − {self.other}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """All cells of one benchmark: a table of methods × budgets.

    Attributes:
      reference: the method that retention is measured against, at `full_budget` [tokens].
      cells: one per method and budget, method by method.
      group: name of the benchmark's group; "" if it has none.
      resolution: image side [pixels]; None if the report holds one resolution only.
      comparisons: of every two methods that share a budget and a seed, the later one first.
      seen: items whose picture a training corpus holds.
      items: all of them; 0 where they are unknown.
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
    resolution: int | None = None
    comparisons: tuple[Comparison, ...] = ()
    seen: int = 0
    items: int = 0

    @property
    def title(self) -> str:
        """Names the benchmark where its resolution is told beside it."""
        return self.benchmark.removesuffix(f"@{self.resolution}")

    def cell(self, method: str, budget: int) -> Cell:
        """Returns the cell of `method` at `budget`."""
        row = self.methods.index(method)
        return self.cells[row * len(self.budgets) + self.budgets.index(budget)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Mean over several benchmarks of one method at one budget, every benchmark counting alike.

    Attributes:
      rows: benchmarks whose cell is complete and has a retention.
      expected: benchmarks the aggregate is made of.
      mean: unweighted mean of the scores; None unless all rows are there.
      retention: unweighted mean of the rows' retentions; None unless all rows are there.
      partial: the same over the rows there are; None if there is none.
    """

    name: str
    method: str
    budget: int
    rows: int
    expected: int
    mean: float | None
    retention: float | None
    partial: float | None
    resolution: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Everything the tables, files and plots of a study show.

    Attributes:
      comparisons: over the benchmarks on which both methods have all seeds, where there are two or
        more.
      num_pretrainings: pretrainings behind the scores; with one, all is said of its checkpoints.
      notes: what was left out or mixed, in a line each.
    """

    sections: tuple[Section, ...]
    aggregates: tuple[Aggregate, ...]
    comparisons: tuple[Comparison, ...] = ()
    num_pretrainings: int = 1
    notes: tuple[str, ...] = ()
