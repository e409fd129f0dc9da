"""The start page: what runs, what happened since yesterday, what comes next."""

import datetime
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from flows.lookup.runs import end_run_record, stop_run_record
from flows.pages.app import store_pages
from flows.pages.overview import (
    EndedRun,
    Firing,
    OverviewReader,
    ServerFacts,
    continuing_command,
    continuing_form,
)
from infra.errors import ConfigError
from infra.prefect.journal import Journal, JournalReader
from infra.prefect.progress import NodeProgress, ProgressFile
from infra.prefect.server import PAGES
from infra.store.records import RunRecords
from infra.store.store import Store
from tests.flows.pages.test_pages import get, links, told

RUN = "0c0ffee0-1111-4222-8333-444455556666"
NIGHT = ServerFacts(
    firings=[
        Firing(
            name="sweep-night",
            study="night",
            deployment="sweep/sweep",
            deployment_id="7",
            rule="0 20 * * * UTC",
            next="2026-11-27 20:00 UTC",
            would_run=("20 steps to make",),
        ),
        Firing(
            name="sweep-old",
            study="old",
            deployment="sweep/sweep",
            deployment_id="7",
            rule="0 6 * * 1 UTC",
            off="stopped; `parcel schedule change sweep-old` starts it again",
        ),
    ],
    can_start=True,
)


