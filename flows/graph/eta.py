"""Estimates of the time of steps, from earlier ones: for scheduling and for the time left."""

import collections
import threading
import time
from collections.abc import Sequence
from typing import Any

from flows.graph.nodes import GraphNode, StudyGraph
from flows.steps.kind import Step
from flows.steps.labels import labels_of
from flows.steps.registry import kind_of
from flows.steps.step_lookup import device_seconds
from infra.progress import Progress
from infra.store.manifest import Manifest
from infra.store.store import Artifact

_RECENT = 20
"""Number of the latest nodes from whose rate the time left is estimated."""


class _Rates:
    """Averages of a number over the steps seen, per unit of their work; thread-safe."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], tuple[float, float]] = {}
        self._lock = threading.Lock()

    def learn(self, step: Step | Manifest, value: float) -> None:
        """Records the number of one step."""
        work = _work_amount(step)
        with self._lock:
            for group in _similar_step_groups(step):
                total, total_work = self._sums.get(group, (0.0, 0.0))
                self._sums[group] = total + value, total_work + work

    def estimate(self, step: Step) -> float | None:
        """Returns the estimate for a step by its nearest group; None if there is none."""
        for group in _similar_step_groups(step):
            if group in self._sums:
                total, total_work = self._sums[group]
                return total / total_work * _work_amount(step)
        return None


class TimeEstimates:
    """Estimates time and cost of a step from earlier steps that differ from it only in their seeds.

    Where there are none, it uses the time per unit of work of other steps of the kind and method,
    or else of the kind. Safe to call from several threads.
    """

    def __init__(self) -> None:
        self._times, self._costs = _Rates(), _Rates()

    def learn(self, artifact: Artifact, step: Step | None = None) -> None:
        """Records what an artifact took, as that of a step; None takes what its manifest says."""
        made = step or artifact.manifest
        self._times.learn(made, artifact.manifest.seconds)
        self._costs.learn(made, device_seconds(artifact))

    def seconds(self, step: Step) -> float | None:
        """Returns the estimated time of a step [s]; None where no step of its kind was seen."""
        return self._times.estimate(step)

    def device_seconds(self, step: Step) -> float | None:
        """Returns the estimated cost of a step; None where no step of its kind was seen."""
        return self._costs.estimate(step)

    def of_node(self, node: GraphNode) -> float | None:
        """Returns the estimated time of a node [s]; None if that of any of its steps is unknown."""
        return self.of_steps(node.steps)

    def of_steps(self, steps: Sequence[Step]) -> float | None:
        """Returns the estimated time of some steps together [s]; None if any of them is unknown."""
        times = [self.seconds(step) for step in steps]
        return None if None in times else sum(filter(None, times))

    def ranks(self, graph: StudyGraph) -> dict[GraphNode, tuple[float, float]]:
        """Returns the urgency of each node: the time, then the work, of the longest chain it heads.

        The chain includes the node. Nodes of unknown time add 0 to the time, so that among those
        the work decides.
        """
        # Backwards, so that a chain is known when the node at its head is reached:
        #
        #   stage1 (60 s) ─▶ transfer a (30 s) ─▶ results (1 s)      ranks 91, 31, 1
        #                 └▶ transfer b (10 s) ─▶                    b: 11, so a begins before b
        after: dict[GraphNode, tuple[float, float]] = {}
        ranks: dict[GraphNode, tuple[float, float]] = {}
        upstream = graph.upstream
        for node in reversed(graph.nodes):  # Backwards, readers are visited before their inputs.
            chain, work = after.get(node, (0.0, 0.0))
            seconds = self.of_node(node)
            ranks[node] = chain + (seconds or 0.0), work + sum(map(_work_amount, node.steps))
            for read in upstream[node]:
                after[read] = max(after.get(read, (0.0, 0.0)), ranks[node])
        return ranks


class JobClock:
    """Estimates the time until a node ends, while one of its jobs is at work.

    Args:
      expected: estimated time of all that the node has still to make, from the beginning of the job
        [s]; None if unknown.
      is_last: whether the node ends with this job's first step.
    """

    def __init__(self, expected: float | None, *, is_last: bool) -> None:
        self._expected, self._is_last = expected, is_last
        self._began = time.monotonic()
        self._first: tuple[str, float, float] | None = None

    def seconds_left(self, step: str, progress: Progress) -> float | None:
        """Returns the time left [s]; None if unknown.

        Args:
          step: the step at work.
          progress: its progress.
        """
        # Two estimates, of which the larger counts: what the like took, less what is over, and what
        # is left of the step at its own rate, which this machine may be slower at. The rate leaves
        # out what came before the first count, such as compiling.
        now = time.monotonic()
        by_rate = None
        if self._first is None or self._first[0] != step:
            self._first = (step, now, progress.done) if progress.done else None
        elif progress.done > self._first[2]:
            _, since, done = self._first
            by_rate = (now - since) / (progress.done - done) * (progress.total - progress.done)
        if self._expected is not None:
            return max(self._expected - (now - self._began), by_rate or 0.0)
        return by_rate if self._is_last else None


class Forecast:
    """Estimates the time until a run ends. Safe to call from several threads.

    Args:
      expected: estimates for single steps.
      nodes: all nodes of the run.
    """

    def __init__(self, expected: TimeEstimates, nodes: Sequence[GraphNode]) -> None:
        self._expected = expected
        # Nodes that differ in their seeds alone take the same time.
        self._node_by_labels = {node.labels.but_for_seeds(): node for node in nodes}
        self._num_remaining = collections.Counter(node.labels.but_for_seeds() for node in nodes)
        self._recent: collections.deque[tuple[float, float]] = collections.deque(maxlen=_RECENT)
        self._lock = threading.Lock()

    def end(self, node: GraphNode, seconds: float = 0.0) -> None:
        """Records the end of a node, with the time of its work [s]; 0 if it made nothing."""
        with self._lock:
            self._num_remaining[node.labels.but_for_seeds()] -= 1
            if seconds:
                self._recent.append((time.monotonic(), seconds))

    def seconds(self) -> float | None:
        """Returns the time left [s]; None if the time of a remaining node is unknown.

        This is the estimated work of the remaining nodes, divided by the work that the latest nodes
        did per second of wall time: this rate covers parallel nodes and the gaps between them.
        """
        with self._lock:
            counts, recent = dict(self._num_remaining), list(self._recent)
        seconds_by_labels = {
            labels: self._expected.of_node(self._node_by_labels[labels])
            for labels in counts
            if counts[labels] > 0
        }
        if not recent or any(seconds is None for seconds in seconds_by_labels.values()):
            return None
        # Twenty nodes of 30 s that all ran within 60 s did 600 s of work: 10 s of work in a second.
        last = recent[-1][0]
        since = min(ended - seconds for ended, seconds in recent)
        at_once = sum(seconds for _, seconds in recent) / max(last - since, 1e-6)
        total = sum((seconds or 0.0) * counts[like] for like, seconds in seconds_by_labels.items())
        # `recent` ends with the last node that ended; the others have worked on since then.
        return max(total / at_once - (time.monotonic() - last), 0.0)


def _similar_step_groups(step: Step | Manifest) -> tuple[tuple[Any, ...], ...]:
    """Returns the groups of steps like this one, the nearest first."""
    #   (checkpoint, transfer parcel chartqa, 9600 examples)    other seeds
    #   (checkpoint, parcel)                                    the method's other trainings
    #   (checkpoint)                                            all trainings
    kind = step.kind, kind_of(step).sort(step.config)
    labels = labels_of(step) if isinstance(step, Manifest) else step.labels
    groups: list[tuple[Any, ...]] = [(*kind, labels.but_for_seeds(), _work_amount(step))]
    if what := labels.method or labels.subject:
        groups.append((*kind, what))
    return (*groups, kind)


def _work_amount(step: Step | Manifest) -> float:
    """Returns a step's amount of work, comparable within its kind: examples, or tokens."""
    return kind_of(step).work(step.config)
