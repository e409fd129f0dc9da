"""The one Prefect task: makes or finds an artifact, and publishes its lineage."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from uuid import UUID

from prefect import Task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.assets import add_asset_metadata
from prefect.assets.materialize import materialize
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.utilities.annotations import quote

from flows.lineage import pages as lineage
from flows.steps import worker as work
from flows.steps.functions import CODE
from flows.study.display import Display
from infra.prefect.journal import Journal
from infra.prefect.published import published
from infra.ray.cluster import Cluster, WorkerLost
from infra.store.digest import code_sha256, value_sha256
from infra.store.manifest import Step
from infra.store.store import Artifact, Store

_PROGRESS_ARTIFACT_AFTER = 5.0
"""A step that runs longer shows a progress artifact in the UI, refreshed as often [s]."""


class Session:
    """What the tasks of one study run share."""

    def __init__(
        self, study: str, store: Store, cluster: Cluster, display: Display, journal: Journal
    ) -> None:
        self.study = study
        self.journal = journal
        self.store = store
        self.cluster = cluster
        self.display = display
        self.failures: dict[str, str] = {}
        """Step name -> why it failed."""
        self.submitted: dict[str, tuple[str, PrefectFuture[Artifact]]] = {}
        """What a step is made from -> its name and future artifact."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """A step before its inputs are known.

    Attributes:
      kind, name, config, seed: as in `Step`.
      location: see `work.Order`.
      num_cpus: cores on the cluster; 0 runs it in this process.
      num_gpus: GPUs on the cluster, where it has any; below 1 steps share one.
    """

    kind: str
    name: str
    config: Any = None
    seed: int | None = None
    location: str | None = None
    num_cpus: int = 0
    num_gpus: float = 0.0


def submit(
    session: Session,
    spec: Spec,
    inputs: Mapping[str, Artifact | PrefectFuture[Artifact]],
    *,
    retries: int = 0,
) -> PrefectFuture[Artifact]:
    """Starts a step as a Prefect task once its inputs are there; returns the future artifact.

    One that makes the very same as a step before it is that step: two runs of it would only race
    for the artifact's name.
    """
    read = {
        role: source.key if isinstance(source, Artifact) else id(source)  # The session keeps these.
        for role, source in inputs.items()
    }
    same = value_sha256([spec.kind, spec.config, spec.seed, read])
    if same in session.submitted:
        name, future = session.submitted[same]
        session.display.finish(spec.name, outcome="reused", detail=f"from {name}")
        session.journal.ended(spec.name, "reused", f"the same as {name}")
        return future
    slug = spec.name.replace(" ", "/").replace("=", "-").replace(":", "-")
    asset = f"parcel://{session.study}/{slug}"
    task: Task[..., Artifact] = materialize(
        asset,
        name=spec.kind.replace("_", " "),
        task_run_name=spec.name,
        cache_policy=NO_CACHE,  # The store decides what is reused, and verifies it.
        persist_result=False,
        retries=retries,
        retry_delay_seconds=1,
        retry_condition_fn=_worker_was_lost,
    )(_make)
    future = task.submit(quote(session), quote(spec), asset, dict(inputs))
    session.submitted[same] = spec.name, future
    session.journal.submitted(spec.name, str(future.task_run_id))
    return future


def _tries_left() -> bool:
    context = TaskRunContext.get()
    return context is not None and context.task_run.run_count <= (context.task.retries or 0)


def _worker_was_lost(task: Any, run: Any, state: Any) -> bool:
    return isinstance(state.result(raise_on_failure=False), WorkerLost)


def _make(session: Any, spec: Any, asset: str, inputs: Any) -> Any:
    """Makes the artifact, or finds it in the store; Prefect has taken off the quotes by now."""
    session.journal.started(spec.name)
    step = Step(
        kind=spec.kind,
        name=spec.name,
        inputs={role: artifact.as_input for role, artifact in inputs.items()},
        config=spec.config,
        code=code_sha256(*CODE[spec.kind]),
        seed=spec.seed,
    )
    try:
        reused = session.store.find(step.key) is not None or _run(session, spec, step)
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        session.failures[spec.name] = reason
        again = isinstance(error, WorkerLost) and _tries_left()
        session.display.finish(
            spec.name, outcome="again" if again else "failed", detail=f": {reason}"
        )
        if not again:
            session.journal.ended(spec.name, "failed", reason)
        raise
    session.failures.pop(spec.name, None)  # An earlier try of it may have failed.
    artifact = session.store.get(step.key)
    text = lineage.page(session.store, artifact, reused=reused)
    page = lineage.page_key(step.key)
    published(create_markdown_artifact, text, key=page, description=spec.name)
    published(add_asset_metadata, asset, {"key": step.key, "content": artifact.manifest.content})
    session.display.finish(
        spec.name,
        outcome="reused" if reused else "made",
        seconds=artifact.manifest.seconds,
        detail=_headline(artifact),
    )
    session.journal.ended(spec.name, "reused" if reused else "made", _headline(artifact))
    took = "" if reused else f" in {artifact.manifest.seconds:.1f} s"
    told = f"{'reused' if reused else 'made'}{took}: {_headline(artifact)}"
    return Completed(message=told, data=artifact)  # Prefect logs it as the end of the task.


def _run(session: Session, spec: Spec, step: Step) -> bool:
    """Runs the step, showing progress; returns whether someone else made it meanwhile."""
    context = TaskRunContext.get()
    run = context.task_run if context else None
    order = work.Order(
        step=step,
        store=str(session.store.root),
        location=spec.location,
        context={
            "prefect": {
                "task_run_id": str(run.id) if run else None,
                "flow_run_id": str(run.flow_run_id) if run else None,
            }
        },
    )
    stream: Iterator[Any]
    if spec.num_cpus:
        stream = session.cluster.stream(
            work.make,
            order,
            num_cpus=spec.num_cpus,
            num_gpus=spec.num_gpus,
            name=spec.name,
        )
    else:
        stream = work.make(order)
    show = _progress_artifact(step)
    made: work.Made | None = None
    for item in stream:  # To its very end: a stream left early takes its worker with it.
        if isinstance(item, work.Made):
            made = item
            continue
        session.display.update(spec.name, item)
        show(item)
    if made is None:
        raise RuntimeError(f"step {spec.name!r} ended without an artifact.")
    return made.reused


def _progress_artifact(step: Step) -> Callable[[work.Progress], None]:
    """Returns a function that shows progress in the UI, once a step has run for a while."""
    last = time.monotonic()
    artifact_id: UUID | None = None

    def show(progress: work.Progress) -> None:
        nonlocal last, artifact_id
        if time.monotonic() - last < _PROGRESS_ARTIFACT_AFTER:
            return
        last = time.monotonic()
        percent = round(100 * progress.done / max(progress.total, 1), 1)
        if artifact_id is None:
            told = f"{step.name} {progress.note}"
            created = published(
                create_progress_artifact, percent, key=f"progress-{step.key}", description=told
            )
            artifact_id = cast(UUID | None, created)
        else:
            told = f"{step.name} {progress.note}"
            published(update_progress_artifact, artifact_id, percent, told)

    return show


def _headline(artifact: Artifact) -> str:
    return ", ".join(f"{name} {value}" for name, value in artifact.manifest.counts.items())
