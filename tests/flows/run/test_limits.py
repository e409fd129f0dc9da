"""When the cells of a sweep may begin."""

import contextlib
import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.graph.eta import TimeEstimates
from flows.graph.graph import graph_of
from flows.graph.nodes import GraphNode, StepJob
from flows.run.limits import Admission, NodeHeldError, SweepLimits
from flows.steps.kind import Step
from flows.steps.labels import labels_of_step_name
from flows.steps.worker import StepOutcome
from flows.study.load import load
from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store
from tests.flows.graph.estimated import took


def cell(name: str) -> GraphNode:
    step = Step(kind="files", labels=labels_of_step_name(name))
    return GraphNode(labels=step.labels, jobs=(StepJob(steps=(step,), cpus=1),))


def expected(**seconds: float) -> TimeEstimates:
    """Estimates of steps that take so long, each on two devices."""
    found = TimeEstimates()
    for name, value in seconds.items():
        found.learn(took(value, devices=2), cell(name).steps[0])
    return found


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("now", "closes"),
    [
        ("2026-01-05T19:59+00:00", "2026-01-05T19:59+00:00"),
        ("2026-01-05T20:00+00:00", "2026-01-06T08:00+00:00"),
        ("2026-01-06T00:30+00:00", "2026-01-06T08:00+00:00"),
        ("2026-01-06T08:00+00:00", "2026-01-06T08:00+00:00"),
        ("2026-01-05T20:30+01:00", "2026-01-05T20:30+01:00"),  # Half past seven there.
    ],
)
def test_a_window_over_midnight_closes_in_the_morning(now: str, closes: str):
    assert SweepLimits(start="20:00", end="08:00").closes(at(now)) == at(closes)


def test_a_window_is_of_its_time_zone():
    window = SweepLimits(start="09:00", end="17:00", timezone="Europe/Berlin")
    assert window.closes(at("2026-07-01T07:30+00:00")) == at("2026-07-01T15:00+00:00")
    assert window.closes(at("2026-01-05T07:30+00:00")) == at("2026-01-05T07:30+00:00")


def test_nothing_begins_after_the_window_and_what_runs_goes_on():
    a, b = cell("a"), cell("b")
    admission = Admission(SweepLimits(start="20:00", end="08:00"), at("2026-01-05T21:00+00:00"))
    assert admission.closes == at("2026-01-06T08:00+00:00")
    now = datetime.datetime.now(datetime.UTC)
    admission.closes = now + datetime.timedelta(hours=1)
    assert admission.enter(a) == admission.closes.timestamp()
    admission.closes = now
    assert admission.enter(a) == math.inf
    with pytest.raises(NodeHeldError, match="outside 20:00-08:00 UTC"):
        admission.enter(b)


def test_a_bound_counts_what_was_done_and_what_is_under_way():
    a, b, c, d = map(cell, "abcd")  # Each of two devices.
    admission = Admission(SweepLimits(max_hours=1))
    admission.expected = expected(a=500, b=1000, c=350, d=250)
    admission.enter(a)
    admission.enter(b)
    with pytest.raises(NodeHeldError, match="bound of 1 device-hours"):
        admission.enter(c)
    admission.spend_device_seconds(b, 1500.0)  # Of its first job; the second one is to come.
    with pytest.raises(NodeHeldError):
        admission.enter(c)
    admission.enter(d)


def test_what_an_ended_node_did_not_need_is_free_again():
    a, b, c = map(cell, "abc")
    admission = Admission(SweepLimits(max_hours=1))
    admission.expected = expected(a=1500, b=1500, c=200)
    admission.enter(a)
    admission.spend_device_seconds(a, 300.0)
    with pytest.raises(NodeHeldError):
        admission.enter(b)
    admission.leave(a)
    admission.enter(b)
    admission.leave(b)  # It failed, and did nothing.
    admission.enter(c)


def attempt(store: Store, recipe: Recipe, hours: float, error: str = "") -> None:
    """Makes an attempt at a step that takes an hour, on `hours` devices; it fails with an error."""
    with store.lock(recipe.key):
        attempt = Attempt(store, recipe)
        attempt.devices = int(hours)
        attempt._clock -= 3600
        if error:
            raise ValueError(error)
        attempt.commit({})


