"""Who may speak to a store's server: its own pages, and clients that are no browser."""

import base64

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from infra.prefect.app import Password, SameOrigin

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


def test_pages_beside_are_for_those_who_know_the_auth_string():
    asking = TestClient(Password(APP, "me:sécret"))

    def status(given: str | None, scheme: str = "Basic") -> int:
        text = None if given is None else base64.b64encode(given.encode()).decode()
        headers = {"Authorization": f"{scheme} {text}"} if text is not None else {}
        return asking.get("/", headers=headers).status_code

    assert [status("me:sécret"), status("me:sécret", "basic")] == [200, 200]
    assert [status(given) for given in (None, "me:guess", "me:", "")] == [401] * 4
    assert status("me:sécret", "Bearer") == 401
    assert asking.get("/", headers={"Authorization": "Basic %%%"}).status_code == 401
    asked = asking.get("/").headers["www-authenticate"]
    assert asked.startswith("Basic realm=")  # So that a browser asks its user.
