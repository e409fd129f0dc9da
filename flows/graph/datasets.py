"""The datasets of a study: which are prepared, from what, and how."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from flows.config.benchmark import (
    TransferConfig,
    eval_rows_of,
    eval_window_of,
    source_of,
    train_data,
    trained_on,
)
from flows.config.references import corpus_reference
from flows.config.source import SourceConfig
from flows.config.watched import watched_name
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.kinds.raw_files import RawFilesSpec
from flows.study.view import StudyView
from pipelines.prepare.config import PrepareConfig
from pipelines.records.licence import NO_LICENCE, Licence
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import source_spec

NO_LICENCES: Mapping[str, Licence] = MappingProxyType({})


def datasets_of(
    view: StudyView, licences: Mapping[str, Licence] = NO_LICENCES
) -> dict[str, DatasetSpec]:
    """Returns name -> spec of every dataset to prepare at a resolution.

    Args:
      view: the view of a study.
      licences: folder of raw data -> licence that came with it.
    """
    # The names say what a dataset is for, and at which resolution:
    #
    #   web                         a corpus of the mixture
    #   web@448                     the same, for a Stage 2 at 448 px
    #   chartqa/train               what transfers to ChartQA learn from
    #   chartqa:test_human/eval     a row of the table
    specs: dict[str, DatasetSpec] = {}

    def licence_of(reader: str | OwnSource, path: str, stated: Licence) -> Licence:
        folder = path or source_spec(reader).folder
        return stated if stated.is_stated else licences.get(folder, NO_LICENCE)

    def corpus_spec(field: str, source: SourceConfig) -> DatasetSpec:
        reader = corpus_reference(f"{field}.reader", source.reader)
        return DatasetSpec(
            reader=reader,
            path=source.path,
            split=source.split,
            features=source.features,
            prepare=source.prepare or view.prepare,
            licence=licence_of(reader, source.path, source.licence),
        )

    # The mixture is augmented as its settings say; whatever is measured on is not.
    for i, source in enumerate(view.sources):
        spec = corpus_spec(f"sources.{i}", source)
        allowed = dataclasses.replace(spec, licences=view.licences)
        specs[f"{source.name}{view.view_suffix}"] = allowed
    for i, source in enumerate(view.watch.sources if view.watch else ()):
        spec = corpus_spec(f"watch.sources.{i}", source)
        unaugmented = dataclasses.replace(spec, prepare=spec.prepare.unaugmented())
        specs[f"{watched_name(source)}{view.view_suffix}"] = unaugmented
    for name, transfer in view.transfers.items():
        # A zero-shot benchmark has no training split of its own: its parent's is prepared, once,
        # whichever of the two the config names first.
        training_benchmark = trained_on(name)
        train_split = f"{training_benchmark}{view.view_suffix}/train"
        if not transfer.zero_shot and train_split not in specs:
            parent = view.transfers.get(training_benchmark)
            prepare = _prepare_of(view, parent or transfer)
            path, split = train_data(name, view.transfers)
            reader = source_of(training_benchmark, parent or transfer)
            # A zero-shot benchmark's own licence is not that of its parent's rows.
            stated = parent.licence if parent else NO_LICENCE
            specs[train_split] = DatasetSpec(
                reader=reader,
                path=path,
                split=split,
                prepare=prepare,
                licence=licence_of(reader, path, stated),
                licences=view.licences,
            )
        for row in eval_rows_of(name, transfer):
            prepare = _prepare_of(view, transfer).for_evaluation(eval_window_of(name))
            limit = transfer.eval_limit or prepare.limit
            reader = source_of(name, transfer)
            # No `licences` here: a score over a part of a benchmark is another number.
            specs[f"{row.name}{view.view_suffix}/eval"] = DatasetSpec(
                reader=reader,
                path=transfer.path,
                split=row.split,
                prepare=dataclasses.replace(prepare, limit=limit),
                licence=licence_of(reader, transfer.path, transfer.licence),
            )
    return specs


def raw_folders(spec: DatasetSpec) -> tuple[str, ...]:
    """Returns the folders below the data root that a dataset is made from."""
    return tuple(source_spec(spec.reader).folders(spec.path))


def raw_files_spec(spec: DatasetSpec, state: str) -> RawFilesSpec:
    """Returns the spec of a dataset's raw files.

    Args:
      spec: the dataset.
      state: digest of the names, sizes and times of the files in its `raw_folders` [hex].
    """
    return RawFilesSpec(
        reader=spec.reader,
        path=spec.path,
        split=spec.split,
        features=spec.features,
        state=state,
        prepare=spec.prepare,
    )


def _prepare_of(view: StudyView, transfer: TransferConfig) -> PrepareConfig:
    """Returns the settings for preparing a benchmark; augmented only if its own settings say so."""
    prepare = transfer.prepare or view.prepare.unaugmented()
    return dataclasses.replace(
        prepare,
        num_frames=transfer.num_frames or prepare.num_frames,
        frame_stride=transfer.frame_stride or prepare.frame_stride,
    )
