"""Runs a graph: a Prefect task per node, each as soon as those it reads are done."""

import dataclasses
import functools
import graphlib
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, cast
from uuid import UUID

from prefect import Task, get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.assets.materialize import materialize
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.task_runners import TaskRunner
from prefect.utilities.annotations import quote

from flows.lineage import pages
from flows.lineage.links import page_key
from flows.steps import worker
from flows.steps.code import checkout
from flows.steps.kind import Step
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.lookup import Found, device_seconds, look_up
from flows.steps.workers import Joined, Workers
from flows.study.display import Display
from flows.study.graph import Graph, Job, Node
from infra.prefect.journal import Journal
from infra.prefect.published import published
from infra.prefect.rows import MAX_REUSED_ROWS
from infra.progress import Progress
from infra.ray.lost import WorkerLost
from infra.reason import reason_of
from infra.store.manifest import Recipe
from infra.store.pins import Pin
from infra.store.store import Artifact, Store

_PROGRESS_ARTIFACT_AFTER = 5.0
"""A node that runs longer shows a progress artifact in the UI, refreshed as often [s]."""

Future = PrefectFuture[Any]


class StepFailedError(RuntimeError):
    """A node lacks an artifact; the message says which and why."""


@dataclasses.dataclass
class Session:
    """The state that the tasks of one run share.

    Attributes:
      study: its name.
      store, workers, display: where artifacts are, steps run, and people look.
      view: the store at the beginning, for what was pinned before.
      foreseen: step -> key of its artifact that was pinned then.
      journal: what the run did, for the UI's rows.
      pin: keeps artifacts from garbage collection until the run ends.
      retries: more tries of a node whose worker died.
      rebuild: names of steps to make again at any cost, kept ones included; may hold `*`.
      rebuild_seconds: work on other stale steps that may still be done again [device-seconds].
      artifacts: step -> its artifact, as they come.
      accepted: steps that rest on an artifact kept although its code has changed since.
      failures: node -> why it failed.
      allowed: keys of stale artifacts whose making is already charged.
    """

    study: str
    store: Store
    view: Store
    foreseen: Mapping[Step, str]
    workers: Workers
    display: Display
    journal: Journal
    pin: Pin
    retries: int = 0
    rebuild: Sequence[str] = ()
    rebuild_seconds: float = 0.0
    artifacts: dict[Step, Artifact] = dataclasses.field(default_factory=dict)
    accepted: set[Step] = dataclasses.field(default_factory=set)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    allowed: set[str] = dataclasses.field(default_factory=set)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @functools.cached_property
    def source(self) -> str:
        """Digest of this run's source tree, which the store keeps."""
        return self.store.keep(checkout().files)

    def look_up(self, step: Step) -> Found:
        """Looks a step up in the store.

        Raises:
          StepFailedError: if an input of it was not made.
        """
        lacking = [read.name for read in step.inputs.values() if read not in self.artifacts]
        if lacking and not step.partial:
            raise StepFailedError(f"{lacking[0]} was not made")
        there = {r: self.artifacts[s] for r, s in step.inputs.items() if s in self.artifacts}
        asked = functools.partial(
            look_up, step=step, inputs=there, accepted=self.accepted, source=self.source,
            pin=self.pin.add,
        )  # fmt: skip
        foreseen = self.foreseen.get(step)
        found = asked(self.view if foreseen else self.store)
        if foreseen and found.recipe.key != foreseen:
            found = asked(self.store)  # An input came out anew: nobody had pinned this one.
        if found.state == "accepted" or any(s in self.accepted for s in step.inputs.values()):
            self.accepted.add(step)
        return found

    def allow(self, node: Node, stale: Artifact) -> None:
        """Charges a stale artifact to the work that may be done again, once.

        Before the run nobody could know that this one would be stale: an input came out anew.

        Raises:
          StepFailedError: if that is more than is left.
        """
        if self.rebuilds(node):
            return
        with self.lock:
            if stale.key in self.allowed:
                return  # A worker was lost, and this is the next try.
            if device_seconds(stale) > self.rebuild_seconds:
                raise StepFailedError(
                    f"{stale.key} was made by other code, and making it again is above "
                    f"compute.rebuild_limit; run with --rebuild {node.name!r}, or keep it with "
                    f"`parcel accept {stale.key}`"
                )
            self.allowed.add(stale.key)
            self.rebuild_seconds -= device_seconds(stale)

    def rebuilds(self, node: Node) -> bool:
        """Whether somebody asked to make a node again."""
        return any(node.matches(pattern) for pattern in self.rebuild)


