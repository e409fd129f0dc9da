"""Who may speak to a store's server: its own pages, and clients that are no browser."""

import asyncio
import base64
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from infra.prefect.app import BoundedBodies, Login, SameOrigin, WithSidecar
from infra.prefect.server import locks, token_of
from infra.prefect.start_link import StartLink
from infra.processes.identity import ProcessIdentity

HOSTS = ["127.0.0.1:4200", "localhost:4200"]
OWN = "http://127.0.0.1:4200"


async def _page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("come in")


async def _socket(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("come in")
    await socket.close()


APP = Starlette(routes=[Route("/", _page, methods=["GET", "POST"]), WebSocketRoute("/in", _socket)])


def client(hosts: list[str]) -> TestClient:
    return TestClient(SameOrigin(APP, hosts), base_url=OWN)


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, None),
        ({"Origin": OWN}, None),
        ({"Host": "localhost:4200", "Origin": "http://localhost:4200"}, None),
        ({"Host": "lab.localhost:4200", "Origin": "http://lab.localhost:4200"}, None),
        ({"Host": "lab.localhost:8000"}, "Host must be one of"),
        ({"Host": "evil.example.localhost.evil:4200"}, "Host must be one of"),
        ({"Host": "evillocalhost:4200"}, "Host must be one of"),
        ({"Host": "lab.localhost:4200", "Origin": "http://a.localhost:4200"}, "Origin must be"),
        ({"Host": "evil.example"}, "Host must be one of 127.0.0.1:4200"),
        ({"Host": "evil.example:4200"}, "Host must be one of"),
        ({"Origin": "https://evil.example"}, "Origin must be this server's own page"),
        ({"Origin": "null"}, "Origin must be this server's own page"),
        ({"Origin": "http://127.0.0.1:8000"}, "Origin must be this server's own page"),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, "Host must be one of"),
    ],
)
def test_only_its_own_pages_and_plain_clients_come_in(headers: dict[str, str], told: str | None):
    headers = {"Host": "127.0.0.1:4200", **headers}
    for method in ("GET", "POST"):
        answer = client(HOSTS).request(method, "/", headers=headers)
        assert answer.status_code == (200 if told is None else 403)
        assert told is None or told in answer.json()["detail"]
    if told is None:
        with client(HOSTS).websocket_connect("/in", headers=headers) as socket:
            assert socket.receive_text() == "come in"
    else:
        with (
            pytest.raises(WebSocketDisconnect),
            client(HOSTS).websocket_connect("/in", headers=headers),
        ):
            pass


def test_beyond_loopback_its_name_is_the_readers_but_other_sites_stay_out():
    open_client = client([])
    own = {"Host": "box.lab:4200", "Origin": "http://box.lab:4200"}
    assert open_client.post("/", headers=own).status_code == 200
    foreign = {"Host": "box.lab:4200", "Origin": "http://evil.example"}
    assert open_client.post("/", headers=foreign).status_code == 403


def test_no_other_site_can_show_a_page_in_a_frame():
    async def closed(request: Request) -> PlainTextResponse:
        return PlainTextResponse("", headers={"Content-Security-Policy": "default-src 'none'"})

    app = Starlette(routes=[Route("/open", _page), Route("/closed", closed)])
    pages = TestClient(SameOrigin(app, HOSTS), base_url=OWN)
    policies = [pages.get(path).headers["content-security-policy"] for path in ("/open", "/closed")]
    assert policies == ["frame-ancestors 'self'", "default-src 'none'"]


