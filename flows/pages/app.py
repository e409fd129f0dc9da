"""The live pages of a store, as an ASGI application beside Prefect's own."""

import functools
import threading
import urllib.parse

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from flows.pages.page import IMAGES, WHOSE, Page, address
from flows.pages.pictures import mime_type
from flows.pages.site import STYLE, NoPageError, Site
from infra.prefect.server import PAGES, Beside
from infra.store.store import Store

_HEADERS = {
    # A page may load nothing from other hosts, run no script, and not be shown in a frame.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Headers of images: the content under a key never changes."""


def beside(store: Store) -> Beside:
    """Returns the names of the functions that make a server's pages and check its forms."""
    return Beside(
        function="flows.pages.app:pages_of",
        argument=store.uri,
        check="flows.study.form_values:served_form_problem",
    )


def pages_of(uri: str) -> Starlette:
    """Returns the pages of a store; the store is opened at the first request for a page.

    Args:
      uri: the store [URI].
    """

    @functools.cache
    def site() -> Site:
        made = Site(Store(uri), address, prefect="/v2")
        # To know an artifact's users, every manifest must be read, so the reading starts now.
        threading.Thread(target=made.uses.of_all, daemon=True).start()
        return made

    def answer(request: Request) -> Response:
        page = _page_of(request)
        try:
            if page.kind == "style":
                return Response(STYLE, media_type="text/css", headers=_HEADERS)
            # Cached for ever by the browser: what a key names never changes.
            if page.kind in IMAGES:
                data = site().picture(page)
                return Response(data, media_type=mime_type(data), headers=_HEADERS | _FOR_EVER)
            return HTMLResponse(site().html(page), headers=_HEADERS)
        except NoPageError as error:
            return HTMLResponse(site().lost(str(error)), status_code=404, headers=_HEADERS)

    def whose(request: Request) -> Response:
        """Returns the store whose pages are here, for runs that report to this server."""
        return JSONResponse({"store": uri})

    return Starlette(routes=[Route(f"/{WHOSE}", whose), Route("/{path:path}", answer)])


def _page_of(request: Request) -> Page:
    """Returns the page of an address."""
    # The raw path is split before unquoting, so that an escaped "/" stays inside its part.
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.decode("ascii", "replace").removeprefix(PAGES)
    kind, *parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    query = tuple((name, value) for name, value in request.query_params.items() if value)
    return Page(kind or "studies", tuple(parts), query)
