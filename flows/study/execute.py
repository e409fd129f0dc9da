"""Runs the nodes of a graph as Prefect tasks, which find their artifacts or have them made."""

import contextvars
import dataclasses
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Literal, cast

from prefect import allow_failure, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run, task_run
from prefect.states import Completed

from flows.pages.lineage import page as lineage_page
from flows.pages.links import page_key
from flows.steps import worker
from flows.steps.kind import Step
from flows.steps.lookup import StepLookup, device_seconds, look_up
from flows.steps.registry import kind_of
from flows.steps.workers import AlreadyRunning, Workers
from flows.study import run_log
from flows.study.display import Display
from flows.study.eta import Forecast, JobClock, TimeEstimates
from flows.study.nodes import GraphNode, StepJob, StudyGraph
from flows.study.run_order import run_in_order
from flows.study.sweep_limits import Admission, NodeHeldError
from infra.errors import one_line_message, redact_error
from infra.prefect import journal
from infra.prefect.journal import Journal
from infra.prefect.page_queue import PageQueue, UIPage
from infra.prefect.progress import NodeProgress, ProgressFile
from infra.prefect.rows import end_state
from infra.processes.signals import wait_if_stopping
from infra.progress import COMPILING, Progress
from infra.ray.errors import RayWorkerLostError
from infra.source_code import checkout
from infra.store.first_read import DamagedArtifactError
from infra.store.manifest import Recipe
from infra.store.pins import Pin
from infra.store.store import Artifact, Store

_PROGRESS_PAGE_AFTER = 5.0
"""Interval at which a running node refreshes its progress in the UI, first after as long [s]."""

_MAX_REUSED_ROWS = 200
"""Up to this many reused nodes get a row each; more of them share one row."""

_RETRY_AFTER = 1.0
"""Pause between the loss of a worker and the next attempt [s]."""


class StepFailedError(RuntimeError):
    """A node has not made an artifact; the message says which and why."""


class InputFailedError(StepFailedError):
    """A step has no input, since a node before it failed; the message says which node."""


