"""Writes the pages of one run as a folder of files, to send or to open without a server."""

import collections
import hashlib
import re
from pathlib import Path

from flows.pages.page import IMAGES, SHARED, Page
from flows.pages.run_results import study_of
from flows.pages.site import SHARED_TEXTS, Site
from infra.store.lineage import lineage_edges
from infra.store.store import Store

_SERVED = ("start", "runs", "compare", "diff", "seen")
"""Kinds of pages that only a server has: they depend on free input, or on other runs."""


def write_folder(store: Store, run: str, out: Path, *, max_items: int) -> int:
    """Writes the pages of a run, beginning with `index.html`, and returns their number.

    The pages are those that can be reached from its table. There are no forms: each list of items
    of one column, or of two columns at the same budget, is a separate page.

    Args:
      store: the store of the run.
      run: name of the run.
      out: folder to write to; created if it does not exist.
      max_items: number of items in each list; the others are left out.

    Raises:
      ConfigError: if there is no such run.
      OSError: if the folder cannot be written.
    """
    # The site is walked from its first page: rendering a page calls `link` for everything that it
    # refers to, and `link` queues what is new. So exactly what can be reached is written:
    #
    #   index.html ─▶ cell ─▶ items ─▶ item ─▶ picture
    #              └▶ plot    …
    study = study_of(store, run)
    first = Page("results", (study.run,))
    # What this run's table was made from, and so what a page of it may lead to.
    lineage = {
        study.results.key,
        *(source.key for source, *_ in lineage_edges(store, study.results.key)),
    }
    names: dict[Page, str] = {first: "index.html"}
    waiting = collections.deque([first])

    def link(page: Page) -> str | None:
        """Returns the file of a page, and queues the page; None if it is not part of this run."""
        known = names.get(page)
        if known is None:
            # A link out of this run, say to an artifact of another study, has no file: it is no
            # link.
            of_run = page.parts[:1] == (study.run,) or page.kind in SHARED
            if page.kind in _SERVED or not (of_run or page.parts[0] in lineage):
                return None
            known = names[page] = _page_file_name(page)
            waiting.append(page)
        return known

    site = Site(store, link, page_size=max_items, is_folder=True)
    out.mkdir(parents=True, exist_ok=True)
    pages = 0
    while waiting:
        page = waiting.popleft()
        path = out / names[page]
        if page.kind in SHARED:
            path.write_text(SHARED_TEXTS[page.kind][0], encoding="utf-8")
        elif page.get("as"):
            path.write_bytes(site.download(page).data)
        elif page.kind in IMAGES:
            path.write_bytes(site.picture(page))
        else:
            path.write_text(site.html(page), encoding="utf-8")
            pages += 1
    return pages


def _page_file_name(page: Page) -> str:
    """Returns the name of a page's file: readable, with a digest that makes it unique."""
    words = (page.kind, *page.parts[-3:], *(value for _, value in page.query))
    readable = re.sub(r"[^\w@=.-]+", "-", "-".join(words))[:80].strip("-.")
    digest = hashlib.sha256(repr(page).encode()).hexdigest()[:10]
    endings = {"style": "css", "script": "js", "picture": "img", "plot": "png", "mask": "png"}
    ending = page.get("as") or endings.get(page.kind, "html")
    return f"{readable}-{digest}.{ending}"
