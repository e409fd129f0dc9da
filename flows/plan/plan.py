"""Plans the memory, time and cost of a study's trainings: `parcel plan`.

Each pretraining's largest shape, which needs the most memory, is compiled for the TPU slice; no TPU
is needed for that. Its other shapes are scaled from it by their FLOPs, unless all are to be
compiled. A transfer is assumed to take as long per FLOP as its method's pretraining. All numbers
on trainings are estimates; none was measured.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flows.config.departures import describe_departures
from flows.config.stage_list import stages_of
from flows.config.study import REFERENCE, Method, StudyConfig
from flows.plan.parts import PlannedProgram, describe_parts, with_planned_microbatch
from flows.plan.prepared import MissingDataset, PreparedData, range_text
from flows.plan.programs import CompilerMissingError, UpdateEstimate, by_formula, compile_program
from flows.report.markdown import markdown_table
from flows.report.text_lists import align_columns
from flows.study.costs import num_images_of
from flows.study.graph import mixture_of
from infra.chips.topology import GIB, Topology
from infra.errors import ConfigError
from model.analysis.flops import Modality, update_flops
from model.config import ModelConfig
from model.connector import budgets
from model.train.config import TrainConfig
from model.train.memory import num_params, trained_parts

PROGRAMS = "programs"
"""Folder of compilation outcomes, in a store's local state."""