@dataclasses.dataclass
class RunSession:
    """The state that the nodes of one run share.

    Attributes:
      study: the study's name.
      store: the store that artifacts are read from and written to.
      workers: the processes that run steps.
      display: the terminal's progress display.
      view: snapshot of the store at the start of the run; answers look-ups of `foreseen` keys.
      foreseen: step -> key of the artifact found for it at the start, which is pinned.
      accepted_at_start: steps that, at the start, rested on an artifact kept by `parcel accept`.
      journal: record of the run, from which the UI's rows are settled.
      progress: how far the nodes are that run.
      pages: pages of the run, on their way to the UI.
      expected: estimated time and cost of each step.
      forecast: estimated time until the run ends.
      pin: protection of artifacts from garbage collection until the run ends.
      retries: further attempts at a node whose worker died.
      prepare_at_once: most nodes at a time that run in this process, such as Beam's.
      rebuild: names of steps to make again at any cost, accepted ones included; may hold `*`.
      redone: steps that changed code may have made again -> cost [device-seconds].
      rebuild_seconds: such work, on steps that `rebuild` does not name, that may still be done
        [device-seconds].
      admission: decides whether a node may begin.
      artifacts: step -> its artifact; grows during the run.
      accepted: steps that rest on an artifact kept although its code has changed since.
      failures: node's name -> why it failed.
      causes: step that was not made -> name of the node that failed.
      holds: node -> why it was not run.
      allowed: keys that `rebuild_seconds` was already charged for.
      begun: nodes whose work has begun.
      made: steps that this run made.
      lock: guard of `allowed` and `rebuild_seconds`.
      mended: steps made again in this run, since a file of their artifact was damaged.
      mending: held by who makes them.
    """

    study: str
    store: Store
    view: Store
    foreseen: Mapping[Step, str]
    accepted_at_start: Set[Step]
    workers: Workers
    display: Display
    journal: Journal
    progress: ProgressFile
    pages: PageQueue
    expected: TimeEstimates
    forecast: Forecast
    pin: Pin
    retries: int = 0
    prepare_at_once: int = 4
    rebuild: Sequence[str] = ()
    redone: Mapping[Step, float] = dataclasses.field(default_factory=dict)
    rebuild_seconds: float = 0.0
    admission: Admission = dataclasses.field(default_factory=Admission)
    artifacts: dict[Step, Artifact] = dataclasses.field(default_factory=dict)
    accepted: set[Step] = dataclasses.field(default_factory=set)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    causes: dict[Step, str] = dataclasses.field(default_factory=dict)
    holds: dict[GraphNode, str] = dataclasses.field(default_factory=dict)
    allowed: set[str] = dataclasses.field(default_factory=set)
    begun: set[GraphNode] = dataclasses.field(default_factory=set)
    made: set[Step] = dataclasses.field(default_factory=set)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    mended: set[Step] = dataclasses.field(default_factory=set)
    mending: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    @functools.cached_property
    def source(self) -> str:
        """Digest of this run's source tree, a copy of which is put in the store."""
        return self.store.save_source(checkout().files)

    def look_up(self, step: Step) -> StepLookup:
        """Looks a step up in the store.

        Raises:
          InputFailedError: if an input of the step was not made.
          NodeHeldError: if the node of that input was not run.
        """
        # A step whose input is missing has no key, since the contents of the inputs are part of it.
        # It is not run, for the same reason as that input's node, or since that node failed. Only a
        # partial step, the table of results, takes the inputs that there are, if there is a score
        # among them.
        missing_inputs = [read for read in step.inputs.values() if read not in self.artifacts]
        if missing_inputs and not (
            step.partial
            and any(
                read.kind == "scores" and read in self.artifacts for read in step.inputs.values()
            )
        ):
            for node, why in list(self.holds.items()):  # Other threads add to it.
                if missing_inputs[0] in node.steps:
                    raise NodeHeldError(why)
            raise InputFailedError(self.causes.get(missing_inputs[0], missing_inputs[0].name))
        inputs = {r: self.artifacts[s] for r, s in step.inputs.items() if s in self.artifacts}
        look_up_in = functools.partial(
            look_up,
            step=step,
            inputs=inputs,
            accepted=self.accepted,
            source=self.source,
            pin=self.pin.add,
            before=self.view,
        )
        # The snapshot is fast, and right for keys pinned at the start: `gc` cannot have removed
        # those. If an input was remade with other bytes, the key is new, and only the store knows.
        foreseen = self.foreseen.get(step)
        lookup = look_up_in(self.view if foreseen else self.store)
        if foreseen and lookup.recipe.key != foreseen:
            lookup = look_up_in(self.store)
        # What rests on an artifact that `parcel accept` kept is accepted, too.
        if lookup.state == "accepted" or any(s in self.accepted for s in step.inputs.values()):
            self.accepted.add(step)
        return lookup

    def allow(self, node: GraphNode, step: Step, lookup: StepLookup) -> None:
        """Charges to `rebuild_seconds`, once, what changed code alone has made again.

        `Explanation.check` refused too much such work before the run, but could not foresee steps
        that become stale because an input was remade with other bytes.

        Raises:
          StepFailedError: if it costs more than is left.
        """
        if self.rebuilds(node):
            return
        if lookup.state == "stale":
            artifact = cast(Artifact, lookup.artifact)
            key, seconds = artifact.key, device_seconds(artifact)
            why = f"{key} was made by other code"
            cure = f", or keep it with `parcel accept {key}`"
        elif lookup.state == "missing" and step in self.redone:
            # New through values that code owns, or because it follows a step that was made again.
            key, seconds = lookup.recipe.key, self.redone[step]
            why, cure = f"{step.name} is new because of changed code", ""
        else:
            return
        # One thread looks and pays at a time, or two nodes could both spend the last of it.
        with self.lock:
            if key in self.allowed:
                return  # Charged by an earlier attempt, whose worker was lost.
            if seconds > self.rebuild_seconds:
                raise StepFailedError(
                    f"{why}, and making it again is above compute.rebuild_limit; run with "
                    f"--rebuild {node.name!r}{cure}"
                )
            self.allowed.add(key)
            self.rebuild_seconds -= seconds

    def fail(self, node: GraphNode, why: str) -> None:
        """Notes that a node failed, unless that is known already."""
        self.failures.setdefault(node.name, why)
        for step in node.steps:
            if step not in self.artifacts:
                self.causes[step] = node.name

    def log(self, text: str, *, failed: bool = False) -> None:
        """Logs a line on the page of the node whose task calls this."""
        get_run_logger().log(logging.ERROR if failed else logging.INFO, text)

    def rebuilds(self, node: GraphNode) -> bool:
        """Whether `rebuild` names a node or one of its steps."""
        return any(node.matches(pattern) for pattern in self.rebuild)


