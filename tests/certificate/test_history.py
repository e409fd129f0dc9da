"""The checker of histories passes a good one, and rejects every bad one that is planted."""

import dataclasses
import json

import pytest

from tests.certificate.history import Event, events_of, violations
from tests.certificate.shim import Change

GOOD = (
    Event(kind="begun", key="corpus-a", attempt="1"),
    Event(kind="committed", key="corpus-a", attempt="1", name="corpus", content="C"),
    Event(kind="ended", key="corpus-a", attempt="1"),
    Event(kind="begun", key="stage-b", attempt="2", inputs={"corpus-a": ""}),  # Killed.
    Event(kind="begun", key="stage-b", attempt="3", inputs={"corpus-a": ""}),
    Event(
        kind="committed",
        key="stage-b",
        attempt="3",
        name="stage1",
        content="S",
        inputs={"corpus-a": "C"},
    ),
    Event(kind="ended", key="stage-b", attempt="3"),
    Event(kind="acknowledged", key="stage1"),
)
CORPUS, COMMIT = GOOD[1], GOOD[5]


def without(*places: int) -> list[Event]:
    return [event for i, event in enumerate(GOOD) if i not in places]


def test_a_good_history_has_no_violation():
    assert violations(GOOD) == []


def test_what_was_damaged_on_purpose_may_be_made_again():
    again = [
        Event(kind="begun", key="stage-b", attempt="4", inputs={"corpus-a": ""}),
        Event(kind="set aside", key="stage-b"),
        dataclasses.replace(COMMIT, attempt="4"),
    ]
    assert violations([*GOOD, *again], damaged={"stage-b"}) == []
    assert len(violations([*GOOD, *again])) == 2  # Begun again, and set aside.


def test_what_was_set_aside_is_made_once_again_and_not_twice():
    again = [
        Event(kind="set aside", key="corpus-a"),
        Event(kind="begun", key="corpus-a", attempt="4"),
        dataclasses.replace(CORPUS, attempt="4"),
    ]
    assert violations([*GOOD, *again], damaged={"corpus-a"}) == []
    twice = [Event(kind="begun", key="corpus-a", attempt="5")]
    twice += [dataclasses.replace(CORPUS, attempt="5")]
    said = violations([*GOOD, *again, *twice], damaged={"corpus-a"})
    assert said == ["corpus-a was committed twice: 4 and 5"]


def test_what_was_read_may_be_gone_when_its_reader_commits():
    gone = Event(kind="removed", key="corpus-a")
    said = violations([*GOOD[:5], gone, *GOOD[5:]])
    assert said == ["corpus-a was committed and is gone"]
    again = [Event(kind="begun", key="corpus-a", attempt="4"), CORPUS]
    again[1] = dataclasses.replace(CORPUS, attempt="4")
    assert violations([*GOOD, gone, *again]) == ["corpus-a was committed and is gone"]


@pytest.mark.parametrize(
    ("history", "said"),
    [
        pytest.param(
            [*GOOD[:-2], dataclasses.replace(COMMIT, attempt="2"), *GOOD[-2:]],
            "stage-b was committed twice: 3 and 2",
            id="a holder that came back",
        ),
        pytest.param(
            [*GOOD, Event(kind="begun", key="stage-b", attempt="4", inputs={"corpus-a": ""})],
            "stage-b: 4 was begun after 3 was committed",
            id="work done twice",
        ),
        pytest.param(
            [*GOOD[:5], GOOD[6], COMMIT, GOOD[7]],
            "stage-b: 3 was committed after it had ended",
            id="a commit after its end",
        ),
        pytest.param(without(4), "stage-b: 3 was committed and never begun", id="nobody's commit"),
        pytest.param(
            without(1), "stage-b: 2 reads ['corpus-a'], which nobody had committed", id="early read"
        ),
        pytest.param(
            [*GOOD[:5], dataclasses.replace(COMMIT, inputs={"corpus-a": "X"}), *GOOD[6:]],
            "stage-b: made from other content of corpus-a than is committed",
            id="a stale read",
        ),
        pytest.param(
            [*GOOD, Event(kind="removed", key="corpus-a")],
            "corpus-a was committed and is gone",
            id="a lost commit",
        ),
        pytest.param(
            without(5),
            "stage1 was said to be made, and nobody had committed it",
            id="an acknowledged write that is lost",
        ),
        pytest.param(
            [
                *GOOD[:3],
                Event(kind="begun", key="corpus-a", attempt="9"),
                Event(kind="set aside", key="corpus-a"),
                dataclasses.replace(CORPUS, attempt="9", content="other"),
                *GOOD[3:5],
                dataclasses.replace(COMMIT, inputs={"corpus-a": "other"}),
            ],
            "corpus-a: 9 has other content than was committed before",
            id="another content",
        ),
        pytest.param(
            [*GOOD, Event(kind="ended", key="stage-b", attempt="9")],
            "stage-b: 9 ended and was never begun",
            id="an end without a begin",
        ),
        pytest.param(
            [*GOOD[:4], dataclasses.replace(GOOD[4], key="stage-c"), *GOOD[5:]],
            "stage-b: 3 was committed and never begun",
            id="an attempt at another key",
        ),
        pytest.param(
            [*GOOD[:5], dataclasses.replace(COMMIT, inputs={"stage-b": "S"}), *GOOD[6:]],
            "stage-b: made from stage-b, which nobody had committed",
            id="made from itself",
        ),
    ],
)
def test_a_bad_history_is_rejected(history: list[Event], said: str):
    damaged = {"corpus-a"} if "other content than was" in said else set()
    assert said in violations(history, damaged)


def test_events_are_read_from_the_changes_of_a_store():
    note = {"id": "1", "inputs": ["x-1"], "ended": "", "holder": {"pid": 7}}
    manifest = {
        "folder": "attempts/1",
        "name": "corpus",
        "content": "C",
        "inputs": {"raw": {"key": "x-1", "content": "X"}},
    }
    place = "artifacts/corpus-a/history/1.json"
    changes = [
        Change(place, json.dumps(note).encode()),
        Change(place, json.dumps(note | {"device_seconds": 3}).encode()),
        Change("manifests/corpus/corpus-a.json", json.dumps(manifest).encode(), 8),
        Change(place, json.dumps(note | {"ended": "now"}).encode()),
        Change("aside/corpus-a.json", json.dumps({"key": "corpus-a"}).encode(), 8),
        Change("aside/corpus-a.json", None, 8),
        Change("manifests/corpus/corpus-a.json", None, 9),
    ]
    events = events_of(changes)
    assert [event.kind for event in events] == [
        "begun",
        "committed",
        "ended",
        "set aside",
        "removed",
    ]
    assert events[1] == Event(
        kind="committed",
        key="corpus-a",
        attempt="1",
        name="corpus",
        content="C",
        inputs={"x-1": "X"},
        process=8,
    )
    assert events[0] == Event(
        kind="begun", key="corpus-a", attempt="1", inputs={"x-1": ""}, process=7
    )
    assert events[3] == Event(kind="set aside", key="corpus-a", process=8)
