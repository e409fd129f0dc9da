"""Runs the nodes of a graph in order: each after what it reads, the most urgent ones first."""

import contextvars
import graphlib
import heapq
import math
import queue
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

from flows.graph.eta import TimeEstimates
from flows.graph.nodes import GraphNode, StudyGraph


def run_in_order(
    graph: StudyGraph,
    run: Callable[[GraphNode], None],
    *,
    expected: TimeEstimates,
    on_workers: int,
    in_process: int,
    done: Collection[GraphNode] = (),
    priority: Mapping[GraphNode, int] = MappingProxyType({}),
) -> None:
    """Calls a function for every node of a graph, in threads; returns when all calls have.

    Of the nodes that are ready, the one at the head of the longest chain of work begins first.

    Args:
      graph: the nodes.
      run: function that runs a node, however that ends. It sees the context of this call, and with
        it Prefect's flow run.
      expected: estimated time of each step.
      on_workers: most nodes in flight at a time of those that run on workers.
      in_process: most nodes in flight at a time of those that run in this process.
      done: nodes that are not run, because all they would make is there.
      priority: nodes that begin before all other ready ones, by their place among themselves.
    """
    order = graphlib.TopologicalSorter(
        {
            node: [before for before in graph.upstream[node] if before not in done]
            for node in graph.nodes
            if node not in done
        }
    )
    # The way of a node; a failed one goes the same way, so its readers begin, find their input
    # missing, and fail in turn:
    #
    #   waits for what it reads ─▶ ready (two heaps) ─▶ in flight (the pool) ─▶ ended (a queue)
    #             ▲                                                                │
    #             └─────────────── `order.done` frees its readers ◀────────────────┘
    #
    # Only this thread touches `order` and `ready`; the pool's threads only put into `ended`.
    order.prepare()
    ranks = expected.ranks(graph)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    ready: dict[bool, list[tuple[tuple[float, float, float], int, GraphNode]]]
    ready, in_flight = {True: [], False: []}, {True: 0, False: 0}
    limits = {True: on_workers, False: in_process}
    ended: queue.SimpleQueue[GraphNode] = queue.SimpleQueue()
    pool = ThreadPoolExecutor(on_workers + in_process, thread_name_prefix="node")
    try:
        while order.is_active():
            for node in order.get_ready():
                time_after, work_after = ranks[node]
                # The heap pops the least: by `priority`, then the longest chain of work, then (by
                # `numbers`) the graph's order, since nodes themselves cannot be compared.
                urgency = priority.get(node, math.inf), -time_after, -work_after
                heapq.heappush(ready[node.needs_worker], (urgency, numbers[node], node))
            for where, heap in ready.items():
                while heap and in_flight[where] < limits[where]:
                    *_, node = heapq.heappop(heap)
                    in_flight[where] += 1
                    future = pool.submit(contextvars.copy_context().run, run, node)
                    future.add_done_callback(lambda _, node=node: ended.put(node))
            node = ended.get()
            order.done(node)
            in_flight[node.needs_worker] -= 1
    finally:
        # Without waiting: here either all have ended, or the run is being ended.
        pool.shutdown(wait=False, cancel_futures=True)