def run_graph(
    session: RunSession,
    graph: StudyGraph,
    reused: Set[GraphNode],
    queue_length: int = 0,
    ahead: Mapping[GraphNode, int] = MappingProxyType({}),
) -> None:
    """Runs every node as a Prefect task; `session` then has its artifacts, or why there are none.

    A node that lacks an input is not run; nodes that do not depend on it continue.

    Args:
      session: state of the run.
      graph: the nodes to run.
      reused: nodes whose artifacts are all in the store already.
      queue_length: nodes that may wait for a worker beyond the workers' capacity.
      ahead: nodes that begin before all other ready ones, by their place among themselves.
    """
    states: dict[GraphNode, State[Any]] = {}
    nodes = {node.name: node for node in graph.nodes}
    makers = {step: node for node in graph.nodes for step in node.steps}

    # Closed over the session: Prefect walks through a task's parameters, to find states in them.
    @task(
        name="step",
        task_run_name="{name}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=session.retries,
        retry_delay_seconds=_RETRY_AFTER,
        retry_condition_fn=_is_lost_worker,
    )
    def step(name: str) -> State[Any]:
        return _run_reported(session, nodes[name], makers)

    @task(task_run_name="{count} reused", cache_policy=NO_CACHE, persist_result=False)
    def reused_steps(count: int) -> State[Any]:
        return Completed(message="\n".join(node.name for node in shared_row))

    def run(node: GraphNode) -> None:
        # The arrows of the run's picture. Prefect would not begin a task whose input was not run;
        # ours begins, and says so itself.
        inputs = [states[read] for read in graph.upstream[node] if read in states]
        inputs = [allow_failure(s) for s in inputs if s.is_completed() or s.is_failed()]
        # A failure is noted where it happens, in `_run_reported`; here only one of Prefect itself.
        try:
            state = states[node] = step(node.name, wait_for=inputs, return_state=True)
            lost = state.message if state.is_failed() or state.is_crashed() else None
        except Exception as error:
            lost = one_line_message(error)
        if lost is not None:
            session.fail(node, lost)

    shared_row: list[GraphNode] = []
    if len(reused) > _MAX_REUSED_ROWS:
        # So many nodes share one row and skip the order. `_find_reused_artifacts` needs the graph's
        # order: a node's inputs must be found before it. A node that is no longer found (damaged or
        # collected meanwhile) runs like the others.
        shared_row += (
            node for node in graph.nodes if node in reused and _find_reused_artifacts(session, node)
        )
        _report_reused_nodes(session, shared_row)
        reused_steps(len(shared_row))
    try:
        run_in_order(
            graph,
            run,
            expected=session.expected,
            on_workers=session.workers.at_once + queue_length,
            in_process=session.prepare_at_once,
            done=set(shared_row),
            ahead=ahead,
        )
    finally:
        session.workers.leave()


def _find_reused_artifacts(session: RunSession, node: GraphNode) -> bool:
    """Finds the artifacts of a reused node; returns whether all of them are there."""
    if session.rebuilds(node):
        return False
    # All steps of a node, or none: they are gathered here first, in order, so that an evaluation
    # finds the checkpoint of its own node among them.
    artifacts: dict[Step, Artifact] = {}
    try:
        for step in node.steps:
            if any(s not in artifacts and s not in session.artifacts for s in step.inputs.values()):
                return False
            key = session.foreseen[step]
            # A checkpoint whose files were let go is still found: its manifest says what it was.
            artifact = session.view.find(key) or session.view.find_pruned(key)
            if artifact is None or _is_damaged_table(session, node, step, artifact):
                return False
            artifacts[step] = artifact
    except (OSError, ValueError):
        return False
    session.artifacts.update(artifacts)
    session.accepted.update(artifacts.keys() & session.accepted_at_start)
    return True


