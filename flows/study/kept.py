"""The files that a study keeps in the store, and their size in bytes."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.filesize import decimal

from flows.steps.kind import Step
from infra.store.store import Artifact, Store

_FLOAT32 = 4
"""Bytes of a parameter of a checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """What `parcel gc` leaves of a finished study; never part of a result's identity.

    Attributes:
      transfers: of each transfer, "params" keeps its checkpoint; so does "all", since a checkpoint
        holds parameters and nothing else. "predictions" lets its files go once all its
        predictions are there: they, and the record of the checkpoint, stay. Who asks for more of
        it trains it again.
    """

    transfers: Literal["all", "params", "predictions"] = "all"


def let_go_by(keep: KeepConfig, artifacts: Iterable[Artifact]) -> set[str]:
    """Returns the keys of a finished run's checkpoints whose files need not be kept."""
    if keep.transfers != "predictions":
        return set()
    scored = (a.manifest.inputs["checkpoint"].key for a in artifacts if _is_scores(a))
    return set(scored)


def _is_scores(artifact: Artifact) -> bool:
    return artifact.manifest.kind == "predictions"


def told_of_keys(store: Store, keys: Iterable[str], keep: KeepConfig) -> str:
    """Returns a line on the bytes that a run's artifacts take, by kind."""
    artifacts = [store.recall(key) for key in keys]
    gone = let_go_by(keep, artifacts)
    sizes: dict[str, float] = {}
    for artifact in artifacts:
        if artifact.key not in gone:
            kind = artifact.manifest.kind
            total = sum(file.size for file in artifact.manifest.files.values())
            sizes[kind] = sizes.get(kind, 0) + total
    return _line(sizes, keep)


def told_of_steps(
    steps: Sequence[Step],
    there: Mapping[Step, Artifact | None],
    keep: KeepConfig,
    expected: Mapping[str, float],
) -> str:
    """Returns a line on the bytes that a study will leave, by kind.

    Checkpoints that are not there are counted from their models, and steps with `expected` bytes
    by these; other artifacts that are not there are not counted, and said so.

    Args:
      steps: of the study.
      there: step -> its artifact, if there is one already.
      keep: what is kept.
      expected: name of a step -> bytes that it is expected to leave.
    """
    from model.train.memory import num_params  # Which imports JAX: not for other commands.

    scored = {step.inputs["checkpoint"] for step in steps if step.kind == "predictions"}
    sizes: dict[str, float] = {}
    unknown: dict[str, int] = {}
    for step in steps:
        artifact = there.get(step)
        if step in scored and keep.transfers == "predictions":
            continue
        if artifact is not None:
            size = sum(file.size for file in artifact.manifest.files.values())
        elif step.kind == "checkpoint":
            size = _FLOAT32 * num_params(step.config.model)
        elif step.name in expected:
            size = expected[step.name]
        else:
            unknown[step.kind] = unknown.get(step.kind, 0) + 1
            continue
        sizes[step.kind] = sizes.get(step.kind, 0) + size
    more = ", ".join(f"{count} {kind}" for kind, count in sorted(unknown.items()))
    return _line(sizes, keep) + (f"; not counted, as nobody knows yet: {more}" if more else "")


def _line(sizes: Mapping[str, float], keep: KeepConfig) -> str:
    parts = ", ".join(
        f"{kind} {decimal(round(size))}"
        for kind, size in sorted(sizes.items(), key=lambda s: -s[1])
    )
    total = decimal(round(sum(sizes.values())))
    return f"in the store, with keep.transfers={keep.transfers}: {total} ({parts})"
