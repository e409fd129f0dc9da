"""What a request may write: all of it the owner, what a form takes the holder of the password."""

import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from infra.prefect.doors import Doors, RequestRefusedError, parse_request_body
from infra.prefect.encryption import VARIABLE, read_or_draw_key
from infra.prefect.owner import HEADER, HEADERS, owner_proof, prove_owner

KEY = "0a0b0c0d-0000-4000-8000-000000000001"
HERE = f"/api/deployments/{KEY}"
FOUND: dict[str, Any] = {
    "id": KEY,
    "entrypoint": "flows.sweep.form.study_form",
    "parameters": {"study": "demo", "store": "/s", "given": {"demo": {"name": "demo"}}},
    "parameter_openapi_schema": {"properties": {"study": {}, "store": {}, "overrides": {}}},
    "job_variables": {"env": {"A": "b"}},
    "enforce_parameter_schema": True,
    "work_pool_name": None,
    "path": None,
    "tags": ["parcel"],
    "schedules": [{"id": "1", "parameters": {"overrides": ["the owner's"]}}],
}


def only_demo(deployment: dict[str, Any], parameters: dict[str, Any]) -> str | None:
    """A form's check: of the study alone, and of what it is called with."""
    assert deployment["id"] == KEY
    assert parameters["store"] == "/s"
    wrong = parameters["study"] != "demo" or parameters.get("overrides", []) not in ([], ["right"])
    return "study must be demo, overrides right" if wrong else None