def _is_lost_worker(task: object, run: object, state: State[Any]) -> bool:
    """Only a lost worker is worth another try: other errors would come again."""
    return isinstance(state.data, RayWorkerLostError)


def _run_reported(
    session: RunSession, node: GraphNode, makers: Mapping[Step, GraphNode]
) -> State[Any]:
    """Makes or finds a node's artifacts, within its Prefect task; reports and returns the end.

    Args:
      session: state of the run.
      node: the node.
      makers: step -> the node that makes it.

    Raises:
      RayWorkerLostError: if its worker died and Prefect is to try again.
    """
    attempt = task_run.run_count
    # Journal before UI: what a killed process was doing must be on disk, not on a server.
    began = journal.Node(name=node.name, started=journal.now())
    session.journal.started(node.name, task_run.id)
    outcome: journal.Outcome
    detail, took = "", None
    try:
        outcome = _run_mended(session, node, makers)
    except NodeHeldError as error:
        outcome, detail = "not run", str(error)
        session.holds[node] = detail
    except BaseException as error:
        # What a signal ends is no failure: the process is about to exit, with its workers.
        wait_if_stopping()
        outcome, detail = "failed", one_line_message(error)
        if isinstance(error, RayWorkerLostError) and attempt <= session.retries:
            session.display.finish(node.name, outcome="again", detail=f": {detail}")
            redact_error(error)  # Prefect sends its message with the state of the row.
            raise
        session.fail(node, detail)
        session.forecast.end(node)
    finally:
        session.progress.end(node.name)
    # From here on, what its estimate was too high by is free for other nodes.
    session.admission.leave(node)
    if outcome == "made" or outcome == "reused":
        detail, took = _report_node_end(session, node, outcome)
    else:
        session.display.finish(node.name, outcome=outcome, detail=f": {detail}")
        session.journal.ended(node.name, outcome, detail)
    end = dataclasses.replace(began, outcome=outcome, detail=detail, ended=journal.now(), took=took)
    if outcome != "reused":
        session.log(f"{node.name}: {end.summary}", failed=outcome == "failed")
    return end_state(end)


def _report_reused_nodes(session: RunSession, nodes: Sequence[GraphNode]) -> None:
    """Reports many reused nodes at once, without a line for each."""
    for node in nodes:
        session.forecast.end(node)
    session.display.reuse(len(nodes))
    session.journal.reused({node.name: _describe_counts(session, node.steps) for node in nodes})


def _report_node_end(
    session: RunSession, node: GraphNode, outcome: Literal["made", "reused"]
) -> tuple[str, float]:
    """Reports a node's success to terminal and journal; returns its detail line and work [s]."""
    # Of a transfer that was only scored again, the scores are told, and not what its training was.
    steps = [step for step in node.steps if step in session.made or outcome == "reused"]
    seconds = sum(session.artifacts[step].manifest.seconds for step in steps)
    detail = _describe_counts(session, steps)
    session.forecast.end(node, seconds if outcome == "made" else 0.0)
    session.display.finish(node.name, outcome=outcome, seconds=seconds, detail=detail)
    session.journal.ended(node.name, outcome, detail)
    return detail, seconds


