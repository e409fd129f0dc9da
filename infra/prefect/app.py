"""The Prefect server of a store, as a process: `python -m infra.prefect.app STORE HOST PORT`.

Three more arguments, see `Sidecar`, name an application whose pages are served next to Prefect's
own, its argument, and a function that checks the parameters of a run of our deployments.

The server refuses requests that address another host name, and requests of browsers that come from
other sites' pages: any page on the web can make a browser send requests to a server on loopback.
All of it, Prefect's API and UI and our pages, is for those who know the auth string: whoever starts
runs on it runs programs as its user, and other users of a machine reach its loopback, too.
"""

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import importlib
import json
import os
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.file_locks import lock_file
from infra.prefect.doors import Doors
from infra.prefect.encryption import VARIABLE, take_key_out_of_database
from infra.prefect.owner import owner_proof
from infra.prefect.private import make_private, open_private
from infra.prefect.server import (
    LOGIN_TOKEN,
    PAGES,
    TOGETHER,
    Sidecar,
    auth_file,
    folder_id,
    is_loopback,
    locks,
    token_of,
)
from infra.prefect.server_log import log_errors
from infra.prefect.start_link import StartLink, asks_for_page
from infra.prefect.times import plan_each_alone
from infra.processes.identity import ProcessIdentity

_LOOK_EVERY = 0.5
"""Interval between two looks at whether the server has users [s]."""
_END_TIMEOUT = 1.5
"""Time for the server to shut down once it has no users; its state is in its database [s]."""

_MAX_BODY = 16 * 2**20
"""Largest body of a request [bytes]: Prefect's own are a few, a page with pictures is one."""

_MAX_MESSAGE = 2 * 2**20
"""Largest message on a socket [bytes]: Prefect's events have at most 1.5 MB."""

_FRAMES = (b"content-security-policy", b"frame-ancestors 'self'")
"""Header of every page: no other site can show it in a frame, under a button of its own."""