async def _echo(request: Request) -> Response:
    return Response(await request.body())


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    """The address of an API that knows one deployment."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == f"/deployments/{KEY}"
            self.send_response(200 if is_known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(FOUND).encode() if is_known else b"")

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def guest(api: str) -> Iterator[TestClient]:
    """A client that has the password, of a server that answers every write with its body."""
    app = Starlette(
        routes=[Route("/{path:path}", _echo, methods=["GET", "POST", "PATCH", "PUT", "DELETE"])]
    )
    doors = Doors(app, proof="owner", api=api, check=f"{__name__}:only_demo", forms="flows.")
    with TestClient(doors, base_url="http://127.0.0.1:1") as client:
        yield client


RIGHT = {"parameters": {"overrides": ["right"]}}
WRONG = {"parameters": {"overrides": ["wrong"]}}


@pytest.mark.parametrize(
    ("method", "path", "wrap"),
    [
        ("POST", f"{HERE}/create_flow_run", lambda form: form),
        ("POST", f"{HERE}/create_flow_run/", lambda form: form),
        ("POST", f"{HERE.upper().replace('/API/DEPLOYMENTS', '/api/deployments')}/create_flow_run",
         lambda form: form),
        ("POST", f"{HERE}/create_flow_run/bulk", lambda form: [{}, form]),
        ("POST", f"{HERE}/schedules", lambda form: [form, {}]),
        ("PATCH", f"{HERE}/schedules/1", lambda form: form),
        ("PATCH", HERE, lambda form: {"parameters": {**FOUND["parameters"], **form["parameters"]}}),
        ("PATCH", HERE, lambda form: {"schedules": [form]}),
        ("POST", "/api/flow_runs/", lambda form: {"deployment_id": KEY, **form}),
    ],
)  # fmt: skip
def test_every_known_way_takes_what_the_form_takes(
    guest: TestClient, method: str, path: str, wrap: Any
):
    right = guest.request(method, path, json=wrap(RIGHT))
    assert (right.status_code, right.json()) == (200, wrap(RIGHT))
    wrong = guest.request(method, path, json=wrap(WRONG))
    assert (wrong.status_code, wrong.json()["detail"]) == (409, only_demo(FOUND, {
        **FOUND["parameters"], **WRONG["parameters"]
    }))  # fmt: skip
    known = {"parameters": FOUND["schedules"][0]["parameters"]}
    # The parameters of a schedule may be sent back to it, and nowhere else.
    again = 200 if path.endswith("/schedules/1") else 409
    assert guest.request(method, path, json=wrap(known)).status_code == again
    owner = guest.request(method, path, json=wrap(WRONG), headers={HEADER: "owner"})
    assert owner.status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{HERE}/create_flow_run%0A"),
        ("POST", f"{HERE}/new_in_the_next_version"),
        ("PUT", HERE),
        ("PUT", f"{HERE}/schedules"),
        ("POST", "/api/flow_runs/bulk"),
        ("PATCH", f"/api/flow_runs/{KEY}"),
        ("PATCH", "/api/work_pools/filter"),
        ("POST", "/api/automations/"),
        ("PATCH", f"/api/automations/{KEY}"),
        ("POST", "/somewhere/else"),
        ("POST", f"/base/api/deployments/{KEY}/create_flow_run"),
    ],
)
@pytest.mark.parametrize(
    "inner",
    [
        RIGHT,
        {"job_variables": {"command": "id"}},
        {"infra_overrides": {"command": "id"}},
        {"base_job_template": {"variables": {}}},
        {"storage_key": "/tmp/x"},
        {"serializer": {"type": "pickle", "picklelib": "antigravity"}},
        {"default_result_storage_block_id": KEY},
        {"idempotency_key": "scheduled 1 2026-11-29"},
        {"parameters": {"__prefect_kind": "json", "value": '{"a": 1}'}},
    ],
)
def test_by_any_other_way_neither_parameters_nor_code_come(
    guest: TestClient, method: str, path: str, inner: dict[str, Any]
):
    for body in (inner, [inner], {"actions": [{"deep": [inner]}]}):
        answer = guest.request(method, path, json=body)
        assert answer.status_code == 403, body
        assert "the server's owner alone" in answer.json()["detail"]
    is_known = path == f"/api/flow_runs/{KEY}"  # The others are the owner's, whatever they bring.
    for body in ({"name": "x"}, {next(iter(inner)): {}}):
        expected = 200 if is_known else 403
        assert guest.request(method, path, json=body).status_code == expected


@pytest.mark.parametrize(
    "change",
    [
        {"job_variables": {}},
        {"job_variables": None},
        {"entrypoint": "flows.steps.member.main"},
        {"entrypoint": None},
        {"path": "/tmp"},
        {"pull_steps": []},
        {"work_pool_name": "other"},
        {"work_queue_name": "other"},
        {"enforce_parameter_schema": False},
        {"enforce_parameter_schema": 1},
        {"parameter_openapi_schema": {}},
        {"storage_document_id": KEY},
        {"tags": []},
        {"tags": None},
    ],
)
def test_what_a_deployment_runs_is_its_owners(guest: TestClient, change: dict[str, Any]):
    assert guest.patch(HERE, json=change).status_code == 403
    assert guest.patch(HERE, json=change, headers={HEADER: "owner"}).status_code == 200
    assert guest.patch(HERE, json=change, headers={HEADER: "Owner"}).status_code == 403


def test_the_uis_page_for_editing_sends_everything_back(guest: TestClient):
    fields = {name: value for name, value in FOUND.items() if name != "schedules"}
    said = {**fields, "description": "text", "paused": True, "tags": ["parcel", "mine"]}
    assert guest.patch(HERE, json=said).json() == said


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"given": {"g": {}}}, "given must be left out"),
        ({"new": 1}, "new must be left out; the form has study, store, overrides."),
        ({"__prefect_kind": "json", "value": '{"study": "mine"}'}, "study must be demo"),
        ({"study": {"__prefect_kind": "json", "value": '"mine"'}}, "study must be demo"),
        ({"study": {"__prefect_kind": "json", "value": 1}}, "a field's JSON must be a text"),
        ({"study": {"__prefect_kind": "jinja"}}, "a field must be given as its value"),
        ({"study": {"__prefect_kind": "workspace_variable"}}, "a field must be given as its"),
        ([], "parameters must be an object"),
        ("x", "parameters must be an object"),
    ],
)
def test_parameters_are_those_of_the_form(guest: TestClient, parameters: Any, told: str):
    answer = guest.post(f"{HERE}/create_flow_run", json={"parameters": parameters})
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith(told)
    whole = {**FOUND["parameters"], "overrides": ["right"]}
    for changed in ({}, {"given": None}, {"given": {}}, {"new": 1}):
        answer = guest.patch(HERE, json={"parameters": {**whole, **changed}})
        assert answer.status_code == (409 if changed else 200)
    del whole["given"]  # The deployment would lose what it carries.
    assert guest.patch(HERE, json={"parameters": whole}).status_code == 409


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(WRONG).encode("utf-16"),
        json.dumps(WRONG).encode("utf-16-le"),
        json.dumps(WRONG).encode("utf-32"),
        json.dumps(WRONG).encode("utf-8-sig"),
        b'{"a": 1, "parameters": {}, "a": 2}',
        b'{"a": [{"b": 1, "b": 1}]}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\xff"}',
        b"{",
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_two_readers_may_read_otherwise_is_refused(guest: TestClient, body: bytes):
    with pytest.raises(RequestRefusedError, match="JSON in UTF-8"):
        parse_request_body(body)
    for path in (f"{HERE}/create_flow_run", "/api/flow_runs/"):
        assert guest.post(path, content=body).status_code == 400


def test_a_field_that_prefects_form_sends_as_a_text_goes_on_as_its_value(guest: TestClient):
    text = {"__prefect_kind": "json", "value": '["right"]'}
    nested = {"__prefect_kind": "json", "value": json.dumps({"overrides": text})}
    without = {"__prefect_kind": "json"}
    for parameters in ({"overrides": text, "study": without}, nested):
        answer = guest.post(f"{HERE}/create_flow_run", json={"parameters": parameters, "name": "é"})
        assert answer.json() == {**RIGHT, "name": "é"}
    twice = {"__prefect_kind": "json", "value": '{"a": 1, "a": 2}'}
    assert guest.post(f"{HERE}/create_flow_run", json={"parameters": twice}).status_code == 400
    deep = b'{"a": ' * 900 + b"1" + b"}" * 900
    assert guest.post("/api/flow_runs/", content=deep).status_code in (200, 400)


def test_what_only_looks_up_or_reports_may_say_what_it_likes(guest: TestClient):
    for path in ("/api/deployments/filter", "/api/logs/", "/api/events", "/parcel/continue/x"):
        assert guest.post(path, json=WRONG).status_code == 200
    assert guest.get(HERE).status_code == 200
    row = {"flow_id": KEY, **WRONG}
    assert guest.post("/api/flow_runs/", json=row).json() == row  # Nobody runs it.
    assert guest.post("/api/flow_runs/", json={**row, "work_pool_name": "p"}).status_code == 403
    assert guest.post("/api/deployments/", json={"name": "x"}).status_code == 403
    assert guest.put("/api/admin/storage", json={}).status_code == 403


RESULT = {"storage_key": "/tmp/x", "serializer": {"type": "pickle"}, "prefect_version": "3"}
STATE = {"type": "COMPLETED", "data": RESULT}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/task_runs/", {"flow_run_id": KEY, "state": STATE}),
        ("PATCH", f"/api/task_runs/{KEY}", {"state": STATE}),
        ("POST", f"/api/task_runs/{KEY}/set_state", {"state": STATE}),
        ("POST", f"/api/task_runs/{KEY}/set_state", {"state": {"data": {"serializer": {}}}}),
        ("POST", f"/api/flow_runs/{KEY}/set_state", {"state": STATE}),
        ("POST", "/api/flow_runs/bulk_set_state", {"ids": [KEY], "state": STATE}),
        ("POST", "/api/events", [{"payload": {"validated_state": STATE}}]),
    ],
)
def test_a_guest_gives_no_run_a_result(guest: TestClient, method: str, path: str, body: Any):
    """Who reads a row of a run has Prefect's client import its serializer, and may unpickle it."""
    assert guest.request(method, path, json=body).status_code == 403
    assert guest.request(method, path, json=body, headers={HEADER: "owner"}).status_code == 200
    plain = json.loads(json.dumps(body).replace(json.dumps(RESULT), "null"))
    if plain != body:
        assert guest.request(method, path, json=plain).status_code == 200