FORM = 1
"""Version of the JSON's format."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchShape:
    """One shape of a training: the program for updates with a given number of token slots.

    Attributes:
      tokens: slots for soft tokens, per image.
      share: expected share of the updates that have this shape.
      flops: FLOPs of one update: three times a prefill's, without what `remat` repeats.
      compiled: estimates of compiler or formula; None where the times are scaled or unknown.
      compute_s: time that a chip computes in one update; None where unknown [s].
      interconnect_s: time of its collectives, one after the other; None where unknown [s].
    """

    tokens: int
    share: float
    flops: float
    compiled: UpdateEstimate | None = None
    compute_s: float | None = None
    interconnect_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """One row of a plan: trainings that differ in their seed alone, or all transfers of a method.

    Attributes:
      name: name of the row, for people.
      runs: number of trainings.
      steps: updates of all runs; None where the number of records is not known.
      batch_size: examples per update; for transfers the mean.
      params: parameters of the model.
      tokens: expected number of tokens that the decoder reads in all updates.
      flops: expected FLOPs of all updates.
      shapes: shapes of its programs; empty for transfers.
      step_s: range of the time of one update: with all collectives hidden behind computing, and
        with none hidden; None where unknown [s].
      chip_hours: range of the chip-hours of all runs; None where unknown.
      unknown: what the row leaves out, and why; "" if nothing.
    """

    name: str
    runs: int
    steps: int | None
    batch_size: int
    params: int
    tokens: float
    flops: float
    shapes: tuple[BatchShape, ...] = ()
    step_s: tuple[float, float] | None = None
    chip_hours: tuple[float, float] | None = None
    unknown: str = ""

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory of a chip, over the shapes with an estimate; None without any [bytes]."""
        peaks = [s.compiled.memory_bytes for s in self.shapes if s.compiled]
        return max(peaks, default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourcePlan:
    """All trainings of a study on one slice.

    Attributes:
      study: name of the study.
      topology: the slice.
      trainings: rows of the plan, in the order of the study.
      price: price of a chip for an hour, as the user gave it; None where they did not.
      day: date of the plan, and so of the price.
      datasets: datasets that are not prepared, with the known costs of preparing them.
      beside: lines on everything but training: data, requests, storage.
      notes: lines on how the estimates were made, and on those that could not be.
    """

    study: str
    topology: Topology
    trainings: tuple[PlannedTraining, ...]
    price: float | None
    day: datetime.date
    datasets: tuple[MissingDataset, ...]
    beside: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def chip_hours(self) -> tuple[float, float]:
        """Range of the chip-hours of all trainings whose time is known."""
        ranges = [training.chip_hours for training in self.trainings if training.chip_hours]
        return sum(low for low, _ in ranges), sum(high for _, high in ranges)

    def as_json(self) -> dict[str, object]:
        """Returns the plan as plain values, in the format that `docs/howto/plan.md` describes."""
        # Rows are the dataclasses as they are; sums over them are computed here.
        chip, hours = self.topology.chip, self.chip_hours
        return {
            "form": FORM,
            "study": self.study,
            "topology": str(self.topology),
            "chips": self.topology.num_chips,
            "hbm_bytes": chip.hbm_bytes,
            "day": self.day.isoformat(),
            "price_per_chip_hour": self.price,
            "trainings": [
                {**dataclasses.asdict(row), "memory_bytes": row.memory_bytes}
                for row in self.trainings
            ],
            "chip_hours": hours,
            "cost": None if self.price is None else [self.price * h for h in hours],
            "datasets": [dataclasses.asdict(row) for row in self.datasets],
            "beside": list(self.beside),
            "notes": list(self.notes),
        }


def plan_of(
    config: StudyConfig,
    cache: Path,
    data: PreparedData,
    *,
    every: bool = False,
    day: datetime.date,
) -> ResourcePlan:
    """Returns the plan of a study on the chips that it names.

    Args:
      config: the study; its `compute` names the chips.
      cache: folder of earlier compilation outcomes.
      data: prepared and missing datasets of the study.
      every: whether every shape is compiled, instead of the largest of each training.
      day: today's date.

    Raises:
      ConfigError: if it names no chips, or a batch does not divide by them.
    """
    # Pretrainings first: a method's transfers take their pace, seconds per FLOP, from them.
    topology = topology_of(config)
    planner = _Planner(config, topology, cache, every=every)
    pretrainings = [planner.pretraining(*stage, data.records) for stage in _pretrainings(config)]
    transfers = [
        planner.transfers(view, method, pretrainings, data.records)
        for view in config.resolutions
        for method in view.methods
        if config.fine_tunings
    ]
    return ResourcePlan(
        study=config.name,
        topology=topology,
        trainings=(*pretrainings, *transfers),
        price=config.compute.price,
        day=day,
        datasets=data.missing,
        beside=data.lines,
        notes=(
            *describe_departures(config),
            *describe_parts(config, topology),
            *planner.notes,
        ),
    )


def topology_of(config: StudyConfig) -> Topology:
    """Returns the chips that a study's plan is for.

    Raises:
      ConfigError: if it names none.
    """
    if config.compute.topology is None:
        raise ConfigError(
            "compute.topology must name the chips of a plan, such as v4:8x8x4 or h100:8, got "
            "nothing; --topology does so, too."
        )
    return Topology.parse(config.compute.topology)


class _Planner:
    """Computes the rows of a plan, and collects notes on how it did."""

    def __init__(self, config: StudyConfig, topology: Topology, cache: Path, *, every: bool):
        self._config, self._topology, self._cache = config, topology, cache
        self._every = every
        self.notes: dict[str, None] = {}

    def pretraining(
        self,
        stage: str,
        view: StudyConfig,
        method: Method,
        train: TrainConfig,
        records: Mapping[str, int],
    ) -> PlannedTraining:
        """Returns the row of one stage of a method."""
        self._check(f"{stage}.train" if view.at else stage, train)
        model, runs = view.model_of(method), self._config.num_pretrain_seeds
        # Epochs become steps only once all datasets of the mixture are prepared and counted.
        mixture, unknown = mixture_of(view), ""
        if records.keys() >= {*mixture}:
            train = train.in_steps(sum(records[name] for name in mixture))
        steps = train.total_steps * runs
        if train.epochs is not None:
            unknown = "counts epochs: its steps are known once its data are prepared"
            steps = None
        # The mean update, by the share that each shape has of the updates: a row of a plan is sums
        # of it.
        program = PlannedProgram(name=stage, model=model, train=train, num_images=1)
        train = with_planned_microbatch(program, self._topology)
        shapes = self._timed(model, train)
        tokens = sum(s.share * s.tokens for s in shapes) + train.text_len
        done = steps or 0
        step_s = _mean_step(shapes)
        return PlannedTraining(
            name=f"{stage} {method}",
            runs=runs,
            steps=steps,
            batch_size=train.batch_size,
            params=num_params(model),
            tokens=done * train.batch_size * tokens,
            flops=done * sum(s.share * s.flops for s in shapes),
            shapes=shapes,
            step_s=step_s,
            chip_hours=self._chip_hours(step_s, steps),
            unknown=unknown,
        )

    def transfers(
        self,
        view: StudyConfig,
        method: Method,
        pretrainings: Sequence[PlannedTraining],
        records: Mapping[str, int],
    ) -> PlannedTraining:
        """Returns one row for all transfers of a method, timed per FLOP as its last pretraining."""
        model = view.model_of(method, transfer=True)
        runs = len(view.seed_pairs)
        steps, samples, tokens, flops, unknown = 0, 0, 0.0, 0.0, []
        # Sums over benchmarks; those whose epochs cannot be counted yet are named in the row.
        for benchmark in view.fine_tunings:
            train = view.fine_tuning_of(benchmark, method)
            name = f"{benchmark}{view.at}/train"
            if train.epochs is not None:
                if name not in records:
                    unknown.append(benchmark)
                    continue
                train = train.in_steps(records[name])
            images = num_images_of(view, benchmark)
            shapes = _batch_shapes(model, train, images)
            updates = train.total_steps * runs
            steps += updates
            samples += updates * train.batch_size
            mean = images * sum(s.share * s.tokens for s in shapes) + train.text_len
            tokens += updates * train.batch_size * mean
            flops += updates * sum(s.share * s.flops for s in shapes)
        # Transfers are many and small: none is compiled, all are timed by their FLOPs.
        pace = _seconds_per_flop([row for row in pretrainings if row.name.endswith(f" {method}")])
        count = len(view.fine_tunings) - len(unknown)
        return PlannedTraining(
            name=f"{len(view.fine_tunings)} transfers{view.at} {method}",
            runs=count * runs,
            steps=steps if count else None,
            batch_size=round(samples / steps) if steps else 0,
            params=num_params(model),
            tokens=tokens,
            flops=flops,
            chip_hours=self._chip_hours(pace, flops) if count else None,
            unknown=_describe_uncounted(unknown),
        )

    def _check(self, stage: str, train: TrainConfig) -> None:
        chips = self._topology.num_chips
        if train.batch_size % chips:
            raise ConfigError(
                f"{stage}.batch_size must be a multiple of the {chips} chips of "
                f"{self._topology}, got {train.batch_size}."
            )
        if chips % train.num_replicas:
            raise ConfigError(
                f"{stage}.num_replicas must divide the {chips} chips of {self._topology}, got "
                f"{train.num_replicas}."
            )

    def _timed(self, model: ModelConfig, train: TrainConfig) -> tuple[BatchShape, ...]:
        """Returns the shapes of a stage with times: the largest compiled, the others scaled."""
        # Shapes come in the order of their size; the last one decides memory.
        shapes = _batch_shapes(model, train, num_images=1)
        largest = self._compiled(model, train, shapes[-1])
        timed = []
        for shape in shapes[:-1]:
            is_compiled = self._every or not self._topology.chip.has_compiler
            timed_shape = self._compiled(model, train, shape) if is_compiled else shape
            timed.append(
                timed_shape if timed_shape.compiled else _scale_shape(timed_shape, largest)
            )
        return (*timed, largest)

    def _compiled(self, model: ModelConfig, train: TrainConfig, shape: BatchShape) -> BatchShape:
        # Without a compiler here the shape stays without times; with chips that have none, a
        # formula answers. Either is noted, once for the whole plan: `notes` is a dict for that
        # reason.
        chips = self._topology
        if chips.chip.has_compiler:
            try:
                compiled = compile_program(model, train, chips, shape.tokens, self._cache)
            except CompilerMissingError as error:
                self.notes[str(error)] = None
                return shape
        else:
            mfu = self._config.compute.mfu
            compiled = by_formula(model, train, chips, shape.tokens, flops=shape.flops, mfu=mfu)
            note = f"by formula, at {mfu:.0%} of the peak (--mfu): no compiler was asked"
            self.notes[note] = None
        return dataclasses.replace(
            shape,
            compiled=compiled,
            compute_s=compiled.compute_s,
            interconnect_s=compiled.interconnect_s,
        )

    def _chip_hours(
        self, seconds: tuple[float, float] | None, times: float | None
    ) -> tuple[float, float] | None:
        if seconds is None or times is None:
            return None
        low, high = (times * each * self._topology.num_chips / 3600 for each in seconds)
        return low, high


_HEAD = (
    "",
    "runs",
    "steps",
    "G tokens",
    "EFLOP",
    "G params",
    "GiB/chip",
    "programs",
    "step [s]",
    "chip-hours",
)

_DATA_HEAD = ("", "inputs", "records", "GB", "core-hours", "hours", "measured by")


def plan_text(plan: ResourcePlan) -> Iterator[str]:
    """Yields the lines of a plan for a terminal."""
    yield _plan_title(plan)
    yield ""
    yield from align_columns([*_HEAD], _plan_rows(plan))
    yield ""
    if data := _data_rows(plan):
        yield from align_columns([*_DATA_HEAD], data)
        yield ""
    yield from _plan_lines(plan)


def plan_markdown(plan: ResourcePlan) -> str:
    """Returns a plan as a page in Markdown."""
    tables = [markdown_table(_HEAD, _plan_rows(plan), left=[0])]
    if data := _data_rows(plan):
        tables.append(markdown_table(_DATA_HEAD, data, left=[0]))
    lines = [f"- {line}\n" for line in _plan_lines(plan)]
    return "\n".join([f"{_plan_title(plan)}\n", *tables, "".join(lines)])


def _plan_title(plan: ResourcePlan) -> str:
    return (
        f"plan of {plan.study} on {plan.topology}: {plan.topology.num_chips} chips with "
        f"{plan.topology.chip.hbm_bytes / GIB:.2f} GiB each; "
        "trainings are estimated, never measured"
    )


def _plan_rows(plan: ResourcePlan) -> list[list[str]]:
    return [_training_cells(row, plan.topology.chip.hbm_bytes) for row in plan.trainings]


def _data_rows(plan: ResourcePlan) -> list[list[str]]:
    """Returns the table rows of the missing datasets that have estimates."""
    return [
        [
            row.name,
            *("" if ends is None else range_text(ends) for ends in (row.inputs, row.records)),
            "" if row.num_bytes is None else range_text([end / 1e9 for end in row.num_bytes]),
            *("" if ends is None else range_text(ends) for ends in (row.core_hours, row.hours)),
            row.measured,
        ]
        for row in plan.datasets
        if row.measured
    ]


def _plan_lines(plan: ResourcePlan) -> Iterator[str]:
    """Yields the lines below the tables."""
    # From what is known to what is not: the sum, how to read it, then what does not fit, what could
    # not be counted, data and storage, and how the estimates were made.
    chip = plan.topology.chip
    low, high = plan.chip_hours
    yield f"together {_range_text(low, high, 0)} chip-hours" + (
        ""
        if plan.price is None
        else f", {_range_text(low * plan.price, high * plan.price, 0)} at {plan.price:g} a "
        f"chip-hour, as given on {plan.day}"
    )
    yield "a step's time: from all traffic between chips hidden behind computing to none of it"
    # Rows that lack a number for the same reason share a line.
    names_by_reason: dict[str, list[str]] = {}
    for row in plan.trainings:
        if row.unknown:
            names_by_reason.setdefault(row.unknown, []).append(row.name)
        if row.memory_bytes and row.memory_bytes > chip.hbm_bytes:
            yield (
                f"{row.name} does not fit: it asks for {row.memory_bytes / GIB:.1f} GiB a chip. "
                f"model.remat=full takes the least; num_replicas=1 splits the weights the most."
            )
    yield from (f"{', '.join(names)}: {unknown}" for unknown, names in names_by_reason.items())
    yield from plan.beside
    yield from plan.notes


def _pretrainings(config: StudyConfig) -> Iterator[tuple[str, StudyConfig, Method, TrainConfig]]:
    # The order in which the graph trains them; Stage 1 is one for all methods.
    stages = stages_of(config)
    for stage in stages:
        if stage.is_shared:
            yield stage.name, stage.view, REFERENCE, stage.recipe
    for method in config.methods:
        for stage in stages:
            if method in stage.methods and not stage.is_shared:
                yield stage.name, stage.view, method, stage.train_config_of(method)


def _batch_shapes(
    model: ModelConfig, train: TrainConfig, num_images: int
) -> tuple[BatchShape, ...]:
    """Returns the shapes of a training, smallest first, with the share of updates of each."""
    # Budgets are drawn with equal chances, and padded to a bucket: several may share a shape.
    #
    #   budgets 16 32 48 64, buckets of 32 and 64   ─▶   32 tokens: 1/2,   64 tokens: 1/2
    training_budgets = budgets.training_budgets(model, train.budgets)
    sizes = [budgets.bucket_of(model, budget).size for budget in training_budgets]
    prompt = Modality(name="", num_images=num_images, text_tokens=train.text_len)
    trained = trained_parts(model, train)
    return tuple(
        BatchShape(
            tokens=size,
            share=sizes.count(size) / len(sizes),
            flops=update_flops(model, size, prompt, train.batch_size, trained=trained),
        )
        for size in sorted(set(sizes))
    )


def _scale_shape(shape: BatchShape, compiled_shape: BatchShape) -> BatchShape:
    if compiled_shape.compute_s is None:
        return shape
    share = shape.flops / compiled_shape.flops
    # Only computing scales: the weights gathered between chips are the same for any token count.
    return dataclasses.replace(
        shape,
        compute_s=compiled_shape.compute_s * share,
        interconnect_s=compiled_shape.interconnect_s,
    )


def _mean_step(shapes: Sequence[BatchShape]) -> tuple[float, float] | None:
    if any(shape.compute_s is None for shape in shapes):
        return None
    low = sum(s.share * (s.compute_s or 0.0) for s in shapes)
    return low, low + sum(s.share * (s.interconnect_s or 0.0) for s in shapes)


def _seconds_per_flop(rows: Sequence[PlannedTraining]) -> tuple[float, float] | None:
    """Returns the range of seconds per FLOP of the last of these trainings with a known time."""
    for row in reversed(rows):
        if row.step_s is not None:
            flops = sum(shape.share * shape.flops for shape in row.shapes)
            return row.step_s[0] / flops, row.step_s[1] / flops
    return None


def _describe_uncounted(benchmarks: Sequence[str]) -> str:
    if not benchmarks:
        return ""
    names = ", ".join(benchmarks[:3]) + (" …" if len(benchmarks) > 3 else "")
    return f"not counted ({names}): {len(benchmarks)} that count epochs of data not prepared yet"


def _training_cells(row: PlannedTraining, hbm_bytes: float) -> list[str]:
    # A "!" says that a program does not fit; "?" that a number is not known, which 0 would not.
    memory = row.memory_bytes
    programs = [f"{len(row.shapes)} ({sum(s.compiled is None for s in row.shapes)} scaled)"]
    return [
        row.name,
        f"{row.runs:,}",
        "?" if row.steps is None else f"{row.steps:,}",
        f"{row.tokens / 1e9:,.1f}",
        f"{row.flops / 1e18:,.1f}",
        f"{row.params / 1e9:.2f}",
        f"{memory / GIB:.1f}{'!' if memory > hbm_bytes else ''}" if memory else "",
        *(programs if row.shapes else [""]),
        _range_text(*row.step_s, 3) if row.step_s else "",
        _range_text(*row.chip_hours, 0) if row.chip_hours else "?",
    ]


def _range_text(low: float, high: float, digits: int) -> str:
    first, last = f"{low:,.{digits}f}", f"{high:,.{digits}f}"
    return first if first == last else f"{first}-{last}"
