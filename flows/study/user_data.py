"""The check of users' own benchmarks, their data and metrics, before anything runs."""

import time
from itertools import islice

from flows.config.benchmark import TransferConfig, eval_rows_of, metric_of, source_of, train_data
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from infra.errors import ConfigError
from infra.store.raw_path import raw_path
from model.eval.scorer import Scorer
from pipelines.records.schema import Reject
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.registry import BENCHMARKS, source_spec

_ROWS = 1000
"""Most rows of each split that are read; a wrong column shows in the first ones."""

_SECONDS = 2.0
"""Longest time for trying a metric: a user's metric may be slow, by calling a model say [s]."""


def check_user_data(config: StudyConfig) -> None:
    """Reads the first rows of users' own benchmarks, and scores each row's first answer.

    Raises:
      ConfigError: if files or pictures are missing, more rows are wrong than the study accepts, or
        the metric cannot score them; names the row and the cure.
    """
    if config.data_root is None:
        return  # The synthetic corpus has no such benchmarks; `check_study_files` refuses them.
    for view in config.backbone_studies[0].resolutions:  # The others have the same benchmarks.
        _check_benchmarks(view, config.data_root)


def _check_benchmarks(view: StudyView, data_root: str) -> None:
    for name, transfer in view.transfers.items():
        if name in BENCHMARKS:
            continue
        accepted = (transfer.prepare or view.prepare).max_reject_rate
        _, split = train_data(name, view.transfers)
        field = f"transfers.{name}.train_split"
        _read_usable_rows(field, name, transfer, data_root, split, accepted)
        for row in eval_rows_of(name, transfer):
            field = f"transfers.{name}.eval_splits"
            items = _read_usable_rows(field, name, transfer, data_root, row.split, accepted)
            if transfer.transfer:
                _check_user_metric(name, transfer, items)


def _read_usable_rows(
    field: str, name: str, transfer: TransferConfig, data_root: str, split: str, accepted: float
) -> list[Item]:
    """Returns the usable items among the first rows of a split, once enough of them are usable."""
    spec, root = source_spec(source_of(name, transfer)), raw_path(data_root)
    try:
        corpus = Corpus(root, transfer.path or spec.folder, UnpackedMedia())
        rows = list(islice(spec.read_splits(corpus, split), _ROWS))
    except FileNotFoundError as error:
        raise ConfigError(f"{field}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"transfers.{name}.reader: {error}") from None
    if not rows:
        raise ConfigError(f"{field}: split {split!r} of {corpus.folder} has no rows.")
    # Pictures are looked for, not decoded: a missing folder shows, at little cost.
    media_reader = MediaReader(root)
    faults = [fault for row in rows if (fault := _row_fault(row, media_reader, data_root))]
    # In a split that was read in part, the first rows may be the worst: be more lenient there.
    max_share = accepted if len(rows) < _ROWS else max(accepted, 0.5)
    if len(faults) > max_share * len(rows):
        raise ConfigError(
            f"{field}: {faults[0]}. Of the {len(rows)} rows of split {split!r} looked at, "
            f"{len(faults)} cannot be used; prepare.max_reject_rate accepts {accepted:.0%}."
        )
    return [row for row in rows if isinstance(row, Item)]


def _row_fault(row: Item | Reject, media_reader: MediaReader, data_root: str) -> str:
    """Returns the fault of a row, with its place; "" if it has none."""
    if isinstance(row, Reject):
        return f"{row.source} {row.id.rpartition('/')[2].replace('-', ' ')}: {row.reason}"
    for media in row.media:
        if not media_reader.has(media):
            return f"{row.id}: there is no file {media.path} below {data_root}"
    return ""


def _check_user_metric(name: str, transfer: TransferConfig, items: list[Item]) -> None:
    scorer, began = Scorer(metric_of(name, transfer)), time.monotonic()
    try:
        for item in items:
            if time.monotonic() - began > _SECONDS:
                break
            fields = {**item.meta, "id": item.id, "lang": item.lang, "answers": item.answers}
            scorer.add(item.answers[0], {**fields, "masks": item.masks})
        scorer.finish()
    except ValueError as error:
        raise ConfigError(f"transfers.{name}.metric: {error}") from None