def test_every_page_of_prefects_links_to_the_start_page_and_nothing_else_changes():
    words = "words " * 200
    html = f"<html><body class='wide'>{words}</body></html>"

    async def page(request: Request) -> HTMLResponse:
        assert "if-none-match" not in request.headers
        return HTMLResponse(html, headers={"etag": "1"})

    async def data(request: Request) -> PlainTextResponse:
        return PlainTextResponse("</body>", headers={"etag": "1"})

    paths = {"/v2/runs": page, "/api/runs": data}
    routes = [Route(path, answer) for path, answer in paths.items()]
    # As Prefect has it: what may be compressed comes compressed.
    plain = GZipMiddleware(Starlette(routes=routes), minimum_size=100)
    client = TestClient(StartLink(plain), base_url=OWN)
    browser = {"Accept": "text/html,*/*", "Accept-Encoding": "gzip", "If-None-Match": "1"}
    answer = client.get("/v2/runs", headers=browser)
    assert answer.text.startswith("<html><body class='wide'>\n<style>")
    assert answer.text.count('<a href="/parcel/">start page</a>') == 1
    assert answer.text.endswith(f"</div>\n{words}</body></html>")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "etag" not in answer.headers
    del browser["If-None-Match"]
    assert client.get("/api/runs", headers=browser).text == "</body>"
    assert client.get("/v2/runs", headers={"Accept": "application/json"}).text == html


def test_our_pages_take_forms_that_prefect_would_ask_a_token_for():
    async def name(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.scope['app'].state.name} {request.url.path}")

    pages, prefect = (
        Starlette(routes=[Route("/{rest:path}", name, methods=["GET", "POST"])]) for _ in range(2)
    )
    pages.state.name, prefect.state.name = "ours", "Prefect's"
    client = TestClient(WithSidecar(pages, prefect), base_url=OWN)
    assert client.post("/parcel/continue").text == "ours /parcel/continue"
    assert client.get("/parcel").url.path == "/parcel/"
    for path in ("/parcels", "/api/parcel/x", "/"):
        assert client.post(path).text == f"Prefect's {path}"


def test_a_body_is_bounded_whether_its_length_is_announced_or_not():
    read: list[int] = []

    async def count(request: Request) -> PlainTextResponse:
        read.append(len(await request.body()))
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/", count, methods=["POST"])])
    bounded = TestClient(BoundedBodies(app, 2**18), base_url=OWN)
    assert bounded.post("/", content=b"x" * 2**18).status_code == 200
    assert bounded.post("/", content=b"x" * (2**18 + 1)).status_code == 413
    pieces = bounded.post("/", content=(b"x" * 2**17 for _ in range(3)))
    assert pieces.status_code == 413
    assert re.search(r"\b0\.25 MiB", pieces.json()["detail"])
    assert read == [2**18]


AUTH = "me:sécret"


def asking(**options: Any) -> TestClient:
    return TestClient(Login(APP, AUTH, "ask me"), base_url=OWN, follow_redirects=False, **options)


def basic(given: str, scheme: str = "Basic") -> dict[str, str]:
    return {"Authorization": f"{scheme} {base64.b64encode(given.encode()).decode()}"}


def test_it_answers_those_who_know_the_auth_string():
    def status(headers: dict[str, str]) -> int:
        return asking().get("/", headers=headers).status_code

    assert [status(basic(AUTH)), status(basic(AUTH, "basic"))] == [200, 200]
    assert [status(basic(given)) for given in ("me:guess", "me:", "")] == [401] * 3
    assert status({}) == status(basic(AUTH, "Bearer")) == 401
    assert status({"Authorization": "Basic %%%"}) == 401
    refused = asking().get("/")
    assert refused.headers["www-authenticate"].startswith(
        "Basic realm="
    )  # A browser asks its user.
    assert refused.json() == {"detail": "ask me"}


def test_a_link_with_the_token_logs_a_browser_in_once_and_leaves_the_address():
    browser = asking()
    came = browser.get(f"/?a=1&token={token_of(AUTH)}&b=")
    assert (came.status_code, came.headers["location"]) == (303, "/?a=1&b=")
    assert "sécret" not in str(came.headers)
    cookie = came.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} < set(cookie.split("; "))
    for method in ("GET", "POST"):
        assert browser.request(method, "/").status_code == 200
    assert browser.get("/", headers={"Cookie": ""}).status_code == 401
    for wrong in ("", "x", token_of("me:guess"), "%ff"):
        assert asking().get(f"/?token={wrong}").status_code == 401
    assert asking().post(f"/?token={token_of(AUTH)}").status_code == 401


def test_a_login_leads_to_no_other_site():
    for path in ("//evil.example/x", "/\\evil.example/x", "///evil.example"):
        came = asking().get(f"{OWN}{path}?token={token_of(AUTH)}")
        assert came.status_code == 303
        assert not came.headers["location"].startswith(("//", "/\\"))


