"""The live pages of a store, as an ASGI application beside Prefect's own."""

import functools
import threading
import urllib.parse
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from flows.pages.overview import EndedRun, OverviewReader, ServerFacts
from flows.pages.page import IMAGES, WHOSE, Page, address
from flows.pages.pictures import mime_type
from flows.pages.site import SHARED_TEXTS, NoPageError, Site, UIKeys
from infra.errors import ConfigError
from infra.prefect.server import ABOUT, PAGES
from infra.store.store import Store

_HEADERS = {
    # A page may load nothing from other hosts, run no script but ours, which can send nothing
    # anywhere, and not be shown in a frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Headers of images: the content under a key never changes."""


def store_pages(
    uri: str,
    server: Callable[[], ServerFacts | None] = lambda: None,
    continue_run: Callable[[str, EndedRun], str] | None = None,
    ui_keys: UIKeys = lambda sort, prefect_id: (),
) -> Starlette:
    """Returns the pages of a store; the store is opened at the first request for a page.

    Args:
      uri: the store [URI].
      server: function that returns what the store's server knows; it must be fast.
      continue_run: function from the store and a run that ended to the id of a flow run that
        continues it; None: no run is started from a page.
      ui_keys: function that names the keys of pages in Prefect's UI, see `Site.page_about`.
    """

    @functools.cache
    def site() -> Site:
        store = Store(uri)
        made = Site(store, address, prefect="/v2", overview=OverviewReader(store, server))
        # To know an artifact's users, every manifest must be read, so the reading starts now.
        threading.Thread(target=made.uses.of_all, daemon=True).start()
        return made

    def answer(request: Request) -> Response:
        page = _page_of_request(request)
        try:
            if page.kind in SHARED_TEXTS:
                text, media_type = SHARED_TEXTS[page.kind]
                return Response(text, media_type=media_type, headers=_HEADERS)
            if page.get("as"):
                data, media_type, name = site().download(page)
                named = {"Content-Disposition": f'attachment; filename="{name}"'}
                return Response(data, media_type=media_type, headers=_HEADERS | named)
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

    def about(request: Request) -> Response:
        """Leads on from a page of Prefect's to ours about what it shows."""
        shown = urllib.parse.urlsplit(request.headers.get("referer", "")).path
        page = site().page_about(shown, ui_keys)
        return RedirectResponse(address(page), status_code=303, headers=_HEADERS)

    def go_on(request: Request) -> Response:
        """Starts the run that continues another one, and shows it."""
        run = request.path_params["run"]
        ended = {one.run: one for one in site().overview().ended}
        try:
            if continue_run is None or run not in ended:
                raise ConfigError(f"Nothing here continues a run {run!r}.")
            started = continue_run(uri, ended[run])
        except ConfigError as error:
            return HTMLResponse(site().lost(str(error)), status_code=409, headers=_HEADERS)
        # Seen after a POST, so that a reload of the page does not start it again.
        return RedirectResponse(f"/v2/runs/flow-run/{started}", status_code=303, headers=_HEADERS)

    return Starlette(
        routes=[
            Route(f"/{WHOSE}", whose),
            Route(f"/{ABOUT}", about),
            Route("/continue/{run}", go_on, methods=["POST"]),
            Route("/{path:path}", answer),
        ]
    )


def _page_of_request(request: Request) -> Page:
    """Returns the page of an address."""
    # The raw path is split before unquoting, so that an escaped "/" stays inside its part.
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.decode("ascii", "replace").removeprefix(PAGES)
    kind, *parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    query = tuple((name, value) for name, value in request.query_params.multi_items() if value)
    return Page(kind or "start", tuple(parts), query)
