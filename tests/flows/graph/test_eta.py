"""Expected times: learned from the same step with other seeds, else from others of the kind."""

import pytest

from flows.graph.eta import Forecast, JobClock, TimeEstimates
from flows.graph.nodes import GraphNode, StepJob, StudyGraph
from flows.steps.kind import Step
from flows.steps.kinds.user_step import UserStepSpec
from flows.steps.labels import labels_of_step_name, labels_of_user_step
from infra.progress import Progress
from tests.flows.graph.estimated import took


def transfer(name: str, *reads: GraphNode) -> GraphNode:
    step = Step(
        kind="checkpoint",
        labels=labels_of_step_name(name),
        inputs={r.name: r.steps[0] for r in reads},
    )
    return GraphNode(labels=step.labels, jobs=(StepJob(steps=(step,), cpus=1),))


def test_seeds_of_one_transfer_are_alike_and_others_follow_their_kind():
    expected = TimeEstimates()
    first, other, unlike = (
        transfer(name) for name in ("transfer m3 a seed=1", "transfer m3 a seed=2", "transfer m3 b")
    )
    assert expected.of_node(other) is None
    expected.learn(took(4.0), first.steps[0])
    expected.learn(took(8.0), unlike.steps[0])
    assert expected.of_node(other) == 4.0
    assert expected.of_node(transfer("transfer parcel a seed=1")) == 6.0


def test_trainings_of_the_method_come_before_those_of_other_methods():
    expected = TimeEstimates()
    for name, seconds in (("intermediary parcel", 4.0), ("stage1 vanilla", 8.0)):
        expected.learn(took(seconds, devices=256), transfer(name).steps[0])
    (parcel,), (m3,) = (transfer(f"transfer {m} a seed=1").steps for m in ("parcel", "m3"))
    assert (expected.seconds(parcel), expected.device_seconds(parcel)) == (4.0, 1024.0)
    assert (expected.seconds(m3), expected.device_seconds(m3)) == (6.0, 1536.0)


def test_steps_of_one_users_class_are_alike_and_those_of_another_are_not():
    def step(name: str, reference: str) -> Step:
        spec = UserStepSpec(step=reference, settings={})
        return Step(kind="user_files", labels=labels_of_user_step(reference, name), config=spec)

    expected = TimeEstimates()
    expected.learn(took(4.0), step("dedup web", "lab:Dedup"))
    assert expected.seconds(step("dedup charts", "lab:Dedup")) == 4.0
    assert expected.seconds(step("captions", "lab:Captions")) is None


def test_rank_counts_what_waits_for_a_node():
    start = transfer("start")
    nodes = (start, *(transfer(f"cell {i}", start) for i in range(3)))
    expected = TimeEstimates()
    for seconds, node in enumerate(nodes, start=1):
        expected.learn(took(seconds), node.steps[0])
    ranks = expected.ranks(StudyGraph(nodes=nodes, cells={}, results=None))
    assert [ranks[node][0] for node in nodes] == [5, 2, 3, 4]


def test_time_left_is_that_of_the_rest_at_the_rate_of_the_last(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("flows.graph.eta.time.monotonic", lambda: now)
    nodes = [transfer(f"transfer m3 a seed={i}") for i in range(10)]
    expected = TimeEstimates()
    forecast = Forecast(expected, nodes)
    assert forecast.seconds() is None
    for number in range(4):  # Two at a time.
        now += 5.0
        expected.learn(took(10.0), nodes[number].steps[0])
        forecast.end(nodes[number], 10.0)
    assert forecast.seconds() == pytest.approx(6 * 10 / (40 / 25))
    now += 7.5
    assert forecast.seconds() == pytest.approx(6 * 10 / (40 / 25) - 7.5)
    for node in nodes[4:]:
        forecast.end(node)
    assert forecast.seconds() == 0


def test_the_time_left_of_a_node_is_that_of_the_like_or_of_its_own_rate(
    monkeypatch: pytest.MonkeyPatch,
):
    now = 100.0
    monkeypatch.setattr("flows.graph.eta.time.monotonic", lambda: now)

    def at(seconds: float, clock: JobClock, done: int) -> float | None:
        nonlocal now
        now = 100.0 + seconds
        return clock.seconds_left("train", Progress(done=done, total=100))

    def clock(expected: float | None, *, is_last: bool = False) -> JobClock:
        nonlocal now
        now = 100.0
        return JobClock(expected, is_last=is_last)

    known = clock(60.0)
    assert at(0, known, 0) == 60
    assert at(20, known, 10) == 40  # The first count: no rate yet.
    assert at(30, known, 60) == 30  # 8 s at its rate, but evaluations come after it.
    slow = clock(60.0)
    assert [at(10, slow, 10), at(30, slow, 20)] == [50, 160]  # Slower than the like.
    first = clock(None, is_last=True)
    assert [at(5, first, 0), at(10, first, 10), at(20, first, 30)] == [None, None, 35]
    assert at(20, clock(None), 30) is None  # What comes after it is unknown.
