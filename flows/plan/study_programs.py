"""The device programs that a study's run would compile, each once, from the study's own recipes."""

import dataclasses
from collections.abc import Iterator

from flows.config.benchmark import training_of
from flows.config.compute import StepChips
from flows.graph.costs import num_images_of
from flows.graph.specs import decode_of, watch_of
from flows.plan.decoding import param_bytes
from flows.plan.microbatches import PlannedProgram, with_planned_microbatch
from flows.study.settings import REFERENCE, Method
from flows.study.stage_list import PretrainingStage, stages_of
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from infra.chips.topology import Topology
from model.analysis.measure import BATCH
from model.chips.programs import (
    AnswerProgram,
    AttentionProgram,
    DeviceProgram,
    HeldOutProgram,
    TowerProgram,
    TrainProgram,
)
from model.config import ModelConfig
from model.connector import budgets
from model.decode.memory import SHARE, row_bytes, rows_that_fit
from model.train.config import ProgramConfig, TrainConfig
from model.train.step import declared_buckets

HOST_STEPS = ("release, export and cast: NumPy on the host, no device program",)
"""What a study or its release computes without an accelerator."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyProgram:
    """A program and its places in a study.

    Attributes:
      program: the program.
      names: those places, as "intermediary parcel, 256 tokens".
    """

    program: DeviceProgram
    names: tuple[str, ...]


def study_programs(config: StudyConfig, topology: Topology) -> tuple[StudyProgram, ...]:
    """Returns the programs of a study on some chips, in the order in which a run comes to them.

    Args:
      config: the study.
      topology: the chips, whose memory decides how many rows are answered at a time.
    """
    names: dict[DeviceProgram, list[str]] = {}
    for name, program in _all_programs(config, topology):
        names.setdefault(program, []).append(name)
    return tuple(StudyProgram(program=p, names=tuple(n)) for p, n in names.items())


def _all_programs(config: StudyConfig, topology: Topology) -> Iterator[tuple[str, DeviceProgram]]:
    for stage in (stage for study in config.backbone_studies for stage in stages_of(study)):
        for method in (REFERENCE,) if stage.is_shared else stage.methods:
            yield from _stage_programs(stage, method, topology)
    for view in config.views:
        for method in view.methods:
            yield from _transfer_programs(view, method, topology)
            yield from _evaluation_programs(view, method, topology)
            yield from _spectral_programs(view, method)


def _stage_programs(
    stage: PretrainingStage, method: Method, topology: Topology
) -> Iterator[tuple[str, DeviceProgram]]:
    deterministic = stage.view.compute.deterministic
    model, train = stage.view.model_of(method), stage.train_config_of(method)
    name = f"{stage.name} {method}{stage.view.backbone_suffix}"
    yield from _update_programs(name, model, train, 1, topology, deterministic=deterministic)
    for what, program in watch_programs(stage.view, method, model, train, topology):
        yield f"{name} {what}", program


def watch_programs(
    view: StudyView, method: Method, model: ModelConfig, train: TrainConfig, topology: Topology
) -> Iterator[tuple[str, HeldOutProgram | TrainProgram]]:
    """Yields the programs of `watch` beside a stage: held-out losses, then the probe's updates.

    Args:
      view: the study at the stage's resolution.
      method: the method that is trained.
      model: config of its model.
      train: the stage's recipe.
      topology: the chips.
    """
    watch = watch_of(view, method)
    if watch is None or view.watch is None:
        return
    size = min(train.batch_size, watch.examples)
    held_out = dataclasses.replace(train, batch_size=size, microbatch=None)
    for budget in watch.budgets if view.watch.sources else ():
        tokens = budgets.bucket_of(model, budget).size
        program = HeldOutProgram(model=model, train=_shapes_of(held_out), tokens=tokens)
        yield f"watch, {tokens} tokens", program
    if watch.probe is not None and view.watch.probe is not None:
        yield from _update_programs(
            "probe",
            watch.probe.model,
            watch.probe.train,
            num_images_of(view, view.watch.probe.benchmark),
            topology,
            deterministic=view.compute.deterministic,
        )


def _transfer_programs(
    view: StudyView, method: Method, topology: Topology
) -> Iterator[tuple[str, DeviceProgram]]:
    model = view.model_of(method, transfer=True)
    for benchmark in view.fine_tunings:
        yield from _update_programs(
            f"transfer {benchmark}{view.view_suffix} {method}",
            model,
            view.fine_tuning_of(benchmark, method),
            num_images_of(view, benchmark),
            topology,
            deterministic=view.compute.deterministic,
        )


def _update_programs(
    name: str,
    model: ModelConfig,
    train: TrainConfig,
    num_images: int,
    topology: Topology,
    *,
    deterministic: bool,
) -> Iterator[tuple[str, TrainProgram]]:
    chips = StepChips(topology)
    train = with_planned_microbatch(
        PlannedProgram(name=name, model=model, train=train, num_images=num_images, chips=chips)
    )
    for tokens in declared_buckets(model, train):
        frames = f" x {num_images}" if num_images > 1 else ""
        yield (
            f"{name}, {tokens}{frames} tokens",
            TrainProgram(
                model=model,
                train=_shapes_of(train),
                tokens=tokens,
                num_images=num_images,
                deterministic=deterministic,
            ),
        )


def _shapes_of(train: TrainConfig) -> ProgramConfig:
    """Returns the part of a config that its compiled programs depend on, without its budgets."""
    return dataclasses.replace(train.program, budgets=None)


def _evaluation_programs(
    view: StudyView, method: Method, topology: Topology
) -> Iterator[tuple[str, DeviceProgram]]:
    # As many prompts at a time as fit beside the parameters at the largest budget, so that every
    # budget of a row has the same batch, as the evaluation itself does it.
    free = SHARE * (topology.chip.program_bytes - param_bytes(view.model_of(method)))
    for row in view.rows.values():
        training = training_of(row.benchmark, view.transfers[row.benchmark])
        model = view.model_of(method, transfer=bool(training))
        config, images = decode_of(view, row.benchmark), num_images_of(view, row.benchmark)
        for budget in view.budgets_of(method):
            needed = row_bytes(
                model,
                max(view.budgets_of(method)),
                num_images=images,
                text_len=config.text_len,
                new_tokens=config.text_len,
                beams=config.decoding.beams,
            )
            rows = rows_that_fit(config.batch_size, needed, free)
            where = f"evaluation {training or 'zero-shot'}{view.view_suffix} {method}"
            yield (
                f"{where}, tower",
                TowerProgram(model=model, rows=rows, num_images=images),
            )
            yield (
                f"{where}, {budget}{f' x {images}' if images > 1 else ''} tokens",
                AnswerProgram(
                    model=model,
                    budget=budget,
                    rows=rows,
                    num_images=images,
                    text_len=config.text_len,
                    new_tokens=config.text_len,
                    decoding=config.decoding,
                ),
            )


def _spectral_programs(view: StudyView, method: Method) -> Iterator[tuple[str, DeviceProgram]]:
    model = view.model_of(method)
    yield f"spectra{view.view_suffix} {method}, tower", TowerProgram(model=model, rows=BATCH)
    for budget in view.budgets_of(method):
        yield (
            f"spectra{view.view_suffix} {method}, {budget} tokens",
            AttentionProgram(model=model, budget=budget, rows=BATCH),
        )