def run_graph(session: Session, graph: Graph, reused: Set[Node], runner: TaskRunner[Any]) -> None:
    """Runs every node; `session` then has its artifacts, or the reason why there are none.

    A node that lacks an input fails, too, and says so; the others go on.

    Args:
      session: of this run.
      graph: what to run.
      reused: nodes whose artifacts are all there already.
      runner: of the tasks; it says how many are in flight.
    """
    ended: queue.Queue[Node] = queue.Queue()
    futures: dict[Node, Future] = {}
    upstream = graph.upstream()
    shared = set(reused) if len(reused) > MAX_REUSED_ROWS else set[Node]()
    for node in graph.nodes:  # In its order: what a re-used node reads is re-used, too.
        if node in shared and not _find(session, node):
            shared.remove(node)  # It was damaged, or collected, since somebody looked.
    order = graphlib.TopologicalSorter(
        {
            node: [before for before in upstream[node] if before not in shared]
            for node in graph.nodes
            if node not in shared
        }
    )
    order.prepare()
    while order.is_active():
        for node in order.get_ready():
            before = [futures[b] for b in upstream[node] if b in futures]
            futures[node] = runner.submit(
                _task(session, node),
                {"session": quote(session), "node": quote(node)},
                wait_for=[future for future in before if future.state.is_completed()],
            )
            session.journal.submitted(node.name, str(futures[node].task_run_id))
            futures[node].add_done_callback(lambda _, node=node: ended.put(node))
        order.done(ended.get())
    for future in futures.values():
        future.wait()


def _find(session: Session, node: Node) -> bool:
    """Finds the artifacts of a node that is re-used; returns whether all of them are there."""
    if session.rebuilds(node):
        return False
    try:
        for step in node.steps:
            found = session.look_up(step)
            if found.artifact is None or found.state == "stale":
                return False
            session.artifacts[step] = found.artifact
    except (StepFailedError, OSError, ValueError):
        return False
    _run_and_tell(session, node)
    return True


def _task(session: Session, node: Node) -> Task[..., Any]:
    slug = node.name.replace(" ", "/").replace("=", "-").replace(":", "-")
    return materialize(
        f"parcel://{session.study}/{slug}",
        name=node.steps[0].kind.replace("_", " "),
        task_run_name=node.name,
        cache_policy=NO_CACHE,  # The store decides what is reused, and verifies it.
        persist_result=False,
        retries=session.retries,
        retry_delay_seconds=1,
        retry_condition_fn=_worker_was_lost,
    )(_run_task)


def _run_task(session: Any, node: Any) -> Any:
    """The Prefect task of a node; the quotes around its arguments are off by now."""
    # Prefect logs the message as the end of the task.
    return Completed(message=_run_and_tell(session, node), data=None)


def _tries_left() -> bool:
    context = TaskRunContext.get()
    return context is not None and context.task_run.run_count <= (context.task.retries or 0)


def _worker_was_lost(task: Any, run: Any, state: Any) -> bool:
    return isinstance(state.result(raise_on_failure=False), WorkerLost)


def _run_and_tell(session: Session, node: Node) -> str:
    """Makes or finds the artifacts of a node; returns, and tells everybody, what came of it."""
    session.journal.started(node.name)
    try:
        outcome = _run_node(session, node)
    except BaseException as error:
        reason = reason_of(error)
        session.failures[node.name] = reason
        again = isinstance(error, WorkerLost) and _tries_left()
        told = "again" if again else "failed"
        session.display.finish(node.name, outcome=told, detail=f": {reason}")
        if not again:
            session.journal.ended(node.name, "failed", reason)
        raise
    session.failures.pop(node.name, None)  # An earlier try of it may have failed.
    artifacts = [session.artifacts[step] for step in node.steps]
    seconds = sum(artifact.manifest.seconds for artifact in artifacts)
    detail = ", ".join(_headline(step, session.artifacts[step]) for step in node.steps)
    session.display.finish(node.name, outcome=outcome, seconds=seconds, detail=detail)
    session.journal.ended(node.name, outcome, detail)
    took = f" in {seconds:.1f} s" if outcome == "made" else ""
    return f"{outcome}{took}: {detail}"