def _run_mended(
    session: RunSession, node: GraphNode, makers: Mapping[Step, GraphNode]
) -> Literal["made", "reused"]:
    """Makes or finds a node's artifacts; what it reads and is damaged is made again, once.

    Arguments are those of `_run_reported`.
    """
    # Whoever reads a damaged file sets it aside, and fails: from then on the store has no such
    # artifact. What it was made from may be damaged, too:
    #
    #   transfer  fails: model.json of Stage 1 is damaged
    #     stage1  is made again, fails: the tokenizer is damaged
    #       tokenizer  is made again
    #     stage1  is made again
    #   transfer  runs again
    reads = {read for step in node.steps for read in step.inputs.values()}
    own = {*node.steps}
    while True:
        known = session.mended & reads
        try:
            return _run_node(session, node)
        except StepFailedError as error:
            with session.mending:  # Another reader of the same may be making it again.
                lost = {step for step in reads if _is_lost(session, step)}
                if not lost and session.mended & reads == known:
                    raise
                # Once is enough: a disk may spoil all that it holds. What this node makes itself
                # may still wait for an input to be made again.
                if (lost and lost <= session.mended) or (lost & session.mended) - own:
                    raise
                with session.lock:
                    session.foreseen = {s: k for s, k in session.foreseen.items() if s not in lost}
                session.display.print_event(node.name, str(error))
                session.log(f"{node.name}: {error}", failed=True)
                for maker in {makers[step] for step in lost} - {node}:
                    try:
                        _run_mended(session, maker, makers)
                    finally:
                        session.progress.end(maker.name)
                        session.admission.leave(maker)
                        session.display.finish(maker.name, outcome="mended")
                session.mended.update(lost)


def _is_lost(session: RunSession, step: Step) -> bool:
    """Whether the store no longer has the artifact that was found for a step."""
    artifact = session.artifacts.get(step)
    if artifact is None:
        return False
    return not (session.store.find(artifact.key) or session.store.find_pruned(artifact.key))


def _run_node(session: RunSession, node: GraphNode) -> Literal["made", "reused"]:
    """Makes or finds every artifact of a node; returns "made" or "reused".

    If a step fails, the artifacts of the other steps of its job are kept.

    Raises:
      StepFailedError: if a step failed.
      NodeHeldError: if none did, but some lack an input, or may not begin.
    """
    # Job by job, since a later job reads what an earlier one made. For the steps of a job:
    #
    #   the store has …            this run …
    #   nothing                    makes it
    #   one made by other code     makes it again, if `rebuild_seconds` allows
    #   one that was accepted      uses it, unless --rebuild names it
    #   one that was let go        uses it, unless a step of this node needs its files
    #   a fresh one                uses it
    #
    # What is missing goes to one worker in one call, which makes together what it can.
    outcome: Literal["made", "reused"] = "reused"
    errors: dict[str, str] = {}
    blocked = ""
    for job in node.jobs:
        missing: dict[Step, Recipe] = {}
        keys: list[str] = []
        for step in job.steps:
            try:
                lookup = session.look_up(step)
                keys.append(lookup.recipe.key)
                remade = lookup.state == "accepted" and session.rebuilds(node)
                if lookup.is_pruned and lookup.state != "stale":
                    remade = remade or _is_wanted(session, node, lookup)
                session.allow(node, step, lookup)
                found = None if lookup.state == "stale" or remade else lookup.artifact
                if found is None or _is_damaged_table(session, node, step, found):
                    missing[step] = lookup.recipe
                else:
                    session.artifacts[step] = found
                    _publish_lineage_page(session, step, found, reused=True)
            except InputFailedError as error:
                blocked = blocked or f"since {error} failed"
            except StepFailedError as error:
                errors[step.name] = str(error)
        ends: dict[str, worker.StepOutcome] = {}
        try:
            if missing:
                # A table of the results so far always passes the gate: the cells it reads are made.
                partial = any(step.partial for step in missing)
                closes = math.inf if partial else session.admission.enter(node)
                recipes = list(missing.values())
                with session.admission.charge(node, session.store, recipes, ends):
                    _run_job(session, node, job, keys, recipes, ends, closes)
        finally:  # Even if the worker is lost, the steps that it committed before count.
            for step, recipe in missing.items():
                end = ends.get(step.name)
                if end and end.error:
                    session.log(f"{step.name}: {end.traceback}", failed=True)
                    errors[step.name] = end.error
                elif end:
                    artifact = session.artifacts[step] = session.store.get(recipe.key)
                    if not end.reused:
                        outcome = "made"
                        session.made.add(step)
                    session.expected.learn(step, artifact.manifest.seconds)
                    session.expected.learn_cost(step, device_seconds(artifact))
                    _publish_lineage_page(session, step, artifact, reused=end.reused)
        # After all steps of this job, so that one failed budget does not lose the others; before
        # the next job, which may read the step that failed.
        if errors:
            # The node's own name stands before all of it.
            messages = (v if k == node.name else f"{k}: {v}" for k, v in errors.items())
            raise StepFailedError("; ".join(messages))
        if blocked:
            raise NodeHeldError(blocked)
    return outcome


