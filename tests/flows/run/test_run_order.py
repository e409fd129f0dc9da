"""The order in which the nodes of a graph run, and how many of them at once."""

import contextvars
import threading
from collections.abc import Callable

from flows.graph.eta import TimeEstimates
from flows.graph.nodes import GraphNode, StepJob, StudyGraph
from flows.run.run_order import run_in_order
from flows.steps.kind import Step
from flows.steps.labels import labels_of_step_name


def node(name: str, *reads: GraphNode, cpus: int = 1) -> GraphNode:
    """Returns a node of one step, which reads the steps of others."""
    inputs = {read.name: read.steps[0] for read in reads}
    step = Step(kind="files", labels=labels_of_step_name(name), inputs=inputs)
    return GraphNode(labels=step.labels, jobs=(StepJob(steps=(step,), cpus=cpus),))


def run(
    nodes: list[GraphNode],
    make: Callable[[GraphNode], None],
    *,
    on_workers: int = 1,
    in_process: int = 1,
    expected: TimeEstimates | None = None,
    **options: object,
) -> None:
    run_in_order(
        StudyGraph(nodes=tuple(nodes), cells={}, results=None),
        make,
        expected=expected or TimeEstimates(),
        on_workers=on_workers,
        in_process=in_process,
        **options,  # pyright: ignore[reportArgumentType]
    )


def test_as_many_nodes_are_in_flight_as_there_are_workers():
    together = threading.Barrier(200, timeout=60)
    run([node(f"cell {i}") for i in range(200)], lambda _: together.wait() and None, on_workers=200)
    assert not together.broken


def test_nodes_of_this_process_have_a_limit_of_their_own():
    # Six datasets, three at a time, beside a cell that takes a worker.
    together = threading.Barrier(3, timeout=60)
    lock, running, most = threading.Lock(), set[str](), [0]

    def make(one: GraphNode) -> None:
        if one.needs_worker:
            return
        with lock:
            running.add(one.name)
            most[0] = max(most[0], len(running))
        together.wait()
        with lock:
            running.remove(one.name)
        together.wait()

    datasets = [node(f"prepare {i}", cpus=0) for i in range(6)]
    run([*datasets, node("cell")], make, in_process=3)
    assert most == [3]


def test_the_longest_chain_of_work_begins_first():
    short, head, long, lone = node("short"), node("head"), node("long"), node("lone")
    tail = node("tail", head)
    expected, order = TimeEstimates(), list[str]()
    for one, seconds in ((short, 1), (head, 2), (tail, 9), (long, 8), (lone, 10)):
        expected.learn(one.steps[0], seconds)
    run([short, head, long, lone, tail], lambda one: order.append(one.name), expected=expected)
    assert order == ["head", "lone", "tail", "long", "short"]


def test_nodes_of_priority_begin_first_and_done_ones_are_not_run():
    first, second, third, read = node("first"), node("second"), node("third"), node("read")
    reader, order = node("reader", read), list[str]()
    run(
        [read, first, second, third, reader],
        lambda one: order.append(one.name),
        priority={third: 0, second: 1},
        done={read},
    )
    assert order[:2] == ["third", "second"]
    assert sorted(order) == ["first", "reader", "second", "third"]


def test_a_node_sees_the_context_of_the_run():
    variable, values = contextvars.ContextVar[str]("variable"), list[str]()
    variable.set("of the run")
    run([node("a"), node("b")], lambda _: values.append(variable.get()))
    assert values == ["of the run"] * 2
