"""Plans the memory, time and cost of a study's trainings: `parcel plan`.

Each pretraining's largest shape, which needs the most memory, is compiled for the chips; none of
them is needed for that. Its other shapes are scaled from it by their FLOPs, unless all are to be
compiled. Of a method's transfers, the one that needs the most memory is compiled; all are assumed
to compute as long per FLOP as the method's pretraining, and so are prefills. Each step is planned
on the chips that its processes get: a transfer's are those of one host, unless more are stated.
Data that are not prepared yet have their published sizes. All numbers are estimates; none was
measured.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config.benchmark import metric_of
from flows.config.card_configs import config_for_card
from flows.config.compute import StepChips
from flows.graph.costs import num_images_of
from flows.graph.graph import mixture_of
from flows.graph.specs import decode_of
from flows.plan.dataset_sizes import DatasetSizes
from flows.plan.decoding import param_bytes, token_seconds
from flows.plan.detectable import describe_detectable
from flows.plan.microbatches import (
    PlannedProgram,
    describe_microbatches,
    planned_bytes,
    transfer_program,
    with_planned_microbatch,
)
from flows.plan.prepared import MissingDataset, PreparedData, estimate_text
from flows.plan.programs import (
    COMPILED_MARGIN,
    UpdateEstimate,
    by_formula,
    compile_program,
    update_traffic,
)
from flows.plan.study_programs import watch_programs
from flows.report.items import is_percentage
from flows.report.markdown import markdown_table
from flows.report.text_lists import abbreviate_list, align_columns
from flows.study.paper_deviations import describe_paper_deviations
from flows.study.processes import describe_processes
from flows.study.settings import REFERENCE, Method
from flows.study.stage_list import stages_of
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from infra.chips.topology import GIB, Topology
from infra.errors import ConfigError
from model.analysis.flops import Modality, prefill_flops, update_flops
from model.chips.compiler import CompilationError, Compiler, CompilerMissingError
from model.chips.outcome import CompilationOutcome
from model.chips.programs import HeldOutProgram, TrainProgram
from model.config import ModelConfig
from model.connector import budgets
from model.decode.memory import SHARE, row_bytes, rows_that_fit
from model.train.config import TrainConfig
from model.train.memory import num_params, trained_parts

PROGRAMS = "programs"
"""Folder of compilation outcomes, in a store's local state."""

FORM = 1
"""Version of the JSON's format."""

