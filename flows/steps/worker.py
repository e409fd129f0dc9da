"""Makes one artifact, in whatever process: lock, attempt, work, commit."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.progress import Progress
from infra.store.manifest import Step
from infra.store.store import Attempt, Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """The end of a step: its artifact's key, and whether it was there already."""

    key: str
    reused: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """A step to run, and where.

    Attributes:
      step: what to make.
      store: the store's folder.
      location: a folder outside the store that the step reads (raw data), if any. Not part of
        the key: the digests of the files in it are.
      context: run ids of the orchestrator, for the manifest.
    """

    step: Step
    store: str
    location: str | None = None
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Work:
    """What a step's function sees.

    Attributes:
      out: folder for the artifact's files.
      scratch: folder for resumable progress; survives a kill, gone after the commit.
      inputs: role -> folder of the artifact read.
      config, seed, location: as in the order.
      counts: the function notes numbers of interest here.
      content: the function may state a logical content digest here.
    """

    def __init__(self, order: Order, store: Store, attempt: Attempt, scratch: Path) -> None:
        self.out = attempt.path
        self.scratch = scratch
        self.inputs = {role: store.get(entry.key).path for role, entry in order.step.inputs.items()}
        self.config = order.step.config
        self.seed = order.step.seed
        self.location = order.location
        self.counts: dict[str, float | int | str] = {}
        self.content: str | None = None


def make(order: Order) -> Iterator[Progress | Made]:
    """Yields progress and, last, what was made; an artifact already committed is not made again."""
    from flows.steps.functions import FUNCTIONS

    store, step = Store(order.store), order.step
    with store.lock(step.key) as scratch:
        if store.find(step.key):
            yield Made(key=step.key, reused=True)
            return
        attempt = Attempt(store, step)
        work = Work(order, store, attempt, scratch)
        yield from FUNCTIONS[step.kind](work)
        attempt.counts, attempt.content = work.counts, work.content
        artifact = attempt.commit(order.context)
        store.clear_scratch(step.key)
    yield Made(key=artifact.key, reused=False)
