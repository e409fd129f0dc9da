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
    # Nothing of a page is fetched from elsewhere, run as a script, or shown in another's frame.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Of images: what a key names does not change."""


def beside(store: Store) -> Beside:
    """Returns how the server of a store finds its pages, and who checks its forms."""
    return Beside(
        function="flows.pages.app:pages_of", argument=store.uri, check="flows.study.asked:problem"
    )


def pages_of(uri: str) -> Starlette:
    """Returns the pages of a store; the store is opened when the first one is asked for.

    Args:
      uri: the store.
    """

    @functools.cache
    def site() -> Site:
        made = Site(Store(uri), address, prefect="/v2")
        # Who uses what is a matter of every manifest: by the time somebody asks, they are read.
        threading.Thread(target=made.uses.of_all, daemon=True).start()
        return made

    def answer(request: Request) -> Response:
        page = _page_of(request)
        try:
            if page.kind == "style":
                return Response(STYLE, media_type="text/css", headers=_HEADERS)
            if page.kind in IMAGES:
                data = site().picture(page)
                return Response(data, media_type=mime_type(data), headers=_HEADERS | _FOR_EVER)
            return HTMLResponse(site().html(page), headers=_HEADERS)
        except NoPageError as error:
            return HTMLResponse(site().lost(str(error)), status_code=404, headers=_HEADERS)

    def whose(request: Request) -> Response:
        """Tells a run that reports to this server whether its store's pages are here."""
        return JSONResponse({"store": uri})

    return Starlette(routes=[Route(f"/{WHOSE}", whose), Route("/{path:path}", answer)])


def _page_of(request: Request) -> Page:
    """Returns the page of an address; parts are told apart before their escapes are undone."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.decode("ascii", "replace").removeprefix(PAGES)
    kind, *parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    query = tuple((name, value) for name, value in request.query_params.items() if value)
    return Page(kind or "studies", tuple(parts), query)
