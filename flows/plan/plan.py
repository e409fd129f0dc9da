"""Plans the memory, time and cost of a study's trainings: `parcel plan`.

Each pretraining's largest shape, which needs the most memory, is compiled for the chips; none of
them is needed for that. Its other shapes are scaled from it by their FLOPs, unless all are to be
compiled. Of a method's transfers, the one that needs the most memory is compiled; all are assumed
to take as long per FLOP as the method's pretraining, and so are prefills. Data that are not
prepared yet have their published sizes. All numbers are estimates; none was measured.
"""

import dataclasses
import datetime
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flows.config.departures import describe_departures
from flows.config.stage_list import stages_of
from flows.config.study import REFERENCE, Method, StudyConfig
from flows.plan.dataset_sizes import DatasetSizes
from flows.plan.parts import PlannedProgram, describe_parts, with_planned_microbatch
from flows.plan.prepared import MissingDataset, PreparedData, range_text
from flows.plan.programs import UpdateEstimate, by_formula, compile_program
from flows.plan.study_programs import watch_programs
from flows.report.markdown import markdown_table
from flows.report.text_lists import align_columns
from flows.study.costs import num_images_of
from flows.study.graph import decode_of, mixture_of
from infra.chips.topology import GIB, Topology
from infra.errors import ConfigError
from model.analysis.flops import Modality, prefill_flops, update_flops
from model.chips.compiler import CompilationError, Compiler, CompilerMissingError
from model.chips.outcome import Outcome
from model.chips.programs import HeldOutProgram, TrainProgram
from model.config import ModelConfig
from model.connector import budgets
from model.train.config import TrainConfig
from model.train.memory import num_params, step_bytes, trained_parts

PROGRAMS = "programs"
"""Folder of compilation outcomes, in a store's local state."""

FORM = 1
"""Version of the JSON's format."""