_FLOAT32, _BFLOAT16 = 4, 2
"""Bytes of a parameter of a checkpoint, and of one of a release."""


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
      method: the method.
      backbone: the backbone, where the study has several; "" elsewhere.
      what: "pretraining", "transfers" or "evaluations".
      topology: the chips that each run gets, such as "v4:2x2x1" for one host of v4:8x8x4.
      chips: their number.
      program_bytes: memory of one of them that a program may use [bytes].
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
    method: Method
    backbone: str
    what: str = "pretraining"
    topology: str
    chips: int
    program_bytes: float
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

    @property
    def needed_bytes(self) -> float:
        """Memory that a chip should have for it: `COMPILED_MARGIN` above a GPU compiler's [bytes].

        0 without any estimate.
        """
        peak, is_gpu = self.memory_bytes or 0.0, Topology.parse(self.topology).chip.is_gpu
        by_formula = all(s.compiled.by_formula for s in self.shapes if s.compiled)
        return peak if by_formula or not is_gpu else (1 + COMPILED_MARGIN) * peak

    @property
    def fits(self) -> bool:
        """Whether its programs fit its chips, as far as their memory is known."""
        return self.needed_bytes <= self.program_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourcePlan:
    """All trainings of a study, each on the chips of a slice that it gets.

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
        planner = _Planner(config, compiler, data.records, every=every)
        trainings = [planner.pretraining(*stage) for stage in _pretrainings(config)]
        pretrainings = tuple(trainings)
        for view in config.views:
            parts = [planner.transfers] if view.fine_tunings else []
            for planned in (*parts, planner.evaluations) if view.rows else parts:
                trainings += [planned(view, method, pretrainings) for method in view.methods]
            planner.note_detectable(view)
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
            *([line] if (line := describe_processes(config)) else []),
            *describe_paper_deviations(config),
            *describe_microbatches(config),
            *planner.all_notes(),
        ),
    )


def topology_of(config: StudyConfig) -> Topology:
    """Returns the chips that a study's plan is for.

    Raises:
      ConfigError: if it names none.
    """
    return config.compute.planned_chips


class _Planner:
    """Computes the rows of a plan, and collects notes on how it did."""

    def __init__(
        self,
        config: StudyConfig,
        compiler: Compiler,
        records: Mapping[str, int],
        *,
        every: bool,
    ) -> None:
        self._config, self._compiler = config, compiler
        self._records, self._sizes, self._every = records, DatasetSizes(records), every
        self.notes: dict[str, None] = {}

    def pretraining(
        self, stage: str, view: StudyView, method: Method, train: TrainConfig, chips: StepChips
    ) -> PlannedTraining:
        """Returns the row of one stage of a method."""
        self._check_batch_on_chips(
            f"{stage}.train" if view.is_higher else stage, train, chips.topology
        )
        self._note_chips(stage, chips)
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
        program = PlannedProgram(name=stage, model=model, train=train, num_images=1, chips=chips)
        train = with_planned_microbatch(program)
        shapes = self._estimate_shape_times(model, train, chips.topology)
        tokens = sum(s.share * s.tokens for s in shapes) + train.text_len
        done = steps or 0
        step_s = _mean_step(shapes)
        return PlannedTraining(
            name=f"{stage} {method}{view.backbone_suffix}",
            method=method,
            backbone=view.backbone,
            **_chips_fields(chips),
            runs=runs,
            steps=steps,
            batch_size=train.batch_size,
            params=num_params(model),
            tokens=done * train.batch_size * tokens,
            flops=done * sum(s.share * s.flops for s in shapes),
            shapes=shapes,
            step_s=step_s,
            chip_hours=None if steps is None else _chip_hours(step_s, steps * chips.count),
            written_bytes=float(_FLOAT32 * num_params(model) * runs),
            watch_bytes=self._watch_bytes(view, method, model, train, shapes[-1], chips.topology),
            unknown=unknown,
        )

    def _watch_bytes(
        self,
        view: StudyView,
        method: Method,
        model: ModelConfig,
        train: TrainConfig,
        largest: BatchShape,
        topology: Topology,
    ) -> float | None:
        watched = [p for _, p in watch_programs(view, method, model, train, topology)]
        # Of the losses, and of the probe's updates, the largest decides.
        programs = {type(p): p for p in sorted(watched, key=lambda p: p.tokens)}.values()
        if not programs or largest.compiled is None or largest.compiled.by_formula:
            return None

        def outcome(program: HeldOutProgram | TrainProgram) -> CompilationOutcome:
            return self._compiler.outcome(program, topology)

        # The stage's state stays where it is. Held-out losses read its parameters; a probe trains
        # a copy of them, with moments of its own.
        peaks = []
        try:
            state = outcome(self._train_program(model, train, largest.tokens)).argument_bytes or 0.0
            for program in programs:
                told, reads = outcome(program), isinstance(program, HeldOutProgram)
                shared = (told.argument_bytes or 0.0) if reads else 0.0
                peaks.append(state + told.memory_bytes - shared)
        except CompilationError as error:
            self.notes[f"memory of watch: {error}"] = None
        return max(peaks, default=None)

    def transfers(
        self, view: StudyView, method: Method, pretrainings: Sequence[PlannedTraining]
    ) -> PlannedTraining:
        """Returns one row for all transfers of a method.

        They compute as long per FLOP as its last pretraining; traffic between the chips of a
        transfer is that of the formula.
        """
        model, chips = view.model_of(method, transfer=True), view.compute.chips_of_transfer
        runs, traffic = len(view.seed_pairs), 0.0
        steps, samples, tokens, flops, unknown = 0, 0, 0.0, 0.0, []
        # The largest shape of each, with the memory that it takes by the formula.
        largest: list[tuple[float, BatchShape, TrainConfig, int]] = []
        # Sums over benchmarks; those whose epochs cannot be counted are named in the row.
        for benchmark in view.fine_tunings:
            planned = transfer_program(view, method, benchmark)
            train, images = with_planned_microbatch(planned), planned.num_images
            shapes = _batch_shapes(model, train, images)
            largest.append((planned_bytes(planned, train), shapes[-1], train, images))
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
            traffic += updates * update_traffic(model, train, chips.count)
        # Transfers are many: only the one that takes the most memory is compiled, and all are timed
        # by their FLOPs. A batch that the chips do not divide is refused, and has no program.
        divided = [row for row in largest if row[2].batch_size % chips.count == 0]
        shapes = ()
        if divided:
            _, shape, train, images = max(divided, key=lambda row: row[0])
            shapes = (self._compile_batch_shape(model, train, shape, chips.topology, images),)
        pace = _pace_of(view, method, pretrainings)
        sent_s = chips.count * traffic / chips.topology.group_bytes(chips.count)
        count = len(view.fine_tunings) - len(unknown)
        return PlannedTraining(
            name=f"{len(view.fine_tunings)} transfers{view.view_suffix} {method}",
            method=method,
            backbone=view.backbone,
            what="transfers",
            **_chips_fields(chips),
            runs=count * runs,
            steps=steps if count else None,
            batch_size=round(samples / steps) if steps else 0,
            params=num_params(model),
            tokens=tokens,
            flops=flops,
            shapes=shapes,
            chip_hours=_chip_hours((pace, pace + sent_s / flops), flops)
            if pace and flops
            else None,
            written_bytes=float(_FLOAT32 * num_params(model) * count * runs),
            unknown=_describe_uncounted(unknown),
        )

    def evaluations(
        self, view: StudyView, method: Method, pretrainings: Sequence[PlannedTraining]
    ) -> PlannedTraining:
        """Returns one row for all evaluations of a method.

        Their time is from that of the prefills alone to that of answers as long as they may be,
        by the formula for a token.
        """
        model, chips = view.model_of(method, transfer=True), view.compute.chips_of_evaluation
        free = SHARE * (chips.program_bytes - param_bytes(model))
        served, seeds, size = view.budgets_of(method), len(view.seed_pairs), view.eval_batch_size
        batches, tokens, flops, decode_s = 0, 0.0, 0.0, 0.0
        unknown, unfit = [], []
        for name, row in view.rows.items():
            items = self._sizes.num_eval(view, name)
            if items is None:
                unknown.append(name)
                continue
            config, images = decode_of(view, row.benchmark), num_images_of(view, row.benchmark)
            needed = row_bytes(
                model,
                max(served),
                num_images=images,
                text_len=config.text_len,
                new_tokens=config.text_len,
                beams=config.decoding.beams,
            )
            # Each chip has all weights, and rows of its own; one row at a time is the least.
            if needed > free:
                unfit.append(name)
            at_once = rows_that_fit(size, needed, free)
            prompt = Modality(name="", num_images=images, text_tokens=config.text_len)
            costs = [prefill_flops(model, budget, prompt) for budget in served]
            # The tower runs once for all budgets.
            each = sum(cost.total - cost.vision for cost in costs) + costs[0].vision
            flops += seeds * items * each
            tokens += seeds * items * sum(images * b + config.text_len for b in served)
            num_batches = seeds * -(-items // size)
            batches += len(served) * num_batches
            # At most as many tokens as the prompt has places; each beam has a cache of its own.
            num_tokens = num_batches * size // at_once * config.text_len
            for budget in served:
                length = images * budget + (1 + config.decoding.beams) * config.text_len
                decode_s += num_tokens * token_seconds(
                    model, chips.topology.chip, rows=at_once, length=length
                )
        if unfit:
            gib = chips.program_bytes / GIB
            self.notes[
                f"evaluations{view.view_suffix} {method} do not fit ({abbreviate_list(unfit, 3)}): "
                f"a chip holds all weights and at least one row, in at most {gib:.1f} GiB"
            ] = None
        # Rows never meet between chips, so only computing counts.
        pace, count = _pace_of(view, method, pretrainings), len(view.rows) - len(unknown)
        prefills = _chip_hours((pace, pace), flops) if pace else None
        return PlannedTraining(
            name=f"{len(view.rows)} rows evaluated{view.view_suffix} {method}",
            method=method,
            backbone=view.backbone,
            what="evaluations",
            **_chips_fields(chips),
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

    def _note_chips(self, stage: str, chips: StepChips) -> None:
        """Notes a stage that gets fewer chips than the study names."""
        named = self._config.compute.planned_chips
        if chips.count < named.num_chips:
            self.notes[
                f"{stage} trains on {chips.count} of the {named.num_chips} chips of {named}; "
                f"compute.gpus_per_stage and gpus_per_cell say on how many"
            ] = None

    def note_detectable(self, view: StudyView) -> None:
        """Notes which differences between methods the rows of a view can find."""
        # What a difference of captions' scores is made of, a share of answers does not say.
        items = {
            name: num
            for name, row in view.rows.items()
            if (num := self._sizes.num_eval(view, name))
            and is_percentage(metric_of(row.benchmark, view.transfers[row.benchmark]))
        }
        if items and len(view.methods) > 1:
            pretrainings = {pretraining for pretraining, _ in view.seed_pairs}
            num_seeds = len(view.seed_pairs) // len(pretrainings)
            text = describe_detectable(items, len(view.rows), num_seeds, len(pretrainings))
            self.notes[f"{text}{view.view_suffix and f' ({view.view_suffix})'}"] = None

    def all_notes(self) -> Iterator[str]:
        """Yields the notes, the last of them on the sizes of datasets."""
        yield from self.notes
        if self._sizes.is_any_published:
            yield "datasets that are not prepared yet count with their published sizes"

    def _check_batch_on_chips(self, stage: str, train: TrainConfig, topology: Topology) -> None:
        chips = topology.num_chips
        if train.batch_size % chips:
            raise ConfigError(
                f"{stage}.batch_size must be a multiple of the {chips} chips of "
                f"{topology}, got {train.batch_size}."
            )
        if chips % train.num_replicas:
            raise ConfigError(
                f"{stage}.num_replicas must divide the {chips} chips of {topology}, got "
                f"{train.num_replicas}."
            )

    def _estimate_shape_times(
        self, model: ModelConfig, train: TrainConfig, topology: Topology
    ) -> tuple[BatchShape, ...]:
        """Returns the shapes of a stage with times: the largest compiled, the others scaled."""
        # Shapes come in the order of their size; the last one decides memory.
        shapes = _batch_shapes(model, train, num_images=1)
        largest = self._compile_batch_shape(model, train, shapes[-1], topology)
        every = self._every or (largest.compiled is not None and largest.compiled.by_formula)
        timed = []
        for shape in shapes[:-1]:
            timed_shape = (
                self._compile_batch_shape(model, train, shape, topology) if every else shape
            )
            timed.append(
                timed_shape if timed_shape.compiled else _scale_shape(timed_shape, largest)
            )
        return (*timed, largest)

    def _compile_batch_shape(
        self,
        model: ModelConfig,
        train: TrainConfig,
        shape: BatchShape,
        chips: Topology,
        num_images: int = 1,
    ) -> BatchShape:
        # Without a compiler there is a formula. Either is noted, once for the whole
        # plan: `notes` is a dict for that reason. What a TPU's compiler refuses has no estimate.
        compute = self._config.compute
        program = self._train_program(model, train, shape.tokens, num_images)
        arithmetic = {"flops": shape.flops, "mfu": compute.mfu}
        note = ""
        try:
            estimate = compile_program(program, chips, self._compiler, **arithmetic)
        except (CompilerMissingError, CompilationError) as error:
            if not chips.chip.is_gpu and not isinstance(error, CompilerMissingError):
                self.notes[str(error)] = None
                return shape
            estimate = by_formula(
                model, train, chips, shape.tokens, num_images=num_images, **arithmetic
            )
            note = f"by formula, at {compute.mfu:.0%} of the peak (--mfu): {error}"
        else:
            if chips.chip.is_gpu:
                note = (
                    f"a GPU's memory and traffic are the compiler's, its time is a formula: "
                    f"{compute.mfu:.0%} of the peak (--mfu); a run may take "
                    f"{COMPILED_MARGIN:.0%} more memory than that, and fits if that does"
                )
        if note:
            self.notes[note] = None
        return dataclasses.replace(
            shape,
            compiled=estimate,
            compute_s=estimate.compute_s,
            interconnect_s=estimate.interconnect_s,
        )

    def _train_program(
        self, model: ModelConfig, train: TrainConfig, tokens: int, num_images: int = 1
    ) -> TrainProgram:
        return TrainProgram(
            model=model,
            train=train,
            tokens=tokens,
            num_images=num_images,
            deterministic=self._config.compute.deterministic,
        )


def _chips_fields(chips: StepChips) -> dict[str, Any]:
    return {
        "topology": str(chips.topology),
        "chips": chips.count,
        "program_bytes": chips.program_bytes,
    }


def _chip_hours(seconds: tuple[float, float] | None, times: float) -> tuple[float, float] | None:
    return None if seconds is None else (times * seconds[0] / 3600, times * seconds[1] / 3600)


_HEAD = (
    "",
    "runs",
    "steps",
    "G tokens",
    "EFLOP",
    "G params",
    "chips",
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
    return [_training_cells(row) for row in plan.trainings]


def _data_rows(plan: ResourcePlan) -> list[list[str]]:
    """Returns the table rows of the missing datasets that have estimates."""
    return [
        [
            row.name,
            *("" if ends is None else estimate_text(ends) for ends in (row.inputs, row.records)),
            "" if row.num_bytes is None else estimate_text([end / 1e9 for end in row.num_bytes]),
            *("" if ends is None else estimate_text(ends) for ends in (row.core_hours, row.hours)),
            row.measured,
        ]
        for row in plan.datasets
        if row.measured
    ]


def _plan_lines(plan: ResourcePlan) -> Iterator[str]:
    """Yields the lines below the tables."""
    # From what is known to what is not: the sum, how to read it, then what does not fit, what could
    # not be counted, data and storage, and how the estimates were made.
    low, high = plan.chip_hours
    yield f"together {_hours_text(low, high)} chip-hours" + (
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
        if row.memory_bytes and not row.fits:
            # All transfers of a method are one row, and its memory is the largest of theirs.
            what = "of {}, the largest" if row.what == "transfers" else "{}"
            yield (
                f"{what.format(row.name)} does not fit: it asks for "
                f"{row.needed_bytes / GIB:.1f} GiB a chip. "
                f"model.remat=full, a small microbatch and num_replicas=1 take the least."
            )
    chip = plan.topology.chip
    shipped = config_for_card(chip.hbm_bytes) if chip.is_gpu else None
    if shipped and not all(row.fits for row in plan.trainings):
        yield f"{shipped} is a study of PaliGemma 2 3B that fits one {plan.topology.kind}"
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
        time = f" take {_hours_text(low, high)} chip-hours and"
    yield (
        f"{sum(row.runs for row in rows):,} transfers{time} write {written / 1e12:,.2f} TB of "
        f"parameters, of which {kept * written / 1e12:,.2f} TB stay "
        f"(keep.transfers: {plan.transfer_files})"
    )


def _pretrainings(
    config: StudyConfig,
) -> Iterator[tuple[str, StudyView, Method, TrainConfig, StepChips]]:
    # The order in which the graph trains them; Stage 1 is one for all methods of a backbone.
    shared, own = config.compute.chips_of_stage, config.compute.chips_of_cell
    for study in config.backbone_studies:
        stages = stages_of(study)
        for stage in stages:
            if stage.is_shared:
                yield stage.name, stage.view, REFERENCE, stage.train_config_of(REFERENCE), shared
        for method in config.methods:
            for stage in stages:
                if method in stage.methods and not stage.is_shared:
                    yield stage.name, stage.view, method, stage.train_config_of(method), own


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
    view: StudyView, method: Method, pretrainings: Sequence[PlannedTraining]
) -> float | None:
    """Returns the time that a chip computes per FLOP in a method's last pretraining [s].

    None where no pretraining's time is known.
    """
    for row in reversed(pretrainings):
        if row.step_s is not None and (row.method, row.backbone) == (method, view.backbone):
            flops = sum(shape.share * shape.flops for shape in row.shapes)
            return row.chips * row.step_s[0] / flops
    return None


def _describe_uncounted(
    names: Sequence[str], why: str = "that count epochs of data not prepared yet"
) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return f"not counted ({shown}): {len(names)} {why}"


def _training_cells(row: PlannedTraining) -> list[str]:
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
        f"{row.chips}",
        f"{memory / GIB:.1f}{'' if row.fits else '!'}" if memory else "",
        *(programs if row.shapes else [""]),
        _range_text(*row.step_s, 3) if row.step_s else "",
        _hours_text(*row.chip_hours) if row.chip_hours else "?",
    ]


def _hours_text(low: float, high: float) -> str:
    # Below ten hours, as a day on one GPU is made of, whole ones would say too little.
    return _range_text(low, high, 0 if high >= 10 else 1)


def _range_text(low: float, high: float, digits: int) -> str:
    first, last = f"{low:,.{digits}f}", f"{high:,.{digits}f}"
    return first if first == last else f"{first}-{last}"
