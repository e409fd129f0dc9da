"""The checks that a study does not train on splits that it is scored on or watched by."""

from collections.abc import Mapping, Sequence

from flows.config.benchmark import TransferConfig, eval_rows_of, source_of, train_data, trained_on
from flows.config.references import corpus_reference
from flows.config.source import SourceConfig
from pipelines.hygiene.screen import HygieneConfig
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.registry import source_spec


def check_held_out(
    sources: Sequence[SourceConfig], transfers: Mapping[str, TransferConfig]
) -> None:
    """Refuses a mixture or a transfer that may train on records of a scored split.

    Splits are compared by name, folder and slice: "train[:98%]" and "train[98%:]" share no record.
    Copies under other names are not found here; `hygiene` looks for those.

    Raises:
      ValueError: naming the field, the split, the benchmark scored on it, and the cure.
    """
    mixture = [
        (
            f"sources.{i}.split",
            source_spec(corpus_reference(f"sources.{i}.reader", s.reader)),
            s.path,
            s.split,
        )
        for i, s in enumerate(sources)
    ]
    for name, transfer in transfers.items():
        if not transfer.transfer or transfer.allow_train_on_eval:
            continue
        training_benchmark = trained_on(name)
        # What a row's checkpoints have read: the benchmark's own training split, unless nothing is
        # fine-tuned, and the mixture.
        folder, split = train_data(name, transfers)
        entry = training_benchmark if training_benchmark in transfers else name
        field = f"transfers.{entry}.train_split"
        tuned = [
            (
                field,
                source_spec(source_of(training_benchmark, transfers.get(training_benchmark))),
                folder,
                split,
            )
        ]
        training_splits = [*mixture] if transfer.zero_shot else [*tuned, *mixture]
        scored_source = source_spec(source_of(name, transfer))
        for row in eval_rows_of(name, transfer):
            for field, spec, folder, split in training_splits:
                if _splits_overlap(spec, folder, split, scored_source, transfer.path, row.split):
                    raise ValueError(
                        f"{field} must be held out from what is scored, got {split}: {name} is "
                        f"scored on {row.split}. Train on another split, or state "
                        f"transfers.{name}.allow_train_on_eval: true."
                    )


def check_screened(
    hygiene: HygieneConfig | None,
    sources: Sequence[SourceConfig],
    transfers: Mapping[str, TransferConfig],
) -> None:
    """Refuses a screening that would remove a corpus because transfers train on it, too.

    Raises:
      ValueError: naming the source, the benchmark and the cure.
    """
    if hygiene is None or (hygiene.splits, hygiene.contamination) != ("all", "remove"):
        return
    for i, source in enumerate(sources):
        spec = source_spec(corpus_reference(f"sources.{i}.reader", source.reader))
        for name, transfer in transfers.items():
            if transfer.zero_shot:
                continue
            trained = source_spec(source_of(trained_on(name), transfers.get(trained_on(name))))
            folder, split = train_data(name, transfers)
            if _splits_overlap(spec, source.path, source.split, trained, folder, split):
                raise ValueError(
                    f"hygiene.splits must be evaluation where the mixture holds what a transfer "
                    f"trains on, got all: sources.{i} has records of {trained_on(name)}'s {split}, "
                    f"which would all be removed."
                )


def check_watched(sources: Sequence[SourceConfig], watched: Sequence[SourceConfig]) -> None:
    """Refuses watched sources that may share records with the mixture; see `check_held_out`.

    Raises:
      ValueError: naming the split and the cure.
    """
    # Every pair: a watched loss on records that are trained on would fall for the wrong reason.
    for i, source in enumerate(watched):
        watched_source = source_spec(corpus_reference(f"watch.sources.{i}.reader", source.reader))
        for j, mixture_source in enumerate(sources):
            spec = source_spec(corpus_reference(f"sources.{j}.reader", mixture_source.reader))
            if _splits_overlap(
                spec,
                mixture_source.path,
                mixture_source.split,
                watched_source,
                source.path,
                source.split,
            ):
                raise ValueError(
                    f"watch.sources.{i}.split must be held out from sources.{j}.split, "
                    f"{mixture_source.split}, got {source.split}; train on train[:95%] and watch "
                    f"train[95%:], say."
                )


def _splits_overlap(
    spec: SourceSpec,
    folder: str,
    split: str,
    other: SourceSpec,
    scored_folder: str,
    scored_split: str,
) -> bool:
    # Published corpora have distinct files, unless they have the same folder and splits, as
    # A-OKVQA's two tasks. Of users' corpora only the folder is known, which is compared below.
    published = spec.splits or other.splits
    if published and (spec.folder != other.folder or spec.splits != other.splits):
        return False
    if (folder or spec.folder) != (scored_folder or other.folder):
        return False
    return spec.shares(split, scored_split)