def test_nor_by_an_event_on_a_socket():
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_json(await socket.receive_json())

    app = Starlette(routes=[WebSocketRoute("/api/events/in", echo)])
    event = {"event": "prefect.task-run.Completed", "payload": {"validated_state": STATE}}
    bare = {**event, "payload": {"validated_state": {"type": "COMPLETED", "data": None}}}
    with TestClient(Doors(app, proof="owner", api="http://api")) as client:
        with client.websocket_connect("/api/events/in") as socket:
            socket.send_json(event)
            assert socket.receive_json() == bare
        with client.websocket_connect("/api/events/in", headers={HEADER: "owner"}) as socket:
            socket.send_json(event)
            assert socket.receive_json() == event


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", HERE),
        ("POST", "/api/deployments/bulk_delete"),
        ("POST", f"{HERE}/schedule"),
        ("DELETE", f"/api/flows/{KEY}"),
        ("DELETE", f"/api/flow_runs/{KEY}"),
        ("POST", "/api/flow_runs/bulk_delete"),
        ("DELETE", f"/api/artifacts/{KEY}"),
        ("POST", "/api/automations/"),
        ("PUT", f"/api/automations/{KEY}"),
        ("PATCH", f"/api/automations/{KEY}"),
        ("DELETE", f"/api/automations/{KEY}"),
        ("POST", "/api/block_documents/"),
        ("PATCH", f"/api/block_documents/{KEY}"),
        ("DELETE", f"/api/block_documents/{KEY}"),
        ("POST", "/api/block_types/install_system_block_types"),
        ("POST", "/api/variables/"),
        ("PATCH", "/api/variables/name/x"),
        ("DELETE", "/api/work_pools/x"),
        ("PATCH", "/api/work_pools/x"),
        ("POST", "/api/v2/concurrency_limits/"),
        ("DELETE", "/api/v2/concurrency_limits/x"),
        ("POST", "/api/new_in_the_next_version"),
        ("GET", f"/api/block_documents/{KEY}?include_secrets=true"),
        ("GET", f"/api/block_documents/{KEY}?a=1&include%5Fsecrets=1"),
        ("HEAD", "/api/block_types/slug/webhook/block_documents?include_secrets"),
        ("POST", "/api/block_documents/filter?include_secrets=on"),
    ],
)
def test_what_is_deleted_sent_or_in_the_open_is_the_owners(
    guest: TestClient, method: str, path: str
):
    assert guest.request(method, path).status_code == 403
    assert guest.request(method, path, headers={HEADER: "owner"}).status_code in (200, 405)