_FLOAT32, _BFLOAT16 = 4, 2
"""Bytes of a parameter of a checkpoint, and of one that decoding reads."""


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

    All evaluations of a method are a row, too: their steps are batches, and nothing is trained.

    Attributes:
      name: name of the row, for people.
      what: "pretraining", "transfers" or "evaluations".
      runs: number of trainings.
      steps: updates of all runs; None where the number of records is not known.
      batch_size: examples per update; for transfers the mean.
      params: parameters of the model.
      tokens: expected number of tokens that the decoder reads in all updates.
      flops: expected FLOPs of all updates.
      shapes: shapes of its programs; of transfers, the one that takes the most memory; empty for
        evaluations.
      step_s: range of the time of one update: with all collectives hidden behind computing, and
        with none hidden; None where unknown [s].
      chip_hours: range of the chip-hours of all runs; None where unknown.
      written_bytes: size of the parameters that all runs write.
      watch_bytes: most memory of a chip while `watch` computes beside the training's state; None
        where nothing is watched, or no compiler tells [bytes].
      unknown: what the row leaves out, and why; "" if nothing.
    """

    name: str
    what: str = "pretraining"
    runs: int
    steps: int | None
    batch_size: int
    params: int
    tokens: float
    flops: float
    shapes: tuple[BatchShape, ...] = ()
    step_s: tuple[float, float] | None = None
    chip_hours: tuple[float, float] | None = None
    written_bytes: float = 0.0
    watch_bytes: float | None = None
    unknown: str = ""

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory of a chip, over what has an estimate; None without any [bytes]."""
        peaks = [s.compiled.memory_bytes for s in self.shapes if s.compiled]
        return max((*peaks, *([self.watch_bytes] if self.watch_bytes else [])), default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourcePlan:
    """All trainings of a study on one slice.

    Attributes:
      study: name of the study.
      topology: the slice.
      transfer_files: files of transfers that the study keeps (`keep.transfers`).
      trainings: rows of the plan, in the order of the study.
      price: price of a chip for an hour, as the user gave it; None where they did not.
      day: date of the plan, and so of the price.
      datasets: datasets that are not prepared, with the known costs of preparing them.
      beside: lines on everything but training: data, requests, storage.
      notes: lines on how the estimates were made, and on those that could not be.
    """

    study: str
    topology: Topology
    transfer_files: str
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
            "transfer_files": self.transfer_files,
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
    python: str | None = None,
    day: datetime.date,
) -> ResourcePlan:
    """Returns the plan of a study on the chips that it names.

    Args:
      config: the study; its `compute` names the chips.
      cache: folder of earlier compilation outcomes.
      data: prepared and missing datasets of the study.
      every: whether every shape is compiled, instead of the largest of each training.
      python: the Python that has the compilers, as of `Compiler`.
      day: today's date.

    Raises:
      ConfigError: if it names no chips, or a batch does not divide by them.
    """
    # Pretrainings first: a method's transfers take their pace, seconds per FLOP, from them.
    topology = topology_of(config)
    with Compiler(cache, python) as compiler:
        planner = _Planner(config, topology, compiler, data.records, every=every)
        trainings = [planner.pretraining(*stage) for stage in _pretrainings(config)]
        pretrainings = tuple(trainings)
        for view in config.views:
            parts = [planner.transfers] if view.fine_tunings else []
            for planned in (*parts, planner.evaluations) if view.rows else parts:
                trainings += [planned(view, method, pretrainings) for method in view.methods]
    return ResourcePlan(
        study=config.name,
        topology=topology,
        transfer_files=config.keep.transfers,
        trainings=tuple(trainings),
        price=config.compute.price,
        day=day,
        datasets=data.missing,
        beside=data.lines,
        notes=(
            *describe_departures(config),
            *describe_parts(config, topology),
            *planner.all_notes(),
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

    def __init__(
        self,
        config: StudyConfig,
        topology: Topology,
        compiler: Compiler,
        records: Mapping[str, int],
        *,
        every: bool,
    ) -> None:
        self._config, self._topology, self._compiler = config, topology, compiler
        self._records, self._sizes, self._every = records, DatasetSizes(records), every
        self._video = (0.0, "")
        self.notes: dict[str, None] = {}

    def pretraining(
        self, stage: str, view: StudyConfig, method: Method, train: TrainConfig
    ) -> PlannedTraining:
        """Returns the row of one stage of a method."""
        self._check(f"{stage}.train" if view.is_higher else stage, train)
        model, runs = view.model_of(method), self._config.num_pretrain_seeds
        # Epochs become steps only once all datasets of the mixture are prepared and counted.
        mixture, unknown = mixture_of(view), ""
        if self._records.keys() >= {*mixture}:
            train = train.in_steps(sum(self._records[name] for name in mixture))
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
            name=f"{stage} {method}{view.on}",
            runs=runs,
            steps=steps,
            batch_size=train.batch_size,
            params=num_params(model),
            tokens=done * train.batch_size * tokens,
            flops=done * sum(s.share * s.flops for s in shapes),
            shapes=shapes,
            step_s=step_s,
            chip_hours=self._chip_hours(step_s, steps),
            written_bytes=float(_FLOAT32 * num_params(model) * runs),
            watch_bytes=self._watch_bytes(view, method, model, train, shapes[-1]),
            unknown=unknown,
        )

    def _watch_bytes(
        self,
        view: StudyConfig,
        method: Method,
        model: ModelConfig,
        train: TrainConfig,
        largest: BatchShape,
    ) -> float | None:
        watched = [p for _, p in watch_programs(view, method, model, train, self._topology)]
        # Of the losses, and of the probe's updates, the largest decides.
        programs = {type(p): p for p in sorted(watched, key=lambda p: p.tokens)}.values()
        if not programs or largest.compiled is None or largest.compiled.by_formula:
            return None

        def outcome(program: HeldOutProgram | TrainProgram) -> Outcome:
            return self._compiler.outcome(program, self._topology)

        # The stage's state stays where it is. Held-out losses read its parameters; a probe trains
        # a copy of them, with moments of its own.
        peaks = []
        try:
            state = outcome(self._program(model, train, largest.tokens)).argument_bytes or 0.0
            for program in programs:
                told, reads = outcome(program), isinstance(program, HeldOutProgram)
                shared = (told.argument_bytes or 0.0) if reads else 0.0
                peaks.append(state + told.memory_bytes - shared)
        except CompilationError as error:
            self.notes[f"memory of watch: {error}"] = None
        return max(peaks, default=None)

    def transfers(
        self, view: StudyConfig, method: Method, pretrainings: Sequence[PlannedTraining]
    ) -> PlannedTraining:
        """Returns one row for all transfers of a method, timed per FLOP as its last pretraining."""
        model = view.model_of(method, transfer=True)
        runs, chips = len(view.seed_pairs), self._topology.num_chips
        steps, samples, tokens, flops, unknown = 0, 0, 0.0, 0.0, []
        # The largest shape of each, with the memory that it takes by the formula.
        largest: list[tuple[float, BatchShape, TrainConfig, int]] = []
        # Sums over benchmarks; those whose epochs cannot be counted are named in the row.
        for benchmark in view.fine_tunings:
            stated = view.fine_tuning_of(benchmark, method)
            images = num_images_of(view, benchmark)
            planned = PlannedProgram(name=benchmark, model=model, train=stated, num_images=images)
            train = with_planned_microbatch(planned, self._topology)
            shapes = _batch_shapes(model, train, images)
            bytes_on = functools.partial(
                step_bytes, model, train, shapes[-1].tokens, num_images=images
            )
            largest.append((bytes_on(devices=chips), shapes[-1], train, images))
            frames = f"{images} frames of {shapes[-1].tokens} tokens"
            what = f"{benchmark} {method}: {train.batch_size} rows of {frames}"
            if stated.microbatch != "auto":  # Which takes as many rows as fit, on one GPU too.
                self._note_video(what, images, bytes_on(devices=1))
            if train.epochs is not None:
                num_records = self._sizes.num_train(view, benchmark)
                if num_records is None:
                    unknown.append(benchmark)
                    continue
                train = train.in_steps(num_records)
            updates = train.total_steps * runs
            steps += updates
            samples += updates * train.batch_size
            mean = images * sum(s.share * s.tokens for s in shapes) + train.text_len
            tokens += updates * train.batch_size * mean
            flops += updates * sum(s.share * s.flops for s in shapes)
        # Transfers are many: only the one that takes the most memory is compiled, and all are timed
        # by their FLOPs. A batch that the chips do not divide runs on fewer of them.
        divided = [row for row in largest if row[2].batch_size % chips == 0]
        shapes = ()
        if divided:
            _, shape, train, images = max(divided, key=lambda row: row[0])
            shapes = (self._compiled(model, train, shape, images),)
        pace = _pace_of(view, method, pretrainings)
        count = len(view.fine_tunings) - len(unknown)
        return PlannedTraining(
            name=f"{len(view.fine_tunings)} transfers{view.at} {method}",
            what="transfers",
            runs=count * runs,
            steps=steps if count else None,
            batch_size=round(samples / steps) if steps else 0,
            params=num_params(model),
            tokens=tokens,
            flops=flops,
            shapes=shapes,
            chip_hours=self._chip_hours(pace, flops) if count else None,
            written_bytes=float(_FLOAT32 * num_params(model) * count * runs),
            unknown=_describe_uncounted(unknown),
        )

    def evaluations(
        self, view: StudyConfig, method: Method, pretrainings: Sequence[PlannedTraining]
    ) -> PlannedTraining:
        """Returns one row for all evaluations of a method.

        Their time is from that of the prefills alone to that of answers as long as they may be.
        """
        model, chip = view.model_of(method, transfer=True), self._topology.chip
        served, seeds, size = view.budgets_of(method), len(view.seed_pairs), view.eval_batch_size
        batches, tokens, flops, decode_s, unknown = 0, 0.0, 0.0, 0.0, []
        for name, row in view.rows.items():
            items = self._sizes.num_eval(view, name)
            if items is None:
                unknown.append(name)
                continue
            config, images = decode_of(view, row.benchmark), num_images_of(view, row.benchmark)
            prompt = Modality(name="", num_images=images, text_tokens=config.text_len)
            costs = [prefill_flops(model, budget, prompt) for budget in served]
            # The tower runs once for all budgets.
            each = sum(cost.total - cost.vision for cost in costs) + costs[0].vision
            flops += seeds * items * each
            tokens += seeds * items * sum(images * b + config.text_len for b in served)
            batches += seeds * len(served) * -(-items // size)
            # A token of a batch reads every weight once; all else is hidden behind that.
            num_tokens = seeds * len(served) * -(-items // size) * config.text_len
            decode_s += num_tokens * _BFLOAT16 * num_params(model) / chip.memory_bandwidth
        pace = _pace_of(view, method, pretrainings)
        prefills, count = self._chip_hours(pace, flops), len(view.rows) - len(unknown)
        return PlannedTraining(
            name=f"{len(view.rows)} rows evaluated{view.at} {method}",
            what="evaluations",
            runs=count * len(served) * seeds,
            steps=batches if count else None,
            batch_size=size,
            params=num_params(model),
            tokens=tokens,
            flops=flops,
            chip_hours=(
                (prefills[0], prefills[1] + decode_s / 3600) if prefills and count else None
            ),
            unknown=_describe_uncounted(unknown, "whose number of items is not published"),
        )

    def _note_video(self, what: str, images: int, needed_bytes: float) -> None:
        # A pair is no video. What counts is the one that needs the most, over the whole study.
        chip = self._topology.chip
        if chip.is_gpu and images > 2 and needed_bytes > max(chip.program_bytes, self._video[0]):
            self._video = (needed_bytes, what)

    def all_notes(self) -> Iterator[str]:
        """Yields the notes, the last of them on the transfer that one GPU has no memory for."""
        yield from self.notes
        if self._sizes.is_any_published:
            yield "datasets that are not prepared yet count with their published sizes"
        needed_bytes, what = self._video
        if what:
            yield (
                f"a video transfer on one GPU wants {needed_bytes / GIB:.0f} GiB ({what}); "
                f"microbatch, or more GPUs for each, take less"
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
        every = self._every or (largest.compiled is not None and largest.compiled.by_formula)
        timed = []
        for shape in shapes[:-1]:
            timed_shape = self._compiled(model, train, shape) if every else shape
            timed.append(
                timed_shape if timed_shape.compiled else _scale_shape(timed_shape, largest)
            )
        return (*timed, largest)

    def _compiled(
        self, model: ModelConfig, train: TrainConfig, shape: BatchShape, num_images: int = 1
    ) -> BatchShape:
        # Without its compiler a TPU's shape stays without times; a GPU's has a formula. Either is
        # noted, once for the whole plan: `notes` is a dict for that reason.
        chips, compute = self._topology, self._config.compute
        program = self._program(model, train, shape.tokens, num_images)
        arithmetic = {"flops": shape.flops, "mfu": compute.mfu}
        try:
            estimate = compile_program(program, chips, self._compiler, **arithmetic)
        except (CompilerMissingError, CompilationError) as error:
            if not chips.chip.is_gpu:
                self.notes[str(error)] = None
                return shape
            estimate = by_formula(
                model, train, chips, shape.tokens, num_images=num_images, **arithmetic
            )
            note = f"by formula, at {compute.mfu:.0%} of the peak (--mfu): {error}"
        else:
            note = (
                f"a GPU's memory and traffic are the compiler's, its time is a formula: "
                f"{compute.mfu:.0%} of the peak (--mfu), or the bandwidth of its memory"
            )
        if chips.chip.is_gpu:
            self.notes[note] = None
        return dataclasses.replace(
            shape,
            compiled=estimate,
            compute_s=estimate.compute_s,
            interconnect_s=estimate.interconnect_s,
        )

    def _program(
        self, model: ModelConfig, train: TrainConfig, tokens: int, num_images: int = 1
    ) -> TrainProgram:
        return TrainProgram(
            model=model,
            train=train,
            tokens=tokens,
            num_images=num_images,
            deterministic=self._config.compute.deterministic,
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
    return [_training_cells(row, plan.topology.chip.program_bytes) for row in plan.trainings]


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
    yield from _transfer_lines(plan)
    # Rows that lack a number for the same reason share a line.
    names_by_reason: dict[str, list[str]] = {}
    for row in plan.trainings:
        if row.unknown:
            names_by_reason.setdefault(row.unknown, []).append(row.name)
        if row.memory_bytes and row.memory_bytes > chip.program_bytes:
            # All transfers of a method are one row, and its memory is the largest of theirs.
            what = "of {}, the largest" if row.what == "transfers" else "{}"
            yield (
                f"{what.format(row.name)} does not fit: it asks for "
                f"{row.memory_bytes / GIB:.1f} GiB a chip. "
                f"model.remat=full, a small microbatch and num_replicas=1 take the least."
            )
    yield from (f"{', '.join(names)}: {unknown}" for unknown, names in names_by_reason.items())
    yield from plan.beside
    yield from plan.notes


def _transfer_lines(plan: ResourcePlan) -> Iterator[str]:
    """Yields a line on all transfers: their number, their time, and what they write and leave."""
    rows = [row for row in plan.trainings if row.what == "transfers"]
    written = sum(row.written_bytes for row in rows)
    if not written:
        return
    # The fraction of what is written that the study keeps, by `keep.transfers`.
    kept = {"predictions": 0.0, "bfloat16": _BFLOAT16 / _FLOAT32}.get(plan.transfer_files, 1.0)
    hours = [row.chip_hours for row in rows if row.chip_hours]
    time = ""
    if hours:
        low, high = (sum(ends) for ends in zip(*hours, strict=True))
        time = f" take {_range_text(low, high, 0)} chip-hours and"
    yield (
        f"{sum(row.runs for row in rows):,} transfers{time} write {written / 1e12:,.2f} TB of "
        f"parameters, of which {kept * written / 1e12:,.2f} TB stay "
        f"(keep.transfers: {plan.transfer_files})"
    )


def _pretrainings(config: StudyConfig) -> Iterator[tuple[str, StudyConfig, Method, TrainConfig]]:
    # The order in which the graph trains them; Stage 1 is one for all methods of a backbone.
    for pair in config.pairs:
        stages = stages_of(pair)
        for stage in stages:
            if stage.is_shared:
                yield stage.name, stage.view, REFERENCE, stage.train_config_of(REFERENCE)
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


def _pace_of(
    view: StudyConfig, method: Method, pretrainings: Sequence[PlannedTraining]
) -> tuple[float, float] | None:
    """Returns the range of seconds per FLOP of a method's last pretraining with a known time."""
    for row in reversed(pretrainings):
        if row.step_s is not None and row.name.endswith(f" {method}{view.on}"):
            flops = sum(shape.share * shape.flops for shape in row.shapes)
            return row.step_s[0] / flops, row.step_s[1] / flops
    return None


def _describe_uncounted(
    names: Sequence[str], why: str = "that count epochs of data not prepared yet"
) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return f"not counted ({shown}): {len(names)} {why}"


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