def test_failed_attempts_count_against_the_bound(tmp_path: Path):
    store = Store(tmp_path)
    admission = Admission(SweepLimits(max_hours=1))
    begun: list[str] = []
    for name in "abcdef":
        node, recipe = cell(name), Recipe(kind="files", name=name, config=name)
        with contextlib.suppress(NodeHeldError):
            admission.enter(node)
            begun.append(name)
            with (
                pytest.raises(ValueError, match="broken"),
                admission.charge(node, store, [recipe], {}),
            ):
                attempt(store, recipe, 10, "broken")
            admission.leave(node)
    assert begun == ["a"]


def test_a_firing_is_charged_for_its_own_attempts_only(tmp_path: Path):
    store = Store(tmp_path)
    admission = Admission(SweepLimits(max_hours=30))
    a, b, c, d = map(cell, "abcd")
    recipes = [Recipe(kind="files", name=name, config=name) for name in "ab"]
    # An earlier firing failed here, and another run makes `b` while this one waits for it.
    with pytest.raises(ValueError, match="broken"):
        attempt(store, recipes[0], 20, "broken")
    with admission.charge(a, store, recipes[:1], {}):
        attempt(store, recipes[0], 10)
    outcomes: dict[str, StepOutcome] = {}
    with admission.charge(b, store, recipes[1:], outcomes):
        attempt(store, recipes[1], 40)
        outcomes["b"] = StepOutcome(name="b", reused=True)
    admission.expected = expected(c=9.9 * 3600, d=10.1 * 3600)
    with pytest.raises(NodeHeldError, match="bound of 30 device-hours"):
        admission.enter(d)
    admission.enter(c)
    manifests = [store.get(recipe.key).manifest for recipe in recipes]
    assert [round(m.environment["device_seconds"] / 3600) for m in manifests] == [30, 40]


def test_one_that_is_too_large_begins_where_nothing_else_did():
    admission = Admission(SweepLimits(max_hours=1))
    admission.expected = expected(a=9000)
    admission.enter(cell("a"))


def test_nothing_queues_where_it_matters_what_begins():
    assert SweepLimits().queues
    assert not SweepLimits(first=("transfer parcel *",)).queues
    assert not SweepLimits(max_hours=2).queues


def test_steps_that_come_first_bring_what_they_need():
    graph = graph_of(load())
    ahead = named(SweepLimits(first=("transfer parcel refcoco *",)).priority(graph))
    assert set(ahead.values()) == {0}
    assert {"intermediary parcel", "stage1 vanilla", "prepare refcoco/train"} <= ahead.keys()
    assert sum(name.startswith("transfer ") for name in ahead) == 3
    assert "intermediary m3" not in ahead


def test_steps_come_in_the_order_in_which_they_are_named():
    graph = graph_of(load())
    first = "transfer mqt refcoco *", "transfer * refcoco *"
    ahead = named(SweepLimits(first=first).priority(graph))
    assert ahead["intermediary mqt"] == ahead["stage1 vanilla"] == 0
    assert ahead["intermediary parcel"] == 1
    assert {ahead[name] for name in ahead if name.startswith("transfer mqt")} == {0}


def named(ahead: Mapping[GraphNode, int]) -> dict[str, int]:
    return {node.name: place for node, place in ahead.items()}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"start": "20:00"}, "start and end .* must be two different times of the day"),
        ({"start": "8:00", "end": "9:00"}, "must be a time of the day as HH:MM, got '8:00'"),
        ({"start": "08:00", "end": "08:00"}, "must be two different times"),
        (
            {"timezone": "localtime"},
            "timezone must be a time zone such as Europe/Berlin, got 'localtime'",
        ),
        (
            {"timezone": "Berlin"},
            "timezone must be a time zone such as Europe/Berlin, got 'Berlin'",
        ),
    ],
)
def test_a_wrong_window_is_told(values: dict[str, Any], told: str):
    with pytest.raises(ValueError, match=told):
        SweepLimits(**values)
