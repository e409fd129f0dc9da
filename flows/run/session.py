"""The state that the nodes of a run share: what was found, made and held back."""

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, cast

from prefect import get_run_logger

from flows.graph.eta import Forecast, TimeEstimates
from flows.graph.nodes import GraphNode, StudyGraph
from flows.run.display import Display
from flows.run.limits import Admission, NodeHeldError
from flows.run.trackers import Trackers
from flows.steps.kind import Step
from flows.steps.step_lookup import StepLookup, device_seconds, look_up_step
from flows.steps.workers import Workers
from infra.prefect.journal import Journal
from infra.prefect.page_queue import PageQueue
from infra.prefect.progress import ProgressFile
from infra.source_code import checkout
from infra.store.pins import Pin
from infra.store.store import Artifact, Store


class StepFailedError(RuntimeError):
    """A node has not made an artifact; the message says which and why."""


class InputFailedError(StepFailedError):
    """A step has no input, since a node before it failed; the message says which node."""


def log_on_page(text: str, failed: bool = False) -> None:
    """Logs a line on the page of the node whose task calls this."""
    get_run_logger().log(logging.ERROR if failed else logging.INFO, text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTraces:
    """What a run leaves beside its artifacts while it is alive, and the records of those before.

    Attributes:
      pin: protection of artifacts from garbage collection until the run ends.
      journal: record of the run, from which the UI's rows are settled.
      pages: its pages, on their way to the UI.
      trackers: the trackers that are told what it makes.
      previous_runs: records of the runs before it, by name.
    """

    pin: Pin
    journal: Journal
    pages: PageQueue
    trackers: Trackers
    previous_runs: Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(kw_only=True)
class RunSession:
    """The state that the nodes of one run share.

    Attributes:
      graph: the nodes.
      reused: nodes whose artifacts are all in the store already.
      priority: nodes that begin before all other ready ones, by their place among themselves.
      store: the store that artifacts are read from and written to.
      workers: the processes that run steps.
      display: the terminal's progress display.
      view: snapshot of the store at the start of the run; answers look-ups of `expected_keys`.
      expected_keys: step -> key of the artifact found for it at the start, which is pinned.
      accepted_at_start: steps that, at the start, rested on an artifact kept by `parcel accept`.
      traces: what the run leaves beside its artifacts.
      progress: how far the nodes are that run.
      expected: estimated time and cost of each step.
      forecast: estimated time until the run ends.
      retries: further attempts at a node whose worker died.
      retry_after: pause before each of them [s].
      rebuild: names of steps to make again at any cost, accepted ones included; may hold `*`.
      rework_costs: steps that changed code may have made again -> cost [device-seconds].
      rebuild_seconds: such work, on steps that `rebuild` does not name, that may still be done
        [device-seconds].
      admission: decides whether a node may begin.
      log: function of a line, and whether it is about a failure, that logs it.
      artifacts: step -> its artifact; grows during the run.
      accepted: steps that rest on an artifact kept although its code has changed since.
      failures: node's name -> why it failed.
      causes: step that was not made -> name of the node that failed.
      holds: node -> why it was not run.
      allowed: keys that `rebuild_seconds` was already charged for.
      begun: nodes whose work has begun.
      made: steps that this run made.
      began: when the session did [s, monotonic].
      lock: guard of `allowed`, `rebuild_seconds` and `expected_keys`.
      repaired: steps made again in this run, since a file of their artifact was damaged.
      repair_lock: held by who makes them.
    """

    graph: StudyGraph
    reused: Set[GraphNode]
    priority: Mapping[GraphNode, int] = dataclasses.field(default_factory=dict)
    store: Store
    view: Store
    expected_keys: Mapping[Step, str]
    accepted_at_start: Set[Step]
    workers: Workers
    display: Display
    traces: RunTraces
    progress: ProgressFile
    expected: TimeEstimates
    forecast: Forecast
    retries: int = 0
    retry_after: float = 1.0
    rebuild: Sequence[str] = ()
    rework_costs: Mapping[Step, float] = dataclasses.field(default_factory=dict)
    rebuild_seconds: float = 0.0
    admission: Admission = dataclasses.field(default_factory=Admission)
    log: Callable[[str, bool], None] = log_on_page
    artifacts: dict[Step, Artifact] = dataclasses.field(default_factory=dict)
    accepted: set[Step] = dataclasses.field(default_factory=set)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    causes: dict[Step, str] = dataclasses.field(default_factory=dict)
    holds: dict[GraphNode, str] = dataclasses.field(default_factory=dict)
    allowed: set[str] = dataclasses.field(default_factory=set)
    begun: set[GraphNode] = dataclasses.field(default_factory=set)
    made: set[Step] = dataclasses.field(default_factory=set)
    began: float = dataclasses.field(default_factory=time.monotonic)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    repaired: set[Step] = dataclasses.field(default_factory=set)
    repair_lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)

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
            look_up_step,
            step=step,
            inputs=inputs,
            accepted=self.accepted,
            source=self.source,
            pin=self.traces.pin.add,
            before=self.view,
        )
        # The snapshot is fast, and right for keys pinned at the start: `gc` cannot have removed
        # those. If an input was remade with other bytes, the key is new, and only the store knows.
        expected_key = self.expected_keys.get(step)
        lookup = look_up_in(self.view if expected_key else self.store)
        if expected_key and lookup.recipe.key != expected_key:
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
        elif lookup.state == "missing" and step in self.rework_costs:
            # New through values that code owns, or because it follows a step that was made again.
            key, seconds = lookup.recipe.key, self.rework_costs[step]
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

    def rebuilds(self, node: GraphNode) -> bool:
        """Whether `rebuild` names a node or one of its steps."""
        return any(node.matches(pattern) for pattern in self.rebuild)
