"""The Prefect server of a store, as a process: `python -m infra.prefect.app STORE HOST PORT`.

Three more arguments, see `Beside`, name an application whose pages are served next to Prefect's
own, its argument, and a function that checks the parameters of a run of our deployments.

The server refuses requests that address another host name, and requests of browsers that come from
other sites' pages: any page on the web can make a browser send requests to a server on loopback.
"""

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import fcntl
import hmac
import importlib
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.prefect.server import PAGES, Beside, folder_id, is_loopback, locks
from infra.processes.identity import ProcessNote

_LOOK_EVERY = 0.5
"""Interval between two looks at whether the server has users [s]."""
_END_TIMEOUT = 1.5
"""Time for the server to shut down once it has no users; its state is in its database [s]."""

_ASK_TIMEOUT = 30.0
"""Longest wait for the server's answer about a deployment [s]."""
_MADE = re.compile(r"/api/deployments/([0-9a-f-]+)/create_flow_run/?$")
_TAG = "parcel"
"""Tag of our deployments."""


class SameOrigin:
    """Refuses requests that address another host than this one, or come from other sites' pages.

    Args:
      app: application that answers the other requests.
      hosts: names of the server, with port; empty if it cannot know all of its names.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = None if scope["type"] == "lifespan" else self._refusal(dict(scope["headers"]))
        if why is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            await _refuse(send, 403, why)

    def _refusal(self, headers: dict[bytes, bytes]) -> str | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts and host not in self._hosts:
            return f"Host must be one of {', '.join(self._hosts)}, got {host!r}."
        origin = headers.get(b"origin")  # Browsers send it; other clients need not.
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            return f"Origin must be this server's own page, got {origin.decode('latin-1')!r}."
        return None


class Password:
    """Requires the server's auth string; Prefect itself requires it in its API only.

    Args:
      app: application that answers the authorised requests.
      auth: the auth string, "name:password".
    """

    def __init__(self, app: ASGIApp, auth: str) -> None:
        self._app = app
        self._auth = auth.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_known(dict(scope["headers"])):
            await self._app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b'Basic realm="parcel", charset="UTF-8"')]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"name and password, please"})

    def _is_known(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        try:
            decoded = base64.b64decode(given, validate=True)
        except binascii.Error:
            return False
        return scheme.lower() == b"basic" and hmac.compare_digest(decoded, self._auth)


class CheckedForms:
    """Refuses to create a run of our deployments whose parameters are wrong.

    Args:
      app: application that answers the other requests.
      api: address of its API [URI].
      check: "module:function" of the check: parameters -> the error message, or None.
    """

    def __init__(self, app: ASGIApp, api: str, check: str) -> None:
        self._app, self._api, self._check = app, api, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = scope["type"] == "http" and scope["method"] == "POST" and _MADE.match(scope["path"])
        if not made:
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        why = await asyncio.to_thread(self._problem, made[1], body, dict(scope["headers"]))
        if why is None:
            parts = iter([{"type": "http.request", "body": body, "more_body": False}])

            # The body was read above; this passes it on to the application.
            async def again() -> Message:
                return next(parts, None) or await receive()

            await self._app(scope, again, send)
        else:
            await _refuse(send, 409, why)

    def _problem(self, deployment: str, body: bytes, headers: dict[bytes, bytes]) -> str | None:
        known = {"Authorization": headers.get(b"authorization", b"").decode("latin-1")}
        try:
            asked = urllib.request.Request(f"{self._api}/deployments/{deployment}", headers=known)
            with urllib.request.urlopen(asked, timeout=_ASK_TIMEOUT) as answer:
                found = json.load(answer)
            given = json.loads(body).get("parameters") or {}
        except (OSError, ValueError, AttributeError):
            return None  # The server itself refuses or accepts the request.
        if _TAG not in found["tags"]:
            return None
        module, _, name = self._check.partition(":")
        return getattr(importlib.import_module(module), name)({**found["parameters"], **given})


async def _refuse(send: Send, status: int, why: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": why}).encode()})


def take_turns() -> None:
    """Makes transactions on SQLite wait for the write lock when they begin.

    Prefect lets them begin with a read. If another transaction writes before the first write of
    this one, that write fails at once: "database is locked". The server then handles the event
    again, so that of two automations that wait for it the first sends its alert twice; or it drops
    the event.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def begin_to_write(self: AioSqliteConfiguration, session: Any, with_for_update: bool = False):
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = begin_to_write


def main() -> None:
    """Serves until nobody uses the store's server."""
    store, host, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    users, _, noted = locks(store)
    end: list[Callable[[], None]] = []  # Empty until there is a server to end.
    threading.Thread(target=_end_without_users, args=(users, noted, end), daemon=True).start()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    port = listening.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    seen = "127.0.0.1" if host in ("0.0.0.0", "::") else name
    api = f"http://{seen}:{port}/api"
    os.environ |= {
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{seen}:{port}",
    }
    auth = os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
    if auth is not None:  # The server's own services are clients of it.
        os.environ["PREFECT_API_AUTH_STRING"] = auth
    if not is_loopback(host):
        # A relative path: pages must call the server that they came from, under any of its names.
        os.environ["PREFECT_UI_API_URL"] = "/api"

    import uvicorn
    from prefect.server.api.server import create_app
    from starlette.responses import RedirectResponse
    from starlette.routing import Mount, Route

    class Noted(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            _write_note(noted, api, auth)

    take_turns()
    hosts = [f"{known}:{port}" for known in ("127.0.0.1", "localhost", "[::1]", name)]
    whole = create_app(final=True)
    beside = Beside(*sys.argv[4:]) if len(sys.argv) > 4 else None
    if beside is not None:
        pages = _application(beside)
        # Placed first, because Prefect's own pages take every path that is left.
        whole.router.routes[:0] = [
            Route(PAGES, lambda _: RedirectResponse(f"{PAGES}/")),
            Mount(PAGES, Password(pages, auth) if auth else pages),
        ]
    served: ASGIApp = whole
    if beside is not None and beside.check:
        served = CheckedForms(whole, api, beside.check)
    app = SameOrigin(served, hosts if is_loopback(host) else [])
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    server = Noted(config)
    end.append(lambda: setattr(server, "should_exit", True))
    server.run(sockets=[listening])


def _application(beside: Beside) -> ASGIApp:
    module, _, name = beside.function.partition(":")
    return getattr(importlib.import_module(module), name)(beside.argument)


def _write_note(path: Path, api: str, auth: str | None) -> None:
    own, folder = dataclasses.asdict(ProcessNote.own()), folder_id(path.parents[1])
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps({"api": api, "auth": auth, "process": own, "folder": folder}))
    partial.replace(path)


def _end_without_users(users: Path, noted: Path, end: list[Callable[[], None]]) -> None:
    with users.open("a") as lock:
        while True:
            # The lock can be exclusive only once no command holds it any more.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOOK_EVERY)
        # A command that starts now waits for the lock, and then finds no server note.
        noted.unlink(missing_ok=True)
        for ask in end:
            ask()
        time.sleep(_END_TIMEOUT if end else 0)
        os._exit(0)


if __name__ == "__main__":
    main()