def _is_damaged_table(session: RunSession, node: GraphNode, step: Step, artifact: Artifact) -> bool:
    """Whether a step's artifact is the table that the run itself reads in the end, and damaged."""
    if not step.partial:
        return False
    try:
        _ = artifact.path
    except DamagedArtifactError as error:
        session.display.print_event(node.name, str(error))
        return True
    return False


def _is_wanted(session: RunSession, node: GraphNode, lookup: StepLookup) -> bool:
    """Whether a step of the node must be made and reads `lookup`, whose files were let go.

    Predictions that can be decoded from its cast do not read it.
    """
    # The readers can only be looked up once this step has an artifact, so it gets the old one.
    step = next(step for step in node.steps if step.name == lookup.recipe.name)
    pruned = session.artifacts[step] = cast(Artifact, lookup.artifact)
    lookups = (session.look_up(s) for s in node.steps if step in s.inputs.values())
    return any(
        reader.state in ("missing", "stale")
        and pruned.key in {entry.key for entry in reader.recipe.inputs.values()}
        for reader in lookups
    )


def _run_job(
    session: RunSession,
    node: GraphNode,
    job: StepJob,
    keys: Sequence[str],
    recipes: Sequence[Recipe],
    ends: dict[str, worker.StepOutcome],
    closes: float,
) -> None:
    """Runs the missing steps of a job and shows their progress; fills `ends` as each step ends.

    Raises:
      NodeHeldError: if no worker was free before `closes` [seconds since the epoch].
    """
    prefect = {"task_run_id": task_run.id, "flow_run_id": flow_run.id}
    context: dict[str, Any] = {"prefect": prefect}
    # The context says how to make it, never what: it is not part of the recipe.
    if job.processes > 1:
        context["processes"] = job.processes
        if job.launcher:
            context["launcher"] = job.launcher
    if math.isfinite(closes):
        context["closes"] = closes
    # A job for a worker may wait for one that is free: it begins with its first progress, which
    # comes before it imports or compiles anything. Others begin now.
    clock, began, devices, last = None, 0.0, "", None
    show = _progress_reporter(session, recipes[0].key)
    # Without cores of its own, a job is small and runs in this process.
    if not job.cpus or job.pieces > 1:
        clock, began = _begin(session, node, job), time.time()
    if job.cpus:
        if job.pieces > 1:
            _make_pieces(session, node, job, keys, recipes, context)
        stream = session.workers.make(
            node.name, keys, recipes, context, cpus=job.cpus, gpus=job.gpus
        )
    else:
        stream = worker.make(session.store.uri, recipes, context)
    for item in stream:  # To its very end: leaving a stream early ends its worker.
        if isinstance(item, worker.StepOutcome):
            if not item.held:
                ends[item.name] = item
            continue
        if isinstance(item, AlreadyRunning):
            detail = f": it was under way already, as {item.by}"
            session.display.finish(node.name, outcome="joined", detail=detail)
            continue
        name, progress = item
        if clock is None:
            clock, began = _begin(session, node, job), time.time()
        if job.cpus and not devices:
            devices = session.workers.describe_devices(job.cpus, job.gpus)
        if progress.happened and progress != last:  # The same report may arrive several times.
            session.display.print_event(node.name, progress.note)
            session.log(f"{node.name}: {progress.note}", failed=True)
        if progress.note == COMPILING and progress != last:
            session.log(f"{name}: {COMPILING}")
        last = progress
        seconds_left = clock.seconds_left(name, progress)
        session.display.update(node.name, progress, seconds_left)
        session.progress.update(
            node.name,
            NodeProgress(
                step=name,
                done=progress.done,
                total=progress.total,
                note=progress.note,
                devices=devices,
                seconds_left=seconds_left,
                began=began,
                written=time.time(),
            ),
        )
        show(name, progress)
    # No step ended and the window is closed: the worker never started one.
    if not ends and time.time() >= closes:
        raise NodeHeldError(session.admission.outside_window)
    for recipe in recipes:
        if recipe.name not in ends:
            raise StepFailedError("its worker ended without an artifact")