def test_blocks_are_read_without_their_secrets(guest: TestClient):
    path = "/api/block_documents/filter"
    for asked in (True, 1, "true", "false"):
        answer = guest.post(path, json={"include_secrets": asked})
        assert answer.status_code == 403
        assert answer.json()["detail"].startswith("a block's secrets ")
    for body in ({}, {"include_secrets": False}, {"limit": 3}):
        assert guest.post(path, json=body).status_code == 200
    assert guest.get(f"/api/block_documents/{KEY}?include_secrets=false").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/flows/"),
        ("POST", f"/api/flow_runs/{KEY}/set_state"),
        ("POST", f"/api/flow_runs/{KEY}/resume"),
        ("PATCH", f"/api/flow_runs/{KEY}/labels"),
        ("POST", f"{HERE}/pause_deployment"),
        ("POST", f"{HERE}/resume_deployment"),
        ("DELETE", f"{HERE}/schedules/{KEY}"),
        ("PUT", "/api/saved_searches/"),
        ("POST", "/api/work_pools/gpus/get_scheduled_flow_runs"),
        ("POST", "/api/v2/concurrency_limits/increment-with-lease"),
    ],
)
def test_runs_are_steered_with_the_password_alone(guest: TestClient, method: str, path: str):
    assert guest.request(method, path, json={"name": "x"}).status_code == 200


@pytest.mark.parametrize(
    "times",
    [
        {"rrule": "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"},
        {"rrule": "FREQ=DAILY"},
        {"cron": "0 5 * * *", "rrule": "FREQ=DAILY"},
        {"cron": "0 5 * * *", "interval": 3600},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 0 31 4,6 *", "timezone": "UTC"},
        {"cron": "* * * * * *"},
        {"cron": "* * * * * * 2027"},
        {"cron": "@reboot"},
        {"cron": "R R * * *"},
        {"cron": 5},
        {"cron": "0 5 * * *", "timezone": "Europe/Nowhere"},
        {"cron": "0 5 * * *", "timezone": "localtime"},
        {"cron": "0 5 * * *", "timezone": "Factory"},
        {"cron": "0 5 * * *", "timezone": 5},
        {"cron": "0 5 * * *", "day_or": "yes"},
        {"interval": 59.9},
        {"interval": 3e11},
        {"interval": -60},
        {"interval": True},
        {"interval": "PT1S"},
        {"interval": None},
        {"interval": 3600, "anchor_date": "never"},
        {"interval": 3600, "anchor_date": 1},
        {},
        [],
        "daily",
    ],
)
def test_a_schedule_that_could_stop_the_planning_of_all_is_refused(guest: TestClient, times: Any):
    ways: list[tuple[str, str, Any]] = [
        ("POST", f"{HERE}/schedules", [{"schedule": times}]),
        ("PATCH", f"{HERE}/schedules/1", {"schedule": times}),
        ("PATCH", HERE, {"schedules": [{"schedule": times}]}),
    ]
    for method, path, body in ways:
        for sender in ({}, {HEADER: "owner"}):
            answer = guest.request(method, path, json=body, headers=sender)
            is_rule = times == {"rrule": "FREQ=DAILY"} and bool(sender)
            assert answer.status_code == (200 if is_rule else 409), (body, sender)
            if not is_rule:
                assert re.match("schedule .*cron", answer.json()["detail"])
    owners = guest.post("/api/deployments/", json=ways[2][2], headers={HEADER: "owner"})
    assert owners.status_code == (200 if times == {"rrule": "FREQ=DAILY"} else 409)


