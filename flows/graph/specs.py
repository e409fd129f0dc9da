"""What a view's settings make of single steps: how answers are decoded, scored and watched."""

import dataclasses
from collections.abc import Mapping

from flows.config.benchmark import decoding_of, metric_of, training_of
from flows.config.watched import watched_name
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import PROBE, WATCHED
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.kinds.scores import ScoreSpec
from flows.study.settings import Method
from flows.study.view import StudyView
from infra.store.manifest import SHOWN
from model.decode.config import DecodeConfig
from model.eval.config import EvalConfig
from model.train.config import TrainConfig
from model.watch.config import ProbeConfig, WatchConfig


def decode_of(view: StudyView, benchmark: str) -> DecodeConfig:
    """Returns the config for answering a benchmark."""
    transfer = view.transfers[benchmark]
    return DecodeConfig(
        batch_size=view.eval_batch_size,
        text_len=transfer.eval_text_len or transfer.train.text_len,
        max_frames=transfer.train.max_frames,
        decoding=decoding_of(benchmark, transfer),
    )


def evaluations_of(
    view: StudyView, training_benchmark: str, method: Method
) -> list[tuple[str, EvaluateSpec, ScoreSpec]]:
    """Returns the evaluations of a checkpoint: the rows of its benchmark and of its children.

    Of "" it is a stage's checkpoint, and the rows are those of all zero-shot benchmarks. Each is a
    row, the answers to it, and their score.
    """
    #   parcel, trained on chartqa      chartqa:test_human @16, @64; chartqa:test_augmented @16, @64
    return [
        (
            row,
            EvaluateSpec(
                budget=budget,
                decode=decode_of(view, entry.benchmark),
                connector=view.connector_of(method),
                vision=view.model.vision.family,
                text=view.model.text.family,
                prompt=view.model.prompt,
            ),
            ScoreSpec(
                benchmark=entry.benchmark,
                budget=budget,
                metric=metric_of(entry.benchmark, view.transfers[entry.benchmark]),
            ),
        )
        for row, entry in view.rows.items()
        if training_of(entry.benchmark, view.transfers[entry.benchmark]) == training_benchmark
        for budget in view.budgets_of(method)
    ]


def watch_of(view: StudyView, method: Method) -> WatchConfig | None:
    """Returns the settings for watching a method's stages at a resolution; None without `watch`."""
    watch, served_budgets = view.watch, view.budgets_of(method)
    if watch is None:
        return None
    # Two things can be watched during a stage: the loss on held-out records, and the score of a
    # probe, which is a short transfer from the stage as it stands.
    probe = None
    if row := _probed_row(view):
        assert watch.probe is not None
        benchmark = view.rows[row].benchmark
        # The benchmark's own recipe, cut short: its epochs are dropped, so that `steps` decides.
        train = view.fine_tuning_of(watch.probe.benchmark, method)
        size = watch.probe.batch_size or train.batch_size
        probe = ProbeConfig(
            model=view.model_of(method, transfer=True),
            train=dataclasses.replace(
                train, total_steps=watch.probe.steps, epochs=None, batch_size=size
            ),
            decode=EvalConfig(
                metric=metric_of(benchmark, view.transfers[benchmark]),
                **vars(decode_of(view, benchmark)),
            ),
            examples=watch.probe.examples,
        )
    return WatchConfig(
        every=watch.every,
        examples=watch.examples,
        # All tokens for Stage 1, which is of vanilla, in a study without vanilla.
        budgets=served_budgets or (view.model.vision.num_patches,),
        probe=probe,
    )


def watched_datasets(view: StudyView, datasets: Mapping[str, Step]) -> dict[str, Step]:
    """Returns role -> dataset that a stage's watching reads at a resolution."""
    sources = view.watch.sources if view.watch else ()
    names = [f"{watched_name(source)}{view.view_suffix}" for source in sources]
    steps_by_role = {f"{WATCHED}{i}": datasets[name] for i, name in enumerate(names)}
    if row := _probed_row(view):
        assert view.watch is not None
        assert view.watch.probe is not None
        train_split = f"{view.watch.probe.benchmark}{view.view_suffix}/train"
        steps_by_role |= dict(
            zip(PROBE, (datasets[train_split], datasets[f"{row}/eval"]), strict=True)
        )
    return steps_by_role


def samples_dataset(
    view: StudyView, datasets: Mapping[str, Step], train: TrainConfig, benchmark: str = ""
) -> dict[str, Step]:
    """Returns the dataset of the questions that `sample_steps` has answered, by its role.

    It is that of the first row that is scored with the training, or of a stage's study; none
    without `sample_steps`, or without rows.
    """
    rows = [
        name
        for name, row in view.rows.items()
        if not benchmark or training_of(row.benchmark, view.transfers[row.benchmark]) == benchmark
    ]
    return {SHOWN: datasets[f"{rows[0]}/eval"]} if train.sample_steps and rows else {}


def _probed_row(view: StudyView) -> str:
    """Returns the row that the probe is scored on; "" without a probe at this resolution."""
    probe = view.watch.probe if view.watch else None
    if probe is None or probe.benchmark not in view.fine_tunings:
        return ""
    # The benchmark's own row first; without any, one that is scored with its training.
    rows = [name for name, row in view.rows.items() if row.benchmark == probe.benchmark]
    scored = [
        name
        for name, row in view.rows.items()
        if training_of(row.benchmark, view.transfers[row.benchmark]) == probe.benchmark
    ]
    return (rows or scored)[0]
