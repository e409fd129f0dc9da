"""The choice of files that a study keeps in the store, and their total size."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from rich.filesize import decimal

from flows.steps.kind import Step
from flows.steps.kinds.cast import CAST
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.registry import kind_of
from infra.store.manifest import kind_of_key
from infra.store.store import Artifact, Store

_FLOAT32, _BFLOAT16 = 4, 2
"""Bytes of a parameter of a checkpoint, and of its cast."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """Files of a finished study that `parcel gc` keeps; never part of a result's identity.

    Attributes:
      transfers: files to keep of each transfer. "params" keeps its checkpoint; so does "all", since
        a checkpoint holds nothing but parameters. "predictions" prunes the checkpoint once all
        predictions exist, which stay with their scores, as does the checkpoint's record. A
        later step that needs the files trains the checkpoint again. "bfloat16" does the same, but
        keeps the parameters rounded to bfloat16: budgets and rows that are added later are decoded
        from these, and marked in the table.
    """

    transfers: Literal["all", "params", "predictions", "bfloat16"] = "all"


def prunable_checkpoints(keep: KeepConfig, artifacts: Iterable[Artifact]) -> set[str]:
    """Returns the keys of a finished run's checkpoints whose files need not be kept."""
    # A transfer has its predictions before it has its cast. Casts, which predictions may read, too,
    # are never pruned.
    last_readers = {"predictions": "predictions", "bfloat16": CAST.name}
    if keep.transfers not in last_readers:
        return set()
    reader = last_readers[keep.transfers]
    manifests = [artifact.manifest for artifact in artifacts]
    keys = {m.inputs["checkpoint"].key for m in manifests if m.kind == reader}
    # A stage that is scored zero-shot stays: it is no transfer, and more may begin from it.
    stages = {m.key for m in manifests if m.kind == "checkpoint" and not _is_transfer(m.name)}
    return {key for key in keys - stages if kind_of_key(key) != CAST.name}


def _is_transfer(name: str) -> bool:
    return name.startswith("transfer ")


def describe_disk_use(view: Store, artifacts: Collection[Artifact], keep: KeepConfig) -> str:
    """Returns a line on the size of a run's artifacts, by kind.

    Args:
      view: the store, which says whose files were pruned.
      artifacts: the run's artifacts.
      keep: what the run keeps.
    """
    pruned = prunable_checkpoints(keep, artifacts)
    sizes: dict[str, float] = {}
    for artifact in artifacts:
        kind = artifact.manifest.kind
        # Another run may have pruned what this one would keep.
        is_gone = kind == "checkpoint" and view.find_pruned(artifact.key) is not None
        if artifact.key not in pruned and not is_gone:
            total = sum(file.size for file in artifact.manifest.files.values())
            sizes[kind] = sizes.get(kind, 0) + total
    return _disk_use_line(sizes, keep)


def describe_future_disk_use(
    steps: Sequence[Step],
    artifacts: Mapping[Step, Artifact | None],
    keep: KeepConfig,
    expected: Mapping[str, float],
) -> str:
    """Returns a line on the size of the artifacts that a study will leave, by kind.

    For artifacts that do not exist yet, a checkpoint's size is computed from its model, and others
    have the `expected` size; the line says how many could not be counted.

    Args:
      steps: steps of the study.
      artifacts: step -> its artifact, or None if it has none yet.
      keep: which files the study keeps.
      expected: name of a step -> size that its artifact is expected to have [bytes].
    """
    # Here: it imports JAX, which most commands do not need.
    from model.train.memory import num_params

    # Where their files are pruned, checkpoints that are scored do not count; their casts do.
    pruned: set[Step] = set()
    if keep.transfers in ("predictions", "bfloat16"):
        scored = {step.inputs["checkpoint"] for step in steps if kind_of(step).holds == "answers"}
        pruned = {step for step in scored if _is_transfer(step.name)}
    sizes: dict[str, float] = {}
    unknown: dict[str, int] = {}
    for step in steps:
        # Best first: the true size, the size by the model's shape, an estimate, unknown.
        artifact = artifacts.get(step)
        if step in pruned:
            continue
        trained = step.inputs["checkpoint"] if step.kind == CAST.name else step
        if artifact is not None:
            size = sum(file.size for file in artifact.manifest.files.values())
        elif isinstance(trained.config, FitSpec):
            bytes_each = _FLOAT32 if trained is step else _BFLOAT16
            size = bytes_each * num_params(trained.config.model)
        elif step.name in expected:
            size = expected[step.name]
        else:
            unknown[step.kind] = unknown.get(step.kind, 0) + 1
            continue
        sizes[step.kind] = sizes.get(step.kind, 0) + size
    more = ", ".join(f"{count} {kind}" for kind, count in sorted(unknown.items()))
    return _disk_use_line(sizes, keep) + (
        f"; not counted, because their size is not known yet: {more}" if more else ""
    )


def _disk_use_line(sizes: Mapping[str, float], keep: KeepConfig) -> str:
    parts = ", ".join(
        f"{kind} {decimal(round(size))}"
        for kind, size in sorted(sizes.items(), key=lambda s: -s[1])
    )
    total = decimal(round(sum(sizes.values())))
    return f"in the store, with keep.transfers={keep.transfers}: {total} ({parts})"