def test_a_browser_that_gives_name_and_password_has_the_cookie_afterwards():
    browser = asking()
    assert "set-cookie" not in browser.get("/", headers=basic(AUTH)).headers
    browser.get("/", headers={**basic(AUTH), "Accept": "text/html,*/*"})
    assert browser.get("/").status_code == 200


def test_servers_of_two_stores_have_cookies_of_their_own():
    names = set()
    for auth in ("parcel:1", "parcel:2"):
        one = TestClient(Login(APP, auth, ""), base_url=OWN, follow_redirects=False)
        came = one.get(f"/?token={token_of(auth)}")
        names.add(came.headers["set-cookie"].partition("=")[0])
    assert len(names) == 2


def test_the_application_behind_it_gets_the_auth_string_whatever_the_browser_sent():
    async def headers(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.headers["authorization"])

    app = Login(Starlette(routes=[Route("/", headers)]), AUTH, "")
    browser = TestClient(app, base_url=OWN)
    came = browser.get(f"/?token={token_of(AUTH)}", headers=basic("someone:else"))
    assert came.text == basic(AUTH)["Authorization"]


def test_a_socket_needs_the_string_or_prefects_own_check():
    with pytest.raises(WebSocketDisconnect), asking().websocket_connect("/in"):
        pass
    known: list[dict[str, Any]] = [{"headers": basic(AUTH)}, {"subprotocols": ["prefect"]}]
    for options in known:
        with asking().websocket_connect("/in", **options) as socket:
            assert socket.receive_text() == "come in"


def test_a_socket_that_says_nothing_is_let_go_and_only_so_many_wait():
    silent, left = asyncio.Event(), []

    async def prefect(socket: WebSocket) -> None:
        await socket.accept()
        try:
            await socket.receive_text()
            await socket.send_text("come in")
            await socket.close()
        except WebSocketDisconnect:
            left.append(socket)

    routes = Starlette(routes=[WebSocketRoute("/in", prefect)])
    app = Login(routes, AUTH, "see the file", max_unproven=2, first_message_timeout=2.0)
    scope = {"type": "websocket", "path": "/in", "headers": [], "subprotocols": ["prefect"]}

    async def ask(*messages: Message) -> list[str]:
        coming, said = iter(messages), []

        async def receive() -> Message:
            message = next(coming, None)
            return message or {"type": str(await silent.wait())}

        async def send(message: Message) -> None:
            said.append(message["type"].removeprefix("websocket."))

        await app(dict(scope), receive, send)
        return said

    connect, text = {"type": "websocket.connect"}, {"type": "websocket.receive", "text": "string"}

    async def main() -> None:
        waiting = [asyncio.create_task(ask(connect)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await ask(connect, text) == ["close"]  # No third.
        assert await asyncio.gather(*waiting) == [["accept"]] * 2
        assert len(left) == 2
        for _ in range(3):  # What has sent its message is not counted, nor what has left.
            assert await ask(connect, text) == ["accept", "send", "close"]

    asyncio.run(main())


def test_a_server_that_ends_deletes_its_own_note_alone(tmp_path: Path):
    users, _, noted = locks(tmp_path)
    own = dataclasses.asdict(ProcessIdentity.of_this_process())
    elsewhere = {**own, "host": "machine-b", "machine": "another boot"}
    code = (
        "import dataclasses, json, sys; from pathlib import Path\n"
        "from infra.prefect.app import _end_without_users\n"
        "from infra.processes.identity import ProcessIdentity\n"
        "noted = Path(sys.argv[2])\n"
        "if sys.argv[3:]: noted.write_text(json.dumps({'process': "
        "dataclasses.asdict(ProcessIdentity.of_this_process())}))\n"
        "_end_without_users(Path(sys.argv[1]), noted, [])"
    )
    for own_note in ([], ["own"]):
        noted.write_text(json.dumps({"process": elsewhere}))
        words = [sys.executable, "-c", code, str(users), str(noted), *own_note]
        assert subprocess.run(words, timeout=120).returncode == 0
        assert noted.exists() == (not own_note)
