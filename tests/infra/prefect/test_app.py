"""What lies beside Prefect's own pages: for those who know the server's auth string."""

import base64

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from infra.prefect.app import Password


def test_pages_beside_are_for_those_who_know_the_auth_string():
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("a page"))])
    client = TestClient(Password(app, "me:sécret"))

    def ask(given: bytes | None, scheme: str = "Basic") -> int:
        text = None if given is None else base64.b64encode(given).decode()
        return client.get(
            "/", headers={"Authorization": f"{scheme} {text}"} if text else {}
        ).status_code

    assert ask("me:sécret".encode()) == 200
    assert ask("me:sécret".encode(), "basic") == 200
    wrong = (None, b"me:guess", b"me:", b"")
    assert [ask(given) for given in wrong] == [401] * len(wrong)
    assert ask("me:sécret".encode(), "Bearer") == 401
    assert client.get("/", headers={"Authorization": "Basic %%%"}).status_code == 401
    asked = client.get("/").headers["www-authenticate"]
    assert asked.startswith("Basic realm=")  # So that a browser asks its user.
