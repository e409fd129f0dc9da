"""The identity of one of our pages, and its address on a server."""

import base64
import functools
import json
import os
import urllib.parse
import urllib.request
from typing import NamedTuple

from infra.prefect.server import PAGES

WHOSE = "store.json"
"""Path below `PAGES` of a JSON file that names the store whose pages these are."""

SHARED = ("style", "script")
"""Kinds of pages that all others load: the style sheet, and the script of the tables."""

IMAGES = ("picture", "mask", "plot")
"""Kinds of pages that are images, not HTML."""

_ANSWER_TIMEOUT = 5.0
"""Time for the server to answer whose pages it has [s]."""


class Page(NamedTuple):
    """The identity of a page.

    Attributes:
      kind: "start", "runs", "results", "curves", "cell", "items", "item", "compare", "artifact",
        "diff", "seen"; one of `IMAGES`; or one of `SHARED`.
      parts: subject of the page: a run, a benchmark, a key.
      query: (name, value) pairs of the choices on the page; with "as", the page is a file of what
        it shows, see `flows.pages.downloads`.
    """

    kind: str
    parts: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """Returns the choice under a name; "" if there is none."""
        return dict(self.query).get(name, "")

    def all(self, name: str) -> list[str]:
        """Returns every choice under a name, in order: of boxes that were ticked."""
        return [value for known, value in self.query if known == name]


def address(page: Page) -> str:
    """Returns the path at which a server has a page."""
    words = () if page.kind == "start" else (page.kind, *page.parts)
    path = "/".join((PAGES, *(urllib.parse.quote(word, safe="@:") for word in words)))
    query = f"?{urllib.parse.urlencode(page.query)}" if page.query else ""
    return f"{path}{'' if words else '/'}{query}"


def are_beside(store: str) -> bool:
    """Returns whether the server that this process reports to has the pages of a store.

    Args:
      store: the store [URI].
    """
    return _are_beside(os.environ.get("PREFECT_API_URL", ""), store)


@functools.cache
def _are_beside(api: str, store: str) -> bool:
    if not api:
        return False
    asked = urllib.request.Request(f"{api.rstrip('/').removesuffix('/api')}{PAGES}/{WHOSE}")
    if auth := os.environ.get("PREFECT_API_AUTH_STRING"):
        asked.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    try:
        with urllib.request.urlopen(asked, timeout=_ANSWER_TIMEOUT) as answer:
            return json.load(answer)["store"] == store
    except (OSError, ValueError, KeyError, TypeError):
        return False  # The server answered with a page of Prefect's, or not at all.