def _run_node(session: Session, node: Node) -> Literal["made", "reused"]:
    """Makes or finds every artifact of a node; returns "made" or "reused".

    A step that fails leaves the others of its job alone: their artifacts are kept.
    """
    outcome: Literal["made", "reused"] = "reused"
    errors: dict[str, str] = {}
    for job in node.jobs:
        missing: dict[Step, Recipe] = {}
        keys: list[str] = []
        for step in job.steps:
            try:
                found = session.look_up(step)
                keys.append(found.recipe.key)
                remade = found.state == "accepted" and session.rebuilds(node)
                remade = remade or (found.state == "let go" and _is_wanted(session, node, found))
                if found.state == "stale":
                    session.allow(node, cast(Artifact, found.artifact))
                if found.artifact is None or found.state == "stale" or remade:
                    missing[step] = found.recipe
                else:
                    session.artifacts[step] = found.artifact
                    _publish(session, step, found.artifact, reused=True)
            except StepFailedError as error:
                errors[step.name] = str(error)
        ends: dict[str, worker.Made] = {}
        try:
            if missing:
                _run_job(session, node, job, keys, list(missing.values()), ends)
        finally:  # A worker that is lost takes with it nothing that it had committed.
            for step, recipe in missing.items():
                end = ends.get(step.name)
                if end and end.error:
                    get_run_logger().error("%s: %s", step.name, end.traceback)
                    errors[step.name] = end.error
                elif end:
                    artifact = session.artifacts[step] = session.store.get(recipe.key)
                    outcome = outcome if end.reused else "made"
                    _publish(session, step, artifact, reused=end.reused)
        if errors:
            alone = len(node.steps) == 1
            told = errors.values() if alone else (f"{k}: {v}" for k, v in errors.items())
            raise StepFailedError("; ".join(told))
    return outcome


def _is_wanted(session: Session, node: Node, found: Found) -> bool:
    """Whether a step of a node must be made and reads an artifact whose files were let go."""
    step = next(step for step in node.steps if step.name == found.recipe.name)
    session.artifacts[step] = cast(Artifact, found.artifact)
    readers = (reader for reader in node.steps if step in reader.inputs.values())
    return any(session.look_up(reader).state in ("missing", "stale") for reader in readers)


def _run_job(
    session: Session,
    node: Node,
    job: Job,
    keys: Sequence[str],
    recipes: Sequence[Recipe],
    ends: dict[str, worker.Made],
) -> None:
    """Runs the missing steps of a job, showing progress; `ends` gets how each ended, as it does."""
    running = TaskRunContext.get()
    run = running.task_run if running else None
    prefect = {
        "task_run_id": str(run.id) if run else None,
        "flow_run_id": str(run.flow_run_id) if run else None,
    }
    context = {"prefect": prefect, "devices": max(1, math.ceil(job.gpus))}
    if job.cpus:
        stream = session.workers.make(
            node.name, keys, recipes, context, cpus=job.cpus, gpus=job.gpus
        )
    else:
        stream = worker.make(session.store.uri, recipes, context)
    show = _progress_artifact(recipes[0].key, node.name)
    for item in stream:  # To its very end: a stream left early takes its worker with it.
        if isinstance(item, worker.Made):
            ends[item.name] = item
            continue
        if isinstance(item, Joined):
            detail = f": it was under way already, as Ray Job {item.job}"
            session.display.finish(node.name, outcome="joined", detail=detail)
            continue
        name, progress = item
        session.display.update(node.name, progress)
        show(name, progress)
    for recipe in recipes:
        if recipe.name not in ends:
            raise StepFailedError(f"{recipe.name} ended without an artifact")


def _publish(session: Session, step: Step, artifact: Artifact, *, reused: bool) -> None:
    """Tells the UI: a line in the log, a page of the artifact."""
    manifest = artifact.manifest
    how = f"re-used, made {manifest.started}" if reused else f"made in {manifest.seconds:.1f} s"
    logger = get_run_logger()
    logger.info("%s: %s, %s: %s", step.name, how, artifact.key, _headline(step, artifact))
    text = pages.page(session.view, artifact, reused=reused)
    page = page_key(artifact.key)
    published(create_markdown_artifact, text, key=page, description=step.name)


def _progress_artifact(key: str, node: str) -> Callable[[str, Progress], None]:
    """Returns a function that shows progress in the UI, once a node has run for a while."""
    last = time.monotonic()
    artifact_id: UUID | None = None

    def show(name: str, progress: Progress) -> None:
        nonlocal last, artifact_id
        if time.monotonic() - last < _PROGRESS_ARTIFACT_AFTER:
            return
        last = time.monotonic()
        percent = round(100 * progress.done / max(progress.total, 1), 1)
        text = f"{name} {progress.note}"
        if artifact_id is None:
            created = published(
                create_progress_artifact, percent, key=f"progress-{key}", description=text
            )
            artifact_id = cast(UUID | None, created)
        else:
            published(update_progress_artifact, artifact_id, percent, text)

    return show


def _headline(step: Step, artifact: Artifact) -> str:
    counts = artifact.manifest.counts
    if isinstance(step.config, EvaluateSpec) and isinstance(counts.get("score"), float | int):
        return f"@{step.config.budget} {counts['score']:.1f}"
    return ", ".join(f"{name} {value}" for name, value in counts.items())
