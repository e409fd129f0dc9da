"""The parts in which a study's trainings compute their batches, so that a step fits a chip."""

import dataclasses
from collections.abc import Iterator

from flows.config.stage_list import stages_of
from flows.config.study import REFERENCE, StudyConfig
from flows.report.text_lists import abbreviate_list
from flows.study.costs import num_images_of
from infra.chips.topology import GIB, Topology
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
      model: config of the model.
      train: the training recipe.
      num_images: images per example.
    """

    name: str
    model: ModelConfig
    train: TrainConfig
    num_images: int


def programs_of(config: StudyConfig) -> Iterator[PlannedProgram]:
    """Yields the largest program of every training of a study; all seeds share it."""
    for stage in (stage for pair in config.pairs for stage in stages_of(pair)):
        for method in (REFERENCE,) if stage.is_shared else stage.methods:
            yield PlannedProgram(
                name=f"{stage.name} {method}{stage.view.on}",
                model=stage.view.model_of(method),
                train=stage.train_config_of(method),
                num_images=1,
            )
    for view in config.views:
        for method in view.methods:
            for benchmark in view.fine_tunings:
                yield PlannedProgram(
                    name=f"transfer {method} {benchmark}{view.at}",
                    model=view.model_of(method, transfer=True),
                    train=view.fine_tuning_of(benchmark, method),
                    num_images=num_images_of(view, benchmark),
                )


def with_planned_microbatch(program: PlannedProgram, topology: Topology) -> TrainConfig:
    """Returns the recipe with the number that `microbatch: auto` stands for on these chips."""
    if program.train.microbatch != "auto":
        return program.train
    rows = _fitting(program, topology)
    return dataclasses.replace(program.train, microbatch=rows or 1)


def describe_parts(config: StudyConfig, topology: Topology) -> Iterator[str]:
    """Yields a line for trainings whose batches do not fit as a whole, by formula, and the cure.

    Trainings that compute as many of as many examples at a time share a line.
    """
    programs_by_line: dict[str, list[tuple[str, float]]] = {}
    for program in programs_of(config):
        if line := _describe(program, topology):
            needed = planned_bytes(program, with_planned_microbatch(program, topology), topology)
            programs_by_line.setdefault(line, []).append((program.name, needed / GIB))
    for line, programs in programs_by_line.items():
        names, gib = [name for name, _ in programs], max(gib for _, gib in programs)
        yield f"{abbreviate_list(names, _MAX_NAMES)}: {line.format(gib=gib)}"


def _describe(program: PlannedProgram, topology: Topology) -> str:
    """Returns a line with room for the memory, {gib}; "" for a batch that fits as a whole."""
    # A training whose batch all chips cannot share runs on fewer.
    size, chips = program.train.batch_size, topology.num_chips
    if size % chips:
        return ""
    train, rows = with_planned_microbatch(program, topology), size // chips
    if planned_bytes(program, train, topology) <= topology.chip.program_bytes:
        if (passes := train.num_passes(rows)) == 1:
            return ""
        at_once = f"a chip computes {rows // passes} of a batch of {size} at a time"
        return f"{at_once}, in at most {{gib:.1f}} GiB by formula"
    fits = _fitting(program, topology)
    cure = (
        f"microbatch: {fits} fits, and so does compute.microbatch: auto"
        if fits
        else "no microbatch fits; lora or freeze_text take less, and more chips share the state"
    )
    asked = f"a batch of {size} asks for up to {{gib:.1f}} GiB a chip by formula"
    return f"{asked}, and does not fit; {cure}"


def _fitting(program: PlannedProgram, topology: Topology) -> int | None:
    return fitting_microbatch(
        program.model,
        program.train,
        topology.chip.program_bytes,
        num_images=program.num_images,
        devices=topology.num_chips,
    )


def planned_bytes(program: PlannedProgram, train: TrainConfig, topology: Topology) -> float:
    """Returns the memory of a step on each of some chips, by formula [bytes]."""
    tokens = max(declared_buckets(program.model, train))
    return step_bytes(
        program.model, train, tokens, num_images=program.num_images, devices=topology.num_chips
    )
