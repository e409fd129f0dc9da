"""Whoever has a server's password, and no shell on its machine, has no code of theirs executed."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.prefect.encryption import read_or_draw_key
from infra.prefect.owner import HEADER, owner_proof
from infra.prefect.server import running
from tests.e2e.conftest import PARCEL, Served, end_tree, environment, parcel, serving
from tests.effects import product
from tests.effects.browser import browsing
from tests.effects.test_form import check_the_form

pytestmark = pytest.mark.slow

_NOTEBOOK = """
import sys, time
from flows.machine.start import keep_server
from infra.store.store import Store
keep_server(Store(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
"""A notebook that keeps a server: it knows no limits, and `parcel serve` joins it."""


class Guest:
    """Somebody with the password alone; `proof` makes them the owner."""

    def __init__(self, served: Served, proof: str = "") -> None:
        self._served, self._own = served, {HEADER: proof} if proof else {}

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Returns the status code of an answer, and what it holds.

        Args:
          method: method of the request.
          path: path below the API, or of a page.
          body: bytes, or values that are sent as JSON.
          **headers: further headers.
        """
        token = self._send("GET", "/api/csrf-token?client=guest")[1]["token"]
        csrf = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "guest"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._send(
            method, f"/api{path}", data, {"Content-Type": "application/json", **csrf, **headers}
        )

    def page(self, path: str) -> str:
        """Returns a page."""
        return str(self._send("GET", path)[1])

    def _send(
        self, method: str, path: str, body: bytes | None = None, headers: Any = None
    ) -> tuple[int, Any]:
        sent = {**self._served.login, **self._own, **(headers or {})}
        request = urllib.request.Request(f"{self._served.url}{path}", body, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        with contextlib.suppress(ValueError):
            return status, json.loads(text)
        return status, text


@pytest.fixture
def evil(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """Parameters that name code by file, and the file that comes to be when it is executed."""
    code, marker = tmp_path / "evil.py", tmp_path / "executed"
    code.write_text(
        f"open({str(marker)!r}, 'w').close()\nclass C: pass\ndef m(p, fields): return 1.0\n"
    )
    return {"overrides": [f"transfers.mine={{reader: jsonl, path: x, metric: '{code}:m'}}"]}, marker


def owner_of(served: Served) -> Guest:
    note = running(served.store)
    assert note is not None
    # The server's commands have no PARCEL_KEY, see `environment`.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PARCEL_KEY", raising=False)
        return Guest(served, owner_proof(note.auth, read_or_draw_key()))


def deployed(ask: Guest, name: str = "study") -> dict[str, Any]:
    return ask("GET", f"/deployments/name/{name}/{name}")[1]


SCHEDULE = {"interval": 86400, "anchor_date": "2030-01-01T23:00:00Z"}


def doors(found: dict[str, Any], bad: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields (method, path, body) of every way in which parameters or code come."""
    here, flow = f"/deployments/{found['id']}", found["flow_id"]
    form = {"parameters": bad}
    timed = {"active": True, "schedule": SCHEDULE, **form}
    yield "POST", f"{here}/create_flow_run", form
    yield "POST", f"{here}/create_flow_run/", form
    yield "POST", f"{here}/create_flow_run%0A", form
    yield "POST", f"/deployments/{found['id'].upper()}/create_flow_run", form
    yield "POST", f"/deployments/{found['id'].replace('-', '')}/create_flow_run", form
    yield "POST", f"{here}/create_flow_run/bulk", [{}, form]
    yield "POST", "/flow_runs/", {"flow_id": flow, "deployment_id": found["id"], **form}
    yield "POST", f"{here}/schedules", [timed]
    yield "PATCH", here, form
    yield "PATCH", here, {"schedules": [timed]}
    yield "POST", "/deployments/", {"name": "study", "flow_id": flow, **form}
    yield "POST", "/deployments/", {"name": "study", "flow_id": flow, "tags": []}
    yield "POST", "/deployments", {"name": "mine", "flow_id": flow, "entrypoint": "evil.py:f"}
    text = json.dumps(json.dumps(form["parameters"]))
    templates = (
        f'{{"parameters": {{"__prefect_kind": "json", "value": {text}}}}}',
        '{"parameters": {"study": {"__prefect_kind": "jinja", "template": "x"}}}',
    )
    for template in templates:
        yield "POST", f"{here}/create_flow_run", template.encode()
    plain = json.dumps(form)
    yield "POST", f"{here}/create_flow_run", f'{plain[:-1]}, "parameters": {{}}}}'.encode()
    yield "POST", f"{here}/create_flow_run", f'{{"parameters": {{}}, {plain[1:]}'.encode()
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig"):
        yield "POST", f"{here}/create_flow_run", plain.encode(encoding)
    yield "POST", f"{here}/create_flow_run", b'{"parameters": {"overrides": [NaN]}}'
    carried = {"given": {"g": {"base": "demo", "name": "g"}}, "study": "g"}
    yield "POST", f"{here}/create_flow_run", {"parameters": carried}
    yield "POST", f"{here}/create_flow_run/bulk", [{"parameters": carried}]
    job = {"job_variables": {"command": "id", "env": {"PARCEL_SERVED_RUNNER": "any"}}}
    yield "POST", f"{here}/create_flow_run", job
    yield "POST", f"{here}/create_flow_run/bulk", [job]
    yield "POST", "/flow_runs/", {"flow_id": flow, "deployment_id": found["id"], **job}
    yield "POST", "/flow_runs/", {"flow_id": flow, "work_pool_name": "p", **job}
    step = {"prefect.deployments.steps.run_shell_script": {"script": "id"}}
    for change in (
        job,
        {"job_variables": None},
        {"entrypoint": "flows./../../evil.py:f"},
        {"entrypoint": "flows.steps.member:main"},
        {"entrypoint": None},
        {"path": "/tmp"},
        {"pull_steps": [step]},
        {"parameters": None},
        {"parameters": {"study": "g", "given": carried["given"]}},
        {"tags": []},
        {"work_pool_name": "other"},
        {"enforce_parameter_schema": False},
        {"parameter_openapi_schema": {"type": "object", "properties": {}}},
    ):
        yield "PATCH", here, change
        yield "PATCH", here, json.dumps(change).encode("utf-16")
    act = {"type": "run-deployment", "source": "selected", "deployment_id": found["id"]}
    trigger = {"type": "event", "posture": "Reactive", "expect": ["x"], "threshold": 1, "within": 0}
    for field in (form, job):
        whole = {"name": "a", "trigger": trigger, "actions": [{**act, **field}]}
        yield "POST", "/automations/", whole
    yield "POST", "/work_pools/", {"name": "p", "type": "process", "base_job_template": job}
    block = {"default_result_storage_block_id": found["id"]}
    yield "PUT", "/admin/storage", block


def check_that_no_door_is_open(
    served: Served, bad: dict[str, Any], marker: Path, scratch: Path
) -> None:
    guest, owner = Guest(served), owner_of(served)
    found = deployed(guest)
    for method, path, body in doors(found, bad):
        status, told = guest(method, path, body)
        assert 400 <= status < 500, (method, path, body, status, told)
        assert not marker.exists(), (method, path, body)
    kind = {"Content-Type": "text/plain"}
    path = f"/deployments/{found['id']}/create_flow_run"
    assert guest("POST", path, {"parameters": bad}, **kind)[0] in (409, 422)
    assert deployed(guest) == found | {
        name: deployed(guest)[name] for name in ("updated", "last_polled", "status")
    }
    run = guest("POST", f"/deployments/{found['id']}/create_flow_run", {"state": PAUSED})[1]
    for change in ({"parameters": bad}, {"job_variables": {"env": {"A": "b"}}}):
        assert guest("PATCH", f"/flow_runs/{run['id']}", change)[0] == 403
    assert guest("PATCH", f"/flow_runs/{run['id']}", {"name": "mine"})[0] == 204

    # What a form takes goes on as before, by every way.
    here, right = f"/deployments/{found['id']}", {"overrides": ["num_seeds=1"]}
    slip = {"parameters": {"overrides": ["num_seed=2"]}}
    status, told = guest("POST", f"{here}/create_flow_run", slip)
    assert status == 409
    assert told["detail"].startswith("demo: num_seed: no such key; did you mean num_seeds?")
    paused = {"parameters": right, "state": PAUSED}
    assert guest("POST", f"{here}/create_flow_run", paused)[0] == 201
    assert guest("POST", f"{here}/create_flow_run/bulk", [paused])[1]["results"][0]["flow_run_id"]
    timed = {"active": True, "schedule": SCHEDULE, "parameters": right}
    status, made = guest("POST", f"{here}/schedules", [timed])
    assert status == 201, made
    mine = f"{here}/schedules/{made[0]['id']}"
    assert guest("PATCH", mine, {"active": False, "parameters": bad})[0] == 409
    assert guest("PATCH", mine, {"active": False, "parameters": right})[0] == 204
    assert guest("PATCH", here, {"description": "text"})[0] == 204
    assert guest("PATCH", here, {"paused": False})[0] == 204
    # The UI's page for editing sends everything back.
    names = ("parameters", "tags", "job_variables", "enforce_parameter_schema", "work_queue_name")
    assert guest("PATCH", here, {name: found[name] for name in names})[0] == 204
    assert guest("POST", f"{here}/pause_deployment")[0] == 200
    assert guest("POST", f"{here}/resume_deployment")[0] == 200

    # Written past every door, such as by an earlier version: nobody executes it to show it.
    poisoned = {**timed, "parameters": bad}
    for name in ("study", "sweep"):
        status, told = owner(
            "POST", f"/deployments/{deployed(guest, name)['id']}/schedules", [poisoned]
        )
        assert status == 201, told
    odd = {**timed, "parameters": {"study": 3, "overrides": 4, "store": 5}}
    assert owner("POST", f"{here}/schedules", [odd])[0] == 201
    until = time.monotonic() + 120
    while "metric must be in the registry" not in (page := guest.page("/parcel/")):
        assert time.monotonic() < until, page
        time.sleep(2)
    assert not marker.exists()
    for words in (["status"], ["schedule", "list"]):
        shown = parcel(served.store, *words, cwd=scratch)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.count("metric must be in the registry") == 2, shown.stdout
        assert "what it would run is unknown: study: " in shown.stdout
        assert not marker.exists(), words


def check_that_the_owner_goes_on(served: Served, scratch: Path) -> None:
    """Checks that commands write what the password alone does not, code by file included."""
    code, note = scratch / "own.py", running(served.store)
    assert note is not None
    code.write_text("def m(prediction, fields): return 1.0\n")
    study = scratch / "mine.yaml"
    study.write_text("base: demo\nname: mine\ntransfers: {chartqa: {metric: ./own.py:m}}\n")

    def told(*words: str) -> str:
        named = {"PREFECT_API_URL": note.api, "PREFECT_API_AUTH_STRING": note.auth}
        done = subprocess.run(
            [PARCEL, *words],
            env=environment(served.store) | named,
            capture_output=True,
            text=True,
            timeout=200,
            cwd=scratch,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    words = ["--pool", "p", "--store", str(served.store), "--any-runner", "--cron", "0 6 * * *"]
    said = told("deploy", str(study), *words)
    assert "deployment study/mine: new" in said
    said = told("sweep", "demo", "--add-seeds", "1", "--max-seeds", "9", "--cron", "0 20 * * *")
    assert "deployment sweep/sweep: fires at '0 20 * * *'" in said
    said = told("schedule", "change", "sweep-demo", "--add-seeds", "2")
    assert "with add_seeds=2, max_seeds=9" in said
    said = told("schedule", "list")
    deployed_here = said[said.index("study mine") :].splitlines()[:3]
    assert "unknown" not in "".join(deployed_here), said


PAUSED = {"type": "PAUSED"}


def test_the_password_alone_executes_nothing_on_a_fresh_server(
    tmp_path: Path, evil: tuple[dict[str, Any], Path]
):
    with serving(tmp_path / "store") as served:
        check_that_the_owner_goes_on(served, tmp_path)
        check_that_no_door_is_open(served, *evil, tmp_path)


def test_the_password_alone_executes_nothing_on_a_server_that_serve_joined(
    tmp_path: Path, evil: tuple[dict[str, Any], Path]
):
    store = tmp_path / "store"
    notebook = subprocess.Popen(
        [sys.executable, "-c", _NOTEBOOK, str(store)],
        env=environment(store),
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert notebook.stdout is not None
        # Before it, lines on how long the server takes to start.
        assert "ready\n" in iter(notebook.stdout.readline, "")
        note = running(store)
        assert note is not None
        with joined(store, note.api) as served:
            check_that_no_door_is_open(served, *evil, tmp_path)
            with browsing(tmp_path / "profile") as page:
                check_the_form(product.Served(served.url, store, tmp_path / "serve.log", 0.0), page)
    finally:
        end_tree(notebook)


@contextlib.contextmanager
def joined(store: Path, api: str) -> Iterator[Served]:
    """Runs `parcel serve` beside a server that is there already."""
    log = store.parent / "serve.log"
    with log.open("w") as words:
        serve = subprocess.Popen(
            [PARCEL, "serve", "--store", str(store)],
            env=environment(store),
            stdout=words,
            stderr=subprocess.STDOUT,
        )
    served = Served(api.removesuffix("/api"), store)
    until = time.monotonic() + 180
    try:
        while len(served.ask("/deployments/filter")) < 2:
            assert serve.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.5)
        yield served
    finally:
        end_tree(serve)