_MONTH = 30 * 86_400
"""Time for which a browser stays logged in [s]."""


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
        why = (
            None
            if scope["type"] == "lifespan"
            else self._origin_refusal_reason(dict(scope["headers"]))
        )
        if why is None:
            await self._app(scope, receive, _with_frames(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            await _send_http_refusal(send, 403, why)

    def _origin_refusal_reason(self, headers: dict[bytes, bytes]) -> str | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts and not self._is_own(host):
            return f"Host must be one of {', '.join(self._hosts)}, got {host!r}."
        origin = headers.get(b"origin")  # Browsers send it; other clients need not.
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            return f"Origin must be this server's own page, got {origin.decode('latin-1')!r}."
        return None

    def _is_own(self, host: str) -> bool:
        # Names below localhost lead to this machine alone (RFC 6761). A browser sends a cookie to
        # all ports of a name; one of its own keeps it from the servers of other users.
        return any(
            host == known or (known.startswith("localhost:") and host.endswith(f".{known}"))
            for known in self._hosts
        )


class Login:
    """Lets in requests that prove to know the server's auth string.

    Clients send it with each request (Basic authentication). A browser may do so, too, or open a
    link with `token_of` the string, once: it then has a cookie, which counts as the string.

    Args:
      app: application that answers the authorised requests.
      auth: the auth string, "name:password".
      hint: sentence for people who are refused: where they find the string.
      max_unproven: most sockets at a time that have not yet sent their first message, which has the
        auth string.
      first_message_timeout: longest wait for that message [s]; Prefect's clients send it at once.
    """

    def __init__(
        self,
        app: ASGIApp,
        auth: str,
        hint: str,
        *,
        max_unproven: int = 32,
        first_message_timeout: float = 10.0,
    ) -> None:
        self._app, self._login_hint = app, hint
        self._unproven, self._max_unproven = 0, max_unproven
        self._first_message_timeout = first_message_timeout
        self._basic = f"Basic {base64.b64encode(auth.encode()).decode()}".encode()
        self._auth, self._token = auth.encode(), token_of(auth)
        # Cookies do not tell the ports of a host apart: servers of other stores have other names.
        self._cookie = f"parcel-{hashlib.sha256(self._token.encode()).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        is_known = self._has_string(headers) or self._has_cookie(headers)
        if scope["type"] == "websocket":
            if is_known:
                await self._app(scope, receive, send)
            # Prefect's clients send the string in their first message, and Prefect checks it.
            elif "prefect" in scope.get("subprotocols", ()) and self._unproven < self._max_unproven:
                await self._await_string(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": self._login_hint})
        elif is_known:
            # Prefect's own check knows no cookie, so every request gets the string.
            rest = [item for item in scope["headers"] if item[0] != b"authorization"]
            known = {**scope, "headers": [*rest, (b"authorization", self._basic)]}
            await self._app(
                known, receive, self._with_cookie(send) if asks_for_page(headers) else send
            )
        elif scope["path"] == "/api/health":
            await self._app(scope, receive, send)
        elif self._has_token(scope):
            await self._let_in(scope, send)
        else:
            realm = (b"www-authenticate", b'Basic realm="parcel", charset="UTF-8"')
            await _send_http_refusal(send, 401, self._login_hint, realm)

    async def _await_string(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Has a socket's first message checked; until then it counts as unproven, for so long."""
        is_unproven = True
        self._unproven += 1

        async def received() -> Message:
            nonlocal is_unproven
            if not is_unproven:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._first_message_timeout)
            except TimeoutError:
                return {"type": "websocket.disconnect", "code": 1008}
            if message["type"] != "websocket.connect":
                is_unproven = False
                self._unproven -= 1
            return message

        try:
            await self._app(scope, received, send)
        finally:
            self._unproven -= is_unproven

    def _has_string(self, headers: Mapping[bytes, bytes]) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        try:
            decoded = base64.b64decode(given, validate=True)
        except binascii.Error:
            return False
        return scheme.lower() == b"basic" and hmac.compare_digest(decoded, self._auth)

    def _has_cookie(self, headers: Mapping[bytes, bytes]) -> bool:
        given = cookie_parser(headers.get(b"cookie", b"").decode("latin-1")).get(self._cookie, "")
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _has_token(self, scope: Scope) -> bool:
        (given, *_) = [*_parse_query_string(scope).get(LOGIN_TOKEN, ()), ""]
        is_right = hmac.compare_digest(given.encode(), self._token.encode())
        return is_right and scope["method"] == "GET"

    async def _let_in(self, scope: Scope, send: Send) -> None:
        """Gives the browser its cookie, and sends it to the same address without the token."""
        query = {
            name: values
            for name, values in _parse_query_string(scope).items()
            if name != LOGIN_TOKEN
        }
        # One slash: with two, the rest of the path would be a host.
        path = f"/{urllib.parse.quote(scope['path'].lstrip('/'))}"
        where = f"{path}?{urllib.parse.urlencode(query, doseq=True)}" if query else path
        headers = [
            (b"location", where.encode()),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
        ]
        start = {"type": "http.response.start", "status": 303, "headers": headers}
        await self._with_cookie(send)(start)
        await send({"type": "http.response.body", "body": b""})

    def _with_cookie(self, send: Send) -> Send:
        """Returns a `send` that adds the browser's cookie to the response."""
        value = f"{self._cookie}={self._token}; Path=/; Max-Age={_MONTH}; HttpOnly; SameSite=Lax"

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"set-cookie", value.encode())]
                message = {**message, "headers": headers}
            await send(message)

        return sending


def _parse_query_string(scope: Scope) -> dict[str, list[str]]:
    text = scope.get("query_string", b"").decode("latin-1")
    return urllib.parse.parse_qs(text, keep_blank_values=True)


class WithSidecar:
    """Serves our pages, and Prefect's application at every other path.

    They are not mounted in it: its middleware asks every form for a token that only a script can
    fetch, and our pages have none. `SameOrigin` keeps other sites away from both.

    Args:
      pages: application that answers below `PAGES`.
      prefect: application that answers everything else.
    """

    def __init__(self, pages: ASGIApp, prefect: ASGIApp) -> None:
        from starlette.applications import Starlette
        from starlette.responses import RedirectResponse
        from starlette.routing import Mount, Route

        routes = [Route(PAGES, lambda _: RedirectResponse(f"{PAGES}/")), Mount(PAGES, pages)]
        self._pages, self._prefect = Starlette(routes=routes), prefect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{PAGES}/")
        await (self._pages if is_ours else self._prefect)(scope, receive, send)


class BoundedBodies:
    """Refuses requests whose body is larger than a bound, before all of it is in memory.

    Args:
      app: application that answers the other requests.
      most: size of the largest body [bytes].
    """

    def __init__(self, app: ASGIApp, most: int = _MAX_BODY) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._most:
            await self._send_http_refusal(send)
            return
        received, is_refused = 0, False

        # Whose length is not announced is counted. Once there is too much, the application is told
        # that the client left, and what it then answers goes nowhere.
        async def counted() -> Message:
            nonlocal received, is_refused
            message = await receive()
            received += len(message.get("body", b""))
            if received <= self._most:
                return message
            if not is_refused:
                is_refused = True
                await self._send_http_refusal(send)
            return {"type": "http.disconnect"}

        async def answer(message: Message) -> None:
            if not is_refused:
                await send(message)

        try:
            await self._app(scope, counted, answer)
        except Exception:
            if not is_refused:
                raise

    async def _send_http_refusal(self, send: Send) -> None:
        mib = self._most / 2**20
        await _send_http_refusal(
            send, 413, f"the body must be at most {mib:g} MiB.", (b"connection", b"close")
        )


def _with_frames(send: Send) -> Send:
    """Returns a `send` that adds `_FRAMES` to responses without a policy of their own."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            if _FRAMES[0] not in {name.lower() for name, _ in headers}:
                message = {**message, "headers": [*headers, _FRAMES]}
        await send(message)

    return sending


async def _send_http_refusal(send: Send, status: int, why: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": why}).encode()})


def begin_immediately() -> None:
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


def send_no_events_of_pages() -> None:
    """Has Prefect, in this process, send no event where a page is created or replaced.

    Such an event holds the page's text a second time, pictures included. Of the events of a run
    two in three were about pages, half of them from its server, and each is stored with the objects
    that it names, and compared with every automation.
    """
    from prefect.server.models import artifacts

    async def send_nothing(collection: object) -> None:
        del collection

    artifacts.emit_artifact_collection_created_event = send_nothing
    artifacts.emit_artifact_collection_updated_event = send_nothing


def take_pages_together(whole: Any) -> None:
    """Has Prefect's API take several pages in one request, and so in one transaction.

    What a page costs is mostly its request: the checks before it, its transaction, its answer.
    """
    from prefect.server.database import provide_database_interface
    from prefect.server.models.artifacts import create_artifact
    from prefect.server.schemas.actions import ArtifactCreate
    from prefect.server.schemas.core import Artifact
    from starlette.routing import Mount

    async def create_artifacts(pages: list[ArtifactCreate]) -> None:
        database = provide_database_interface()
        async with database.session_context(begin_transaction=True) as session:
            for page in pages:
                await create_artifact(session=session, artifact=Artifact(**page.model_dump()))

    (api,) = (r.app for r in whole.routes if isinstance(r, Mount) and r.path == "/api")
    cast(Any, api).post(TOGETHER, status_code=201)(create_artifacts)


def main() -> None:
    """Serves until nobody uses the store's server."""
    store, host, port = Path(sys.argv[1]).absolute(), sys.argv[2], int(sys.argv[3])
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
    auth = os.environ["PREFECT_SERVER_API_AUTH_STRING"]
    os.environ["PREFECT_API_AUTH_STRING"] = auth  # The server's own services are clients of it.
    # A relative path: pages must call the server that they came from, under any of its names.
    os.environ["PREFECT_UI_API_URL"] = "/api"

    import uvicorn

    # Prefect reads its settings here, and would take those that lie in the current folder (.env,
    # prefect.toml, pyproject.toml): another database, say, and the store's runs would be in it.
    with contextlib.chdir(users.parent):
        from prefect.logging.configuration import ensure_logging_setup
        from prefect.server.api.server import create_app
        from prefect.settings import get_current_settings
    from starlette.routing import Route

    class Noted(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            await take_key_out_of_database()
            _write_server_note(noted, api, auth)

    # Prefect's own handlers say less, and nothing of what failed in the background. They are set up
    # first: whatever of Prefect is imported later would set them up, and take ours away.
    ensure_logging_setup()
    log_errors(store, (auth, auth.partition(":")[2], token_of(auth), os.environ.get(VARIABLE, "")))
    begin_immediately()
    send_no_events_of_pages()
    plan_each_alone()
    hosts = [f"{known}:{port}" for known in ("127.0.0.1", "localhost", "[::1]", name)]
    whole = create_app(final=True)
    # From here on, for whatever Prefect writes: its database holds credentials, too. Not before,
    # since it unpacks its UI into its package, which several users may share.
    os.umask(0o077)
    with contextlib.suppress(PermissionError):  # The user chose a place that is not theirs.
        make_private(get_current_settings().home)
    take_pages_together(whole)
    whole.router.routes.insert(0, Route("/ui-settings", _without_login(whole)))
    sidecar = Sidecar(*sys.argv[4:]) if len(sys.argv) > 4 else None
    pages = WithSidecar(_load_sidecar_application(sidecar), StartLink(whole)) if sidecar else whole
    # From the outside in: whose page asks, who asks, how much, and only then what.
    proof = owner_proof(auth, os.environ[VARIABLE])
    check, forms = (sidecar.check, sidecar.forms) if sidecar else ("", "")
    served = Doors(pages, proof=proof, api=api, check=check, forms=forms)
    login = Login(BoundedBodies(served), auth, _login_hint(store, auth))
    app = SameOrigin(login, hosts if is_loopback(host) else [])
    config = uvicorn.Config(
        app,
        log_config=None,  # See `log_errors`.
        log_level="warning",
        timeout_graceful_shutdown=2,
        ws_max_size=_MAX_MESSAGE,
    )
    server = Noted(config)
    end.append(lambda: setattr(server, "should_exit", True))
    server.run(sockets=[listening])


def _login_hint(store: Path, auth: str) -> str:
    """Returns a sentence for people whom the server refuses."""
    path = auth_file(store)
    is_drawn = path.exists() and path.read_text().strip() == auth
    where = f"those in {path}, name:password" if is_drawn else "those that the server started with"
    return (
        f"open the link that `parcel serve` shows on a terminal, or give name and password: {where}"
    )


def _without_login(whole: Any) -> Callable[[Any], Any]:
    """Returns the handler of the UI's settings, which let it not ask for the auth string itself.

    The browser is logged in when it gets there; Prefect's own form would ask a second time.
    """
    from starlette.responses import JSONResponse
    from starlette.routing import Mount

    routes = [route for app in whole.routes if isinstance(app, Mount) for route in app.routes]
    settings: Any
    (settings,) = [r for r in routes if getattr(r, "path", "") == "/ui-settings"]
    return lambda _: JSONResponse({**settings.endpoint().model_dump(mode="json"), "auth": None})


def _load_sidecar_application(sidecar: Sidecar) -> ASGIApp:
    module, _, name = sidecar.function.partition(":")
    return getattr(importlib.import_module(module), name)(sidecar.argument)


def _write_server_note(path: Path, api: str, auth: str) -> None:
    own, folder = dataclasses.asdict(ProcessIdentity.of_this_process()), folder_id(path.parents[1])
    partial = path.with_suffix(".partial")
    with open_private(partial, "w") as file:
        file.write(json.dumps({"api": api, "auth": auth, "process": own, "folder": folder}))
    partial.replace(path)


def _is_own(note: Path) -> bool:
    """Returns whether a note is this process's, and not that of a server on another machine."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        own = dataclasses.asdict(ProcessIdentity.of_this_process())
        return json.loads(note.read_text())["process"] == own
    return False


def _end_without_users(users: Path, noted: Path, end: list[Callable[[], None]]) -> None:
    with open_private(users, "a") as lock:
        while True:
            # The lock can be exclusive only once no command holds it any more.
            with contextlib.suppress(BlockingIOError):
                lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOOK_EVERY)
        # A command that starts now waits for the lock, and then finds no server note.
        if _is_own(noted):
            noted.unlink(missing_ok=True)
        for ask in end:
            ask()
        time.sleep(_END_TIMEOUT if end else 0)
        os._exit(0)


if __name__ == "__main__":
    main()
