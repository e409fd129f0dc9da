"""`parcel data mend`: prepares a dataset again after its rejected inputs were repaired."""

from collections.abc import Iterator
from pathlib import Path

from flows.graph.datasets import raw_files_spec, raw_folders
from flows.steps import worker
from flows.steps.kind import Step
from flows.steps.labels import labels_of
from flows.steps.registry import typed_config
from flows.steps.step_lookup import look_up_step
from infra.errors import ConfigError
from infra.source_code import checkout
from infra.store.pins import Pin
from infra.store.raw_fingerprint import RawFingerprint
from infra.store.store import Artifact, Store
from pipelines.records.dataset import Dataset
from pipelines.records.schema import Reject

_SHOWN = 20
"""Most rejects of one sort that are listed; the rest are counted."""


def mend_dataset(name: str, *, data_root: str, store: str) -> Iterator[str]:
    """Prepares a dataset again from raw files, some of them repaired; yields lines to show.

    Shards whose inputs did not change are taken from an earlier dataset. The result is the artifact
    that `parcel run` would make, so the next run reuses it.

    Args:
      name: beginning of a dataset's key.
      data_root: the folder that holds the raw files, as they are now.
      store: the store that holds artifacts [URI].

    Raises:
      ConfigError: if there is no such dataset, or its corpus is drawn, not the user's own files.
      RuntimeError: if the dataset cannot be made.
    """
    opened = Store(store, make=False)
    before = _dataset_artifact(opened, name)
    if "://" not in data_root and not Path(data_root).is_dir():
        raise ConfigError(f"data_root must be an existing folder, got {data_root}.")
    raw = opened.get(before.manifest.inputs["raw"].key)
    if raw.manifest.kind != "raw_files":
        raise ConfigError(
            f"dataset must be made from files of yours, got {before.key}: its corpus is drawn, and "
            f"nothing of it can be repaired."
        )
    # The same two steps that `parcel run` has, with the files as they are now.
    spec = typed_config("dataset", before.manifest.config)
    files = Step(
        kind="raw_files",
        labels=labels_of(raw.manifest),
        config=raw_files_spec(spec, RawFingerprint(data_root).sha256(raw_folders(spec))),
        location=data_root,
    )
    dataset = Step(
        kind="dataset",
        labels=labels_of(before.manifest),
        config=spec,
        inputs={"raw": files},
        location=data_root,
    )
    # Pinned: the old dataset's shards are reused, and a gc meanwhile must not delete them.
    with opened.pin_run(f"mend-{before.key}") as pin:
        pin.add(before.key, raw.key)
        raw_files = _find_or_make(opened, files, {}, pin)
        after = _find_or_make(opened, dataset, {"raw": raw_files}, pin)
    yield from _describe_mended(before, after)


def _dataset_artifact(store: Store, name: str) -> Artifact:
    try:
        artifact = store.resolve(name)
    except KeyError as error:
        raise ConfigError(f"dataset must be an artifact of {store.uri}: {error.args[0]}") from None
    if artifact.manifest.kind != "dataset":
        raise ConfigError(
            f"dataset must be a prepared dataset, got {artifact.key}; the next `parcel run` "
            f"remakes what is made from a mended dataset."
        )
    return artifact


def _find_or_make(store: Store, step: Step, inputs: dict[str, Artifact], pin: Pin) -> Artifact:
    """Returns the artifact of a step, and makes it in this process if the store has none."""
    source = store.save_source(checkout().files)
    lookup = look_up_step(store, step, inputs, set(), source=source, pin=pin.add)
    if lookup.artifact is not None and lookup.state in ("reused", "accepted"):
        return lookup.artifact
    for item in worker.make(store.uri, [lookup.recipe], {}):
        if isinstance(item, worker.StepOutcome) and item.error:
            raise RuntimeError(f"{item.name}: {item.error}")
    return store.get(lookup.recipe.key)


def _describe_mended(before: Artifact, after: Artifact) -> Iterator[str]:
    was, now = (Dataset(artifact.uri) for artifact in (before, after))
    yield f"{before.key}: {_dataset_counts(was)}"
    if after.key == before.key:
        yield "its raw files have not changed; these inputs are rejected:"
        yield from _list_rejects("rejected", list(was.rejects()))
        return
    # Three lists, by the ids of the rejects:
    #
    #                     rejected before     not before
    #   rejected now      still rejected      newly rejected
    #   not now           mended
    counts = after.manifest.counts
    shards = len(next(iter(now.info.parts.values())).shards) if now.info.parts else 0
    reused = f"{counts.get('reused_shards', 0)} of {shards} shards reused"
    yield f"{after.key}: {_dataset_counts(now)}; {reused}"
    rejected_now = {reject.id for reject in now.rejects()}
    rejected_before = {reject.id for reject in was.rejects()}
    yield from _list_rejects("mended", [r for r in was.rejects() if r.id not in rejected_now])
    yield from _list_rejects(
        "still rejected", [r for r in now.rejects() if r.id in rejected_before]
    )
    yield from _list_rejects(
        "newly rejected", [r for r in now.rejects() if r.id not in rejected_before]
    )


def _dataset_counts(dataset: Dataset) -> str:
    info = dataset.info
    return (
        f"{info.num_inputs:,} inputs = {info.num_records:,} records + {info.num_rejected:,} rejects"
    )


def _list_rejects(sort: str, rejects: list[Reject]) -> Iterator[str]:
    for reject in rejects[:_SHOWN]:
        yield f"{sort}  {reject.id}  {reject.stage}: {reject.reason}  ({reject.source})"
    if len(rejects) > _SHOWN:
        yield f"{sort}  {len(rejects) - _SHOWN:,} more"
