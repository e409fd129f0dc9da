"""The order in which the nodes of a graph run: each after what it reads, the most urgent first."""

import graphlib
import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from flows.graph.eta import TimeEstimates
from flows.graph.nodes import GraphNode, StudyGraph


class RunOrder:
    """Tells which nodes begin next, and how many of them are in flight at a time.

    Of the nodes that are ready, the one at the head of the longest chain of work begins first.

    Args:
      graph: the nodes.
      expected: estimated time of each step.
      on_workers: most nodes in flight at a time of those that run on workers.
      in_process: most nodes in flight at a time of those that run in this process.
      done: nodes that are not run, because all they would make is there.
      priority: nodes that begin before all other ready ones, by their place among themselves.
    """

    def __init__(
        self,
        graph: StudyGraph,
        *,
        expected: TimeEstimates,
        on_workers: int,
        in_process: int,
        done: Collection[GraphNode] = (),
        priority: Mapping[GraphNode, int] = MappingProxyType({}),
    ) -> None:
        self._order = graphlib.TopologicalSorter(
            {
                node: [before for before in graph.upstream[node] if before not in done]
                for node in graph.nodes
                if node not in done
            }
        )
        self._order.prepare()
        self._priority, self._ranks = priority, expected.ranks(graph)
        self._numbers = {node: number for number, node in enumerate(graph.nodes)}
        # By whether a node needs a worker.
        self._limits, self._in_flight = {True: on_workers, False: in_process}, {True: 0, False: 0}
        self._ready: dict[bool, list[tuple[tuple[float, float, float], int, GraphNode]]]
        self._ready = {True: [], False: []}

    def is_active(self) -> bool:
        """Whether a node has not ended yet."""
        return self._order.is_active()

    def begin(self) -> Iterator[GraphNode]:
        """Yields the nodes that may begin now; from then on they are in flight."""
        for node in self._order.get_ready():
            time_after, work_after = self._ranks[node]
            # The heap pops the least: by `priority`, then the longest chain of work, then (by
            # `_numbers`) the graph's order, since nodes themselves cannot be compared.
            urgency = self._priority.get(node, math.inf), -time_after, -work_after
            heapq.heappush(self._ready[node.needs_worker], (urgency, self._numbers[node], node))
        for where, heap in self._ready.items():
            while heap and self._in_flight[where] < self._limits[where]:
                self._in_flight[where] += 1
                yield heapq.heappop(heap)[-1]

    def end(self, node: GraphNode) -> None:
        """Notes that a node has ended, however it did: its readers may begin."""
        self._order.done(node)
        self._in_flight[node.needs_worker] -= 1
