"""The order in which the nodes of a graph run, and how many of them at once."""

from typing import Any

from flows.graph.eta import TimeEstimates
from flows.graph.nodes import GraphNode, StepJob, StudyGraph
from flows.run.run_order import RunOrder
from flows.steps.kind import Step
from flows.steps.labels import labels_of_step_name
from tests.flows.graph.estimated import took


def node(name: str, *reads: GraphNode, cpus: int = 1) -> GraphNode:
    """Returns a node of one step, which reads the steps of others."""
    inputs = {read.name: read.steps[0] for read in reads}
    step = Step(kind="files", labels=labels_of_step_name(name), inputs=inputs)
    return GraphNode(labels=step.labels, jobs=(StepJob(steps=(step,), cpus=cpus),))


def order_of(nodes: list[GraphNode], **options: Any) -> RunOrder:
    graph = StudyGraph(nodes=tuple(nodes), cells={}, results=None)
    defaults = {"expected": TimeEstimates(), "on_workers": 1, "in_process": 1}
    return RunOrder(graph, **{**defaults, **options})


def names(order: RunOrder) -> list[str]:
    """Returns the nodes in the order in which they begin, each as the one before has ended."""
    begun: list[str] = []
    while order.is_active():
        for one in [*order.begin()]:
            begun.append(one.name)
            order.end(one)
    return begun


def test_as_many_nodes_are_in_flight_as_there_are_workers():
    order = order_of([node(f"cell {i}") for i in range(201)], on_workers=200)
    in_flight = [*order.begin()]
    assert len(in_flight) == 200
    assert [*order.begin()] == []
    order.end(in_flight[7])
    assert [one.name for one in order.begin()] == ["cell 200"]


def test_nodes_of_this_process_have_a_limit_of_their_own():
    # Six datasets, three at a time, beside a cell that takes a worker.
    datasets = [node(f"prepare {i}", cpus=0) for i in range(6)]
    order = order_of([*datasets, node("cell")], in_process=3)
    in_flight = [*order.begin()]
    assert sorted(one.name for one in in_flight) == ["cell", "prepare 0", "prepare 1", "prepare 2"]
    order.end(datasets[1])
    assert [*order.begin()] == [datasets[3]]


def test_a_reader_begins_once_all_that_it_reads_has_ended():
    first, second = node("first"), node("second")
    order = order_of([first, second, node("reader", first, second)], on_workers=3)
    assert [*order.begin()] == [first, second]
    order.end(second)
    assert [*order.begin()] == []
    order.end(first)
    assert [one.name for one in order.begin()] == ["reader"]


def test_the_longest_chain_of_work_begins_first():
    short, head, long, lone = node("short"), node("head"), node("long"), node("lone")
    tail = node("tail", head)
    expected = TimeEstimates()
    for one, seconds in ((short, 1), (head, 2), (tail, 9), (long, 8), (lone, 10)):
        expected.learn(took(seconds), one.steps[0])
    order = order_of([short, head, long, lone, tail], expected=expected)
    assert names(order) == ["head", "lone", "tail", "long", "short"]


def test_nodes_of_priority_begin_first_and_done_ones_are_not_run():
    first, second, third, read = node("first"), node("second"), node("third"), node("read")
    nodes = [read, first, second, third, node("reader", read)]
    order = names(order_of(nodes, priority={third: 0, second: 1}, done={read}))
    assert order[:2] == ["third", "second"]
    assert sorted(order) == ["first", "reader", "second", "third"]
