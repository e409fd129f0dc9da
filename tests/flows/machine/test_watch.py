"""What the watching of runs makes of rows that anybody with the server's password may write."""

import os
import re
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from flows.lookup.runs import begin_run_record, stop_run_record
from infra.store.store import Store

EVIL = "open({marker!r}, 'w').close()\ndef m(p, fields): return 1.0\n"


class Asked(ThreadingHTTPServer):
    """A cluster's job server that has no answers, and keeps the paths that it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asking)
        self.paths: list[str] = []

    @property
    def address(self) -> str:
        """Address as `compute.ray_address` has it."""
        return f"http://127.0.0.1:{self.server_port}"


class _Asking(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Asked)
        self.server.paths.append(self.path)
        self.send_error(500)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def cluster() -> Iterator[Asked]:
    """A job server on a port of its own."""
    with Asked() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def lines_on(store: Store, run_id: str, parameters: Any) -> list[str]:
    """The lines on a cancelled run whose row has these parameters."""
    from prefect.client.schemas.objects import FlowRun

    from flows.machine.watch import _stop_ray_jobs

    run = FlowRun(id=uuid.UUID(run_id), flow_id=uuid.uuid4(), name="w", parameters=parameters)
    return list(_stop_ray_jobs(run, store))


def test_a_cancelled_runs_row_brings_no_code_and_names_no_cluster(tmp_path: Path, cluster: Asked):
    marker, evil = tmp_path / "executed", tmp_path / "evil.py"
    evil.write_text(EVIL.format(marker=str(marker)))
    metric = f"transfers.mine={{reader: jsonl, path: x, metric: '{evil}:m'}}"
    rows: list[Any] = [
        {"study": "demo", "store": str(tmp_path / "store"), "overrides": [metric]},
        {"study": "demo", "overrides": [f"compute.ray_address={cluster.address}"]},
        {"config": {"compute": {"ray_address": cluster.address}}},
        {"config": {"compute": 1}},
        {"overrides": 5},
    ]
    store = Store(tmp_path / "store")
    for parameters in rows:
        assert lines_on(store, str(uuid.uuid4()), parameters) == []
    assert not marker.exists()
    assert cluster.paths == []


def test_the_jobs_of_a_cancelled_run_are_looked_for_where_its_record_says(
    tmp_path: Path, cluster: Asked, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    store, run = Store(tmp_path / "store"), str(uuid.uuid4())
    config = {"name": "demo", "compute": {"ray_address": cluster.address}}
    begin_run_record(store, config, run, artifacts=(), given="parcel run demo")
    stop_run_record(store, run, "cancelled")
    (line,) = lines_on(store, run, {"config": {"compute": {"ray_address": "http://10.9.8.7:1"}}})
    assert re.match(rf"run w \({run}\): .*Ray Jobs: ", line)
    assert cluster.address in line
    assert cluster.paths != []
    assert "RAY_API_SERVER_ADDRESS" not in os.environ


def test_a_cluster_that_is_gone_is_a_line_and_no_end(tmp_path: Path):
    store, run = Store(tmp_path / "store"), str(uuid.uuid4())
    config = {"name": "demo", "compute": {"ray_address": {"no": "address"}}}
    begin_run_record(store, config, run, artifacts=(), given="parcel run demo")
    (line,) = lines_on(store, run, {})
    assert "could not check" in line


class EndedError(BaseException):
    """Ends what goes on forever."""


def test_the_watching_goes_on_after_a_look_that_fails_with_one_line_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from flows.machine import watch

    looks: list[int] = []

    def closing(store: Store) -> None:
        looks.append(1)
        if len(looks) == 4:
            raise EndedError
        raise RuntimeError("a row\x1b[2J that no look takes")

    monkeypatch.setattr(watch, "close_dead_records", closing)
    monkeypatch.setattr(watch, "best_effort", lambda call, *args: None)
    lines: list[str] = []
    with pytest.raises(EndedError):
        watch.settle_runs_forever(Store(tmp_path / "store"), lines.append, look_every=0.0)
    (line,) = lines
    assert line.endswith(": RuntimeError: a row\\x1b[2J that no look takes")


@pytest.mark.parametrize(
    "note",
    [5, "x", [], {}, {"host": 1}, {"host": os.uname().nodename, "pid": 10**400, "began": 10**400}],
)
def test_a_runs_note_of_its_process_may_be_anything(note: Any):
    from infra.prefect.rows import _has_ended

    assert not _has_ended(note)