def ended(store: Store, study: str, number: int, failed: list[str], **more) -> None:
    config = {"name": study, "num_seeds": 3}
    end_run_record(
        store, config, f"run-{number:012x}", results=None, artifacts=[], failed=failed, **more
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A run under way, one that failed last night, one of another study that is complete."""
    store = Store(tmp_path / "store")
    ended(store, "fine", 1, [], made=4, reused=2)
    ended(store, "owls", 2, ["stage1 vanilla: <b>out of memory</b>"], holes=["results"], made=3)
    journal, progress = Journal(store.state, RUN), ProgressFile(store.state, RUN)
    journal.plan("night", {"stage1": [], "stage2": [], "transfer a": ["stage1"]})
    for node, done, note, left in (
        ("stage1", 540, "loss 1.93", 75.0),
        ("stage2", 0, "compiles", None),
    ):
        journal.started(node)
        progress.update(
            node,
            NodeProgress(
                step=node,
                done=done,
                total=900,
                note=note,
                devices="1 GPU",
                seconds_left=left,
                began=time.time(),
                written=time.time(),
            ),
        )
    with store.pin_run(RUN):
        yield store


def client_of(store: Store, server: ServerFacts | None = NIGHT, **more) -> TestClient:
    pages = store_pages(store.uri, lambda: server, **more)
    return TestClient(Starlette(routes=[Mount(PAGES, pages)]), follow_redirects=False)


def test_the_start_page_says_what_runs_what_happened_and_what_comes(store: Store):
    text = get(client_of(store), f"{PAGES}/")
    seen = told(text)
    assert "night 444455556666 0 of 3 steps ended 2 × 1 GPU in use" in seen
    assert "stage1 loss 1.93 · 1 GPU 540 of 900" in seen
    assert "1 min" in seen
    assert "stage2 compiles · 1 GPU" in seen
    assert "waiting for stage1: transfer a" in seen
    assert '<meta http-equiv="refresh"' in text
    assert "3 done 0 reused 1 failed, 1 not run" in seen
    assert "stage1 vanilla: <b>out of memory</b>" in seen  # As text: it is escaped.
    assert f"parcel run owls --failed --store {store.uri}" in seen
    assert "night 2026-11-27 20:00 UTC" in seen
    assert "old off" in seen
    assert "20 steps to make" in seen
    assert "fine 1 run complete" in seen


def test_the_start_page_of_an_empty_store_says_what_to_do_first(tmp_path: Path):
    store = Store(tmp_path / "store")
    text = get(client_of(store), f"{PAGES}/")
    seen = told(text)
    assert "Begin here No run" in seen
    assert f"parcel run --store {store.uri}" in seen
    assert "/v2/deployments" in links(text)
    # Without a runner, the form would start nothing.
    only = get(client_of(store, ServerFacts(firings=(), can_start=False)), f"{PAGES}/")
    assert "/v2/deployments" not in links(only)
    ended(store, "fine", 1, [])
    assert "Begin here" not in told(get(client_of(store), f"{PAGES}/"))


def test_what_comes_next_is_never_older_than_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path):
    from flows.machine import live_pages
    from flows.sweep import schedule

    facts = live_pages._NewestFacts(patience=0.2)
    stopped, reading = threading.Event(), threading.Event()

    def read() -> ServerFacts:
        if stopped.is_set():
            reading.wait(30)
            return ServerFacts(firings=(), can_start=True)
        return NIGHT

    monkeypatch.setattr(schedule, "read_server_facts", read)
    while facts() is None:
        pass
    assert facts() == NIGHT
    # All schedules are stopped; the page is opened an hour later, and again.
    stopped.set()
    pass_hour(facts)
    old = facts()
    assert old is not None
    assert old.age >= 3600
    store = Store(tmp_path / "store")
    text = get(client_of(store, old), f"{PAGES}/")
    assert "As it was 1 h 0 min ago" in told(text)
    assert '<meta http-equiv="refresh" content="5">' in text
    reading.set()
    deadline = time.monotonic() + 30
    while facts() != ServerFacts(firings=(), can_start=True):
        assert time.monotonic() < deadline


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_server_without_an_answer_said_before_stays_old(monkeypatch: pytest.MonkeyPatch):
    from flows.machine import live_pages
    from flows.sweep import schedule

    def fail() -> ServerFacts:
        raise httpx.ReadTimeout("no answer")

    facts = live_pages._NewestFacts()
    monkeypatch.setattr(schedule, "read_server_facts", lambda: NIGHT)
    while facts() is None:
        pass
    monkeypatch.setattr(schedule, "read_server_facts", fail)
    pass_hour(facts)
    for _ in range(3):
        old = facts()
        assert old is not None
        assert old.age >= 3600


def pass_hour(facts: Any) -> None:
    facts._read_at -= 3600
    facts._asked_at -= 3600


def test_a_button_is_there_only_where_something_starts_the_run(store: Store):
    def actions(server: ServerFacts | None) -> list[str]:
        return [a for a in links(get(client_of(store, server), f"{PAGES}/")) if "continue" in a]

    assert actions(NIGHT) == [f"{PAGES}/continue/owls-000000000002"]
    assert actions(ServerFacts(firings=(), can_start=False)) == []
    assert actions(None) == []


def test_the_button_starts_the_run_and_shows_it(store: Store):
    started: list[tuple[str, EndedRun]] = []

    def start(uri: str, run: EndedRun) -> str:
        if started:
            raise ConfigError("the server refused the run: no.")
        started.append((uri, run))
        return "made"

    client = client_of(store, continue_run=start)
    answer = client.post(f"{PAGES}/continue/owls-000000000002")
    assert (answer.status_code, answer.headers["location"]) == (303, "/v2/runs/flow-run/made")
    assert continuing_form(started[0][1].record) == {
        "study": "owls",
        "until": "report",
        "failed": True,
    }
    refused = client.post(f"{PAGES}/continue/owls-000000000002")
    assert refused.status_code == 409
    assert "the server refused the run: no." in told(refused.text)
    assert client.post(f"{PAGES}/continue/<b>").status_code == 409
    assert client.get(f"{PAGES}/continue/owls-000000000002").status_code == 404
    assert client_of(store).post(f"{PAGES}/continue/owls-000000000002").status_code == 409


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({}, ""),
        ({"failed": ["a: b"]}, "parcel run owls --failed --store gs://lab"),
        ({"failed": ["a: b"], "given": "parcel train x.yaml"},
         "parcel run owls --failed --until train --store gs://lab"),
        ({"holes": ["a"], "given": "parcel run x.yaml --until=evaluate"},
         "parcel run owls --until evaluate --store gs://lab"),
        ({"holes": ["a"], "given": "parcel sweep x.yaml"}, "parcel run owls --store gs://lab"),
        ({"holes": ["a"], "given_up": ["a"]}, "parcel run owls --failed --store gs://lab"),
        ({"state": "crashed", "given": '{"study": "owls"}'}, "parcel run owls --store gs://lab"),
        ({"state": "running"}, ""),
    ],
)  # fmt: skip
def test_the_command_continues_what_is_left(fields: dict, command: str):
    record = {"name": "owls", "results": None, "failed": [], "finished": "2026", **fields}
    assert continuing_command(record, "gs://lab") == command


def test_a_run_that_was_continued_has_no_second_command(store: Store):
    ended(store, "owls", 3, [])
    text = get(client_of(store), f"{PAGES}/")
    assert "A later run of owls" in told(text)
    assert "continue/" not in text


def test_only_runs_since_yesterday_are_shown(store: Store):
    reader = OverviewReader(store)
    path = Path(store.uri, "runs", "owls-000000000002.json")
    record = json.loads(path.read_text())
    day = datetime.timedelta(days=1)
    record["finished"] = (datetime.datetime.fromisoformat(record["finished"]) - 3 * day).isoformat()
    path.write_text(json.dumps(record))
    facts = reader.read()
    assert [run.study for run in facts.since_yesterday] == ["fine"]
    assert [run.study for run in facts.ended] == ["fine", "owls"]


def test_many_runs_are_pages_of_a_list_and_each_is_told_from_the_others(tmp_path: Path):
    store = Store(tmp_path / "store")
    for number in range(130):
        ended(store, f"study{number % 2}", number, [])
    client = client_of(store)
    first, second = (get(client, f"{PAGES}/runs{query}") for query in ("", "?page=2"))
    ids = [set(told(text).split()) & {f"{n:012x}" for n in range(130)} for text in (first, second)]
    assert [len(some) for some in ids] == [100, 30]
    assert not ids[0] & ids[1]
    only = told(get(client, f"{PAGES}/runs?study=study1"))
    assert "65 in store" in only
    start = told(get(client, f"{PAGES}/"))
    assert "and 100 more" in start
    assert "study0 65 runs" in start


def test_records_and_journals_are_read_once_unless_they_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    records = RunRecords(store.files)
    assert len(records.read()) == 2
    read: list[str] = []
    plain = type(store.files).read
    monkeypatch.setattr(
        type(store.files), "read", lambda self, name: read.append(name) or plain(self, name)
    )
    records.read()
    assert read == []
    stop_run_record(store, "run-000000000002", "crashed")
    ended(store, "fine", 1, ["a: b"])
    read.clear()
    assert records.read()["fine-000000000001"]["failed"] == ["a: b"]
    assert read == ["runs/fine-000000000001.json"]


def test_a_journal_is_read_on_from_its_last_whole_line(tmp_path: Path):
    journal = Journal(tmp_path, RUN)
    reader = JournalReader(journal.path)
    journal.plan("night", {"a": [], "b": ["a"]})
    assert [*reader.read().nodes] == ["a", "b"]  # type: ignore[union-attr]
    with journal.path.open("a") as file:
        file.write('{"what": "started", "at": "2026-11')
    assert reader.read().nodes["a"].started is None  # type: ignore[union-attr]
    with journal.path.open("a") as file:
        file.write('-27T00:00:00+00:00", "name": "a"}\n')
    journal.ended("a", "made")
    node = reader.read().nodes["a"]  # type: ignore[union-attr]
    assert node.started is not None
    assert node.outcome == "made"
