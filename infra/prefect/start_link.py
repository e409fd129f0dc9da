"""Links to our pages on every page of Prefect's UI."""

import re
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.prefect.server import ABOUT, PAGES

_HEIGHT = 34
"""Height of the strip with the links [pixels]."""

# The strip takes its place in the flow of the page, above the UI, and scrolls away with it. So it
# cannot lie on a control of Prefect's, whatever the window's size; what Prefect fixes to the window
# (the navigation, dialogs, messages) may lie on the strip, whose links are at the other end:
#
#   ┌────────────┬────────────────────────────────┐
#   │ navigation │ [results, lineage][ start page ]│  ← the strip
#   │            ├────────────────────────────────┤
#   │            │ Runs                           │
#
# Prefect's script changes the page under the strip and its address. So the first link is the same
# everywhere, and whoever answers it sees by the browser's `Referer` which page it was on.
#
# Prefect makes its pages as high as the window. Without the two rules on heights, all would be
# higher than that by the strip, and have a scroll bar. The last one lifts messages off the buttons
# at the end of a form, Submit and Cancel.
_STRIP = f"""
<style>
#parcel {{ box-sizing: border-box; height: {_HEIGHT}px; padding: 5px 16px; text-align: right;
  font: 14px/24px system-ui, sans-serif }}
#parcel a {{ display: inline-block; padding: 0 12px; border-radius: 6px; background: #0b5cad;
  color: #fff; text-decoration: none; margin-left: 6px }}
.min-h-svh, .min-h-screen {{ min-height: calc(100svh - {_HEIGHT}px) !important }}
.h-svh:not(.fixed), .h-screen:not(.fixed) {{ height: calc(100svh - {_HEIGHT}px) !important }}
[data-sonner-toaster] {{ --offset-bottom: 64px !important;
  --mobile-offset-bottom: 64px !important }}
</style>
<div id="parcel"><a href="{PAGES}/{ABOUT}">results and lineage</a>
<a href="{PAGES}/">start page</a></div>
""".encode()
_BODY = re.compile(rb"<body[^>]*>")

_ANEW = (b"if-none-match", b"if-modified-since", b"accept-encoding")
"""Headers by which a browser says what it has kept of a page, and that it may come compressed."""
_OF_BODY = (b"content-length", b"etag", b"last-modified")
"""Headers that hold for the body as it was."""


class StartLink:
    """Adds links to our pages to every page of Prefect's UI: about what it shows, and the start.

    Args:
      app: application that answers the requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_get = scope["type"] == "http" and scope["method"] == "GET"
        if not is_get or not asks_for_page(dict(scope["headers"])):
            await self._app(scope, receive, send)
            return
        # Asked for anew each time, since what a browser has kept may be without the link; and as
        # plain text.
        asked = [header for header in scope["headers"] if header[0] not in _ANEW]
        start: Message | None = None
        body = b""

        async def sending(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                if headers.get(b"content-type", b"").startswith(b"text/html"):
                    start = message  # Sent once the length of the whole page is known.
                    return
            elif start is not None and message["type"] == "http.response.body":
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                whole = _BODY.sub(lambda tag: tag[0] + _STRIP, body, count=1)
                headers = [h for h in start["headers"] if h[0] not in _OF_BODY]
                headers.append((b"content-length", str(len(whole)).encode()))
                await send({**start, "headers": headers})
                message = {"type": "http.response.body", "body": whole}
            await send(message)

        await self._app({**scope, "headers": asked}, receive, sending)


def asks_for_page(headers: Mapping[bytes, bytes]) -> bool:
    """Returns whether a browser asks for a page, rather than a program for data."""
    return b"text/html" in headers.get(b"accept", b"")