def _begin(session: RunSession, node: GraphNode, job: StepJob) -> JobClock:
    """Reports that a job has begun; returns the clock by which its time left is estimated."""
    missing = [step for step in node.steps if step not in session.artifacts]
    expected = session.expected.of_steps(missing)
    if node not in session.begun:
        session.begun.add(node)
        session.log(run_log.beginning_line(node, missing, expected))
        session.display.begin(node.name, expected, run_log.describe_work(missing))
    return JobClock(expected, is_last=len(missing) == 1)


def _make_pieces(
    session: RunSession,
    node: GraphNode,
    job: StepJob,
    keys: Sequence[str],
    recipes: Sequence[Recipe],
    context: Mapping[str, Any],
) -> None:
    """Makes all pieces of a job's steps in parallel; the steps themselves then read these pieces.

    A piece that fails is only logged: the step then answers those items itself, or fails.

    Raises:
      RayWorkerLostError: if a worker died; the next attempt finds the pieces that other workers
        made.
    """

    def make(number: int) -> None:
        # The piece is part of the keys: a cluster names its jobs by them, and pieces with one name
        # would all join the first one's job.
        piece = number, job.pieces
        name = f"{node.name} ({number + 1} of {job.pieces})"
        piece_keys = [keys[0], f"{piece}", *keys[1:]]
        for item in session.workers.make(
            name, piece_keys, recipes, {**context, "piece": piece}, cpus=job.cpus, gpus=job.gpus
        ):
            if isinstance(item, worker.StepOutcome):
                if item.error:
                    session.log(f"{name}: {item.traceback}", failed=True)
            elif not isinstance(item, AlreadyRunning):
                session.display.update(node.name, item[1])

    #   piece 0 of 3 ──┐
    #   piece 1 of 3 ──┼─▶ the job itself, which finds the pieces in the store
    #   piece 2 of 3 ──┘
    #
    # `result` raises what a thread raised: here, that a worker was lost.
    with ThreadPoolExecutor(job.pieces, thread_name_prefix="piece") as pool:
        copies = [contextvars.copy_context() for _ in range(job.pieces)]
        for future in [pool.submit(copy.run, make, i) for i, copy in enumerate(copies)]:
            future.result()


def _publish_lineage_page(
    session: RunSession, step: Step, artifact: Artifact, *, reused: bool
) -> None:
    """Publishes a page about an artifact in the UI."""
    text = lineage_page(session.view, artifact, reused=reused)
    session.pages.put(
        UIPage(
            key=page_key(artifact.key), text=text, description=step.name, task_run_id=task_run.id
        )
    )


def _progress_reporter(session: RunSession, key: str) -> Callable[[str, Progress], None]:
    """Returns a function that shows a node's progress in the UI, at most every few seconds."""
    last = logged = time.monotonic()

    def show(name: str, progress: Progress) -> None:
        nonlocal last, logged
        if time.monotonic() - last < _PROGRESS_PAGE_AFTER:
            return
        # Two rhythms: the page every few seconds, in place; a log line every `LINE_EVERY`, since
        # log lines pile up.
        last = time.monotonic()
        if last - logged >= run_log.LINE_EVERY:
            logged = last
            session.log(run_log.progress_line(name, progress))
        percent = round(100 * progress.done / max(progress.total, 1), 1)
        session.pages.put_progress(
            UIPage(
                key=f"progress-{key}",
                text=percent,
                description=f"{name} {progress.note}",
                task_run_id=task_run.id,
            )
        )

    return show


def _describe_counts(session: RunSession, steps: Sequence[Step]) -> str:
    headlines = (
        kind_of(step).headline(step.config, session.artifacts[step].manifest.counts)
        for step in steps
    )
    return ", ".join(filter(None, headlines))