def test_the_owners_parameters_and_templates_are_theirs(guest: TestClient):
    # Nothing but the times of schedules is read in what the owner sends.
    body = {"parameters": {"schedule": "any", "a": {"__prefect_kind": "jinja", "template": "x"}}}
    for method, path in (("PATCH", HERE), ("POST", f"{HERE}/create_flow_run")):
        answer = guest.request(method, path, json=body, headers={HEADER: "owner"})
        assert answer.json() == body


@pytest.mark.parametrize(
    "times",
    [
        {"cron": "0 20 * * *", "timezone": "Europe/Berlin", "day_or": True},
        {"cron": "0 0 29 2 *", "timezone": None},
        {"cron": "@daily"},
        {"interval": 60},
        {"interval": 315360000.0, "anchor_date": "2026-11-28T00:00:00Z", "timezone": "UTC"},
        {"rrule": "of the owner"},
    ],
)
def test_a_schedule_that_fires_is_taken_and_the_owners_may_be_sent_back(
    guest: TestClient, times: Any, monkeypatch: pytest.MonkeyPatch
):
    owners = {"schedule": {"rrule": "of the owner"}, "parameters": {}}
    monkeypatch.setitem(FOUND, "schedules", [*FOUND["schedules"], owners])
    body = [{"schedule": times, "active": True}]
    assert guest.post(f"{HERE}/schedules", json=body).json() == body


def test_a_run_that_works_on_is_not_shown_as_suspended(guest: TestClient):
    asked: dict[str, Any] = {"state": {"type": "PAUSED", "name": "Suspended"}, "force": True}
    path = f"/api/flow_runs/{KEY}/set_state"
    assert guest.post(path, json=asked).status_code == 200  # As by a run that waits for approval.
    asked["state"]["state_details"] = {"pause_timeout": None, "pause_reschedule": True}
    for each in (path, "/api/flow_runs/bulk_set_state"):
        answer = guest.post(each, json=asked)
        assert answer.status_code == 409
        assert re.search("paused .*Cancel", answer.json()["detail"])


def test_a_schedule_that_the_ui_switches_keeps_its_parameters(guest: TestClient):
    path = f"{HERE}/schedules/1"
    kept = {"parameters": {"overrides": ["the owner's"]}}
    for change in ({"active": False}, {"schedule": {"cron": "0 5 * * *"}}):
        assert guest.patch(path, json=change).json() == change | kept
    assert guest.patch(path, json={"active": True, **RIGHT}).json() == {"active": True, **RIGHT}
    assert guest.patch(f"{HERE}/schedules/2", json={"active": True}).json() == {"active": True}


def test_a_deployment_that_cannot_be_read_lets_nothing_through():
    app = Starlette(routes=[Route("/{path:path}", _echo, methods=["POST"])])
    doors = Doors(app, proof="owner", api="http://127.0.0.1:9/api", check="nowhere:nothing")
    with TestClient(doors) as client:
        answer = client.post(f"{HERE}/create_flow_run", json=RIGHT)
    assert answer.status_code == 503


def test_the_owners_proof_follows_from_their_key_and_the_servers_password(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:secret")
    monkeypatch.setenv(HEADERS, '{"X-Proxy": "1"}')
    key = read_or_draw_key()
    prove_owner()
    said = json.loads(os.environ[HEADERS])
    assert said == {"X-Proxy": "1", HEADER: owner_proof("me:secret", key)}
    assert owner_proof("me:other", key) != said[HEADER] != owner_proof("me:secret", key + "x")


def test_without_a_key_the_client_shows_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(HEADERS, raising=False)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:secret")
    monkeypatch.setenv("PARCEL_KEY", str(tmp_path / "none"))
    prove_owner()
    assert HEADERS not in os.environ
    assert not (tmp_path / "none").exists()


def test_a_guest_takes_no_place_of_a_schedules_next_run(guest: TestClient):
    """Prefect makes no second run of a key, and the keys of a schedule's runs can be guessed."""
    planted = {"idempotency_key": f"scheduled {KEY} 1 2026-11-29T03:00:00+00:00"}
    for path, body in (
        (f"{HERE}/create_flow_run", planted),
        (f"{HERE}/create_flow_run/bulk", [planted]),
        ("/api/flow_runs/", {"deployment_id": KEY, **planted}),
        ("/api/flow_runs/", {"flow_id": KEY, **planted}),
    ):
        answer = guest.post(path, json=body)
        assert answer.status_code == 403, path
        assert "idempotency_key " in answer.text
    unset = guest.post(f"{HERE}/create_flow_run", json={"idempotency_key": None})
    assert unset.status_code == 200
