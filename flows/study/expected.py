"""How long steps will take, from those that were made: for their order, and for the time left."""

import re
import threading
from collections.abc import Callable, Collection, Mapping

from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.study.graph import Graph, Node

_SEEDS = re.compile(r" (seed|pretrain)=\d+")


class Expected:
    """The time that steps take, learned from steps that are the same but for their seeds.

    Where there are none, from what a unit of work took in others of the kind. Safe to call from
    several threads.
    """

    def __init__(self) -> None:
        self._alike: dict[str, tuple[float, int]] = {}
        self._kinds: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def learn(self, step: Step, seconds: float) -> None:
        """Notes the time that a step took [s]."""
        sort = _SEEDS.sub("", step.name)
        with self._lock:
            total, count = self._alike.get(sort, (0.0, 0))
            self._alike[sort] = total + seconds, count + 1
            total, work = self._kinds.get(step.kind, (0.0, 0.0))
            self._kinds[step.kind] = total + seconds, work + _work(step)

    def seconds(self, step: Step) -> float | None:
        """Returns the time that a step will take [s]; None where none of its kind was seen."""
        alike = self._alike.get(_SEEDS.sub("", step.name))
        if alike is not None:
            return alike[0] / alike[1]
        kind = self._kinds.get(step.kind)
        return kind[0] / kind[1] * _work(step) if kind is not None else None

    def of_node(self, node: Node) -> float | None:
        """Returns the time that a node will take [s]; None where that of a step is unknown."""
        found = [self.seconds(step) for step in node.steps]
        return None if None in found else sum(filter(None, found))

    def ranks(self, graph: Graph) -> dict[Node, tuple[float, float]]:
        """Returns the urgency of each node: the time of it and of the longest chain after it.

        A node without a known time counts by its work alone, below all that have one.
        """
        after: dict[Node, tuple[float, float]] = {}
        ranks: dict[Node, tuple[float, float]] = {}
        upstream = graph.upstream()
        for node in reversed(graph.nodes):  # Those that read a node come after it.
            time, work = after.get(node, (0.0, 0.0))
            seconds = self.of_node(node)
            ranks[node] = time + (seconds or 0.0), work + sum(map(_work, node.steps))
            for read in upstream[node]:
                after[read] = max(after.get(read, (0.0, 0.0)), ranks[node])
        return ranks


def time_left(
    expected: Expected,
    nodes: Collection[Node],
    under_way: Mapping[Node, float],
    slots: Callable[[Node], float],
) -> float | None:
    """Returns the time until nodes are done [s]; None where that of one is unknown.

    Args:
      expected: what they take.
      nodes: those to come, and under way.
      under_way: node -> how long it has been [s].
      slots: node -> how many like it run at a time.
    """
    total = longest = 0.0
    for node in nodes:
        seconds = expected.of_node(node)
        if seconds is None:
            return None
        # One that has taken longer than it should will take a little longer still.
        left = max(seconds - under_way.get(node, 0.0), 0.1 * seconds)
        total += left / slots(node)
        longest = max(longest, left)
    return max(total, longest)


def _work(step: Step) -> float:
    """Returns a step's work, comparable within its kind: examples, or tokens of a budget."""
    match step.config:
        case FitSpec(train=train):
            return float(train.total_steps * train.batch_size) or 1.0
        case EvaluateSpec(budget=budget):
            return float(budget + step.config.decode.text_len)
        case _:
            return 1.0
