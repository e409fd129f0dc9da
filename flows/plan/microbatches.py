"""The microbatches of a study's trainings: how they compute a batch, so that a step fits a chip."""

import dataclasses
from collections.abc import Iterator

from flows.config.compute import StepChips
from flows.graph.costs import num_images_of
from flows.report.text_lists import abbreviate_list
from flows.study.settings import REFERENCE, Method
from flows.study.stage_list import stages_of
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from infra.chips.topology import GIB
from model.config import ModelConfig
from model.train.config import TrainConfig
from model.train.memory import fitting_microbatch, step_bytes
from model.train.step import declared_buckets

_MAX_NAMES = 3
"""Most trainings named in a line; the others are counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedProgram:
    """The largest program of a training.

    Attributes:
      name: name of the training, for people.
      chips: the chips that train it.
      cure: what gives it a number of chips that divides its batch, beside another batch.
      model: config of the model.
      train: the training recipe.
      num_images: images per example.
    """

    name: str
    model: ModelConfig
    train: TrainConfig
    num_images: int
    chips: StepChips
    cure: str = ""


def training_programs(config: StudyConfig) -> Iterator[PlannedProgram]:
    """Yields the largest program of every training of a study; all seeds share it.

    Raises:
      ConfigError: if the study names no chips.
    """
    compute = config.compute
    for stage in (stage for study in config.backbone_studies for stage in stages_of(study)):
        for method in (REFERENCE,) if stage.is_shared else stage.methods:
            yield PlannedProgram(
                name=f"{stage.name} {method}{stage.view.backbone_suffix}",
                model=stage.view.model_of(method),
                train=stage.train_config_of(method),
                num_images=1,
                chips=compute.chips_of_stage if stage.is_shared else compute.chips_of_cell,
            )
    for view in config.views:
        for method in view.methods:
            for benchmark in view.fine_tunings:
                yield transfer_program(view, method, benchmark)


def transfer_program(view: StudyView, method: Method, benchmark: str) -> PlannedProgram:
    """Returns the largest program of a transfer; raises as `training_programs`."""
    compute = view.compute
    return PlannedProgram(
        name=f"transfer {method} {benchmark}{view.view_suffix}",
        model=view.model_of(method, transfer=True),
        train=view.fine_tuning_of(benchmark, method),
        num_images=num_images_of(view, benchmark),
        chips=compute.chips_of_transfer,
        cure=(
            "leave out compute.processes_per_cell, for one host"
            if compute.transfer_processes > 1
            else "another compute.gpus_per_cell"
            if compute.planned_chips.chip.is_gpu
            else ""
        ),
    )


def with_planned_microbatch(program: PlannedProgram) -> TrainConfig:
    """Returns the recipe with the number that `microbatch: auto` stands for on these chips."""
    if program.train.microbatch != "auto":
        return program.train
    rows = _microbatch_for_program(program)
    return dataclasses.replace(program.train, microbatch=rows or 1)


def describe_microbatches(config: StudyConfig) -> Iterator[str]:
    """Yields a line for trainings whose batches their chips do not take as a whole, and the cure.

    Either the chips do not divide the batch, or it does not fit them by formula.

    Trainings that compute as many of as many examples at a time share a line.
    """
    programs_by_line: dict[str, list[tuple[str, float]]] = {}
    for program in training_programs(config):
        if line := _describe_batch_fit(program):
            needed = planned_bytes(program, with_planned_microbatch(program))
            programs_by_line.setdefault(line, []).append((program.name, needed / GIB))
    for line, programs in programs_by_line.items():
        names, gib = [name for name, _ in programs], max(gib for _, gib in programs)
        yield f"{abbreviate_list(names, _MAX_NAMES)}: {line.format(gib=gib)}"


def _describe_batch_fit(program: PlannedProgram) -> str:
    """Returns a line with room for the memory, {gib}; "" for a batch that fits as a whole."""
    size, chips = program.train.batch_size, program.chips.count
    if (shards := program.train.exact_shards) is not None and shards % chips:
        return (
            f"exact_shards of {shards} is refused when it starts: it is no multiple of its "
            f"{chips} chips"
        )
    if size % chips:
        # A training never takes fewer chips than its processes have (`step.check_devices`).
        near = [n for n in (size // chips * chips, (size // chips + 1) * chips) if n]
        cures = [f"a batch_size of {' or '.join(map(str, near))}"]
        cures += [program.cure] if program.cure else []
        return (
            f"a batch of {size} is refused when it starts: it is no multiple of its "
            f"{chips} chips; {', or '.join(cures)}"
        )
    train, rows = with_planned_microbatch(program), program.train.rows_of_part(chips)
    if planned_bytes(program, train) <= program.chips.program_bytes:
        if (passes := train.num_passes(rows)) == 1:
            return ""
        at_once = f"a chip computes {rows // passes} of a batch of {size} at a time"
        return f"{at_once}, in at most {{gib:.1f}} GiB by formula"
    fits = _microbatch_for_program(program)
    cure = (
        f"microbatch: {fits} fits, and so does compute.microbatch: auto"
        if fits
        else "no microbatch fits; lora, freeze_text or model.remat: full take less, and more chips "
        "share the state"
    )
    asked = f"a batch of {size} on {chips} chip{'s' if chips > 1 else ''}"
    asked += " asks for up to {gib:.1f} GiB a chip by formula"
    return f"{asked}, and does not fit; {cure}"


def _microbatch_for_program(program: PlannedProgram) -> int | None:
    return fitting_microbatch(
        program.model,
        program.train,
        program.chips.program_bytes,
        num_images=program.num_images,
        devices=program.chips.count,
    )


def planned_bytes(program: PlannedProgram, train: TrainConfig) -> float:
    """Returns the memory of a step on each of its chips, by formula [bytes]."""
    tokens = max(declared_buckets(program.model, train))
    return step_bytes(
        program.model,
        train,
        tokens,
        num_images=program.num_images,
        devices=program.chips.count,
    )
