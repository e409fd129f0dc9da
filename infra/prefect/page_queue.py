"""Publishes the pages of a run from a thread of its own, so that no server can hold the work."""

import contextlib
import contextvars
import dataclasses
import queue
import threading
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import PrefectHTTPStatusError

from infra.credentials import redact_text
from infra.prefect.best_effort import best_effort
from infra.prefect.server import TOGETHER

_PATIENCE = 10.0
"""Time without a published page after which the run ends without the rest [s]."""
_MAX_TOGETHER = 16
"""Most pages in one request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UIPage:
    """A page as Prefect stores it, which calls it an artifact.

    Attributes:
      key: key of the page in the UI; a later page replaces an earlier one of the same key.
      text: the page in Markdown; for a progress page, how much is done [%].
      description: description of the page, in one line.
      task_run_id: id of the row that it belongs to; None for a page of the whole run.
    """

    key: str
    text: str | float
    description: str
    task_run_id: str | None = None

    def redacted(self) -> Self:
        """Returns the page without credentials."""
        text = redact_text(self.text) if isinstance(self.text, str) else self.text
        return dataclasses.replace(self, text=text, description=redact_text(self.description))


class PageQueue:
    """The pages of one run that are still to be published; safe to call from several threads.

    `parcel lineage rebuild` publishes what could not be published here.

    Args:
      flow_run_id: id of the Prefect run; with "", nothing is published.
    """

    def __init__(self, flow_run_id: str) -> None:
        self.flow_run_id = flow_run_id
        self._pages: queue.SimpleQueue[UIPage | None] = queue.SimpleQueue()
        # Of a node's progress only the newest is published, however far behind the server is: the
        # queue has the page's key once, and what it is to say is looked up when its turn comes.
        self._progress: dict[str, UIPage] = {}
        self._progress_ids: dict[str, str] = {}
        self._takes_together = True  # Until the server refuses: it may be one of Prefect alone.
        self._lock = threading.Lock()
        self._last_end = time.monotonic()
        # In the context of this thread, which holds Prefect's settings and the flow run.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._publish_all,), daemon=True)

    def __enter__(self) -> Self:
        if self.flow_run_id:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.flow_run_id:
            return
        self._pages.put(None)
        self._last_end = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - self._last_end < _PATIENCE:
            self._thread.join(0.1)

    def put(self, page: UIPage) -> None:
        """Publishes a page, some time later, without credentials."""
        if self.flow_run_id:
            self._pages.put(page.redacted())

    def put_progress(self, page: UIPage) -> None:
        """Publishes how far a node is, some time later, if nothing newer is known then."""
        with self._lock:
            is_queued = page.key in self._progress
            self._progress[page.key] = page.redacted()
        if not is_queued:
            self.put(page)

    def _publish_all(self) -> None:
        with contextlib.ExitStack() as stack:
            client: SyncPrefectClient | None = None
            pages: list[UIPage | None] = []
            while None not in pages:
                # All that wait by now: a request costs as much as several pages.
                pages = [self._pages.get()]
                while len(pages) < _MAX_TOGETHER and not self._pages.empty():
                    pages.append(self._pages.get())
                client = client or best_effort(
                    lambda: stack.enter_context(get_client(sync_client=True))
                )
                if client is not None:
                    self._publish_pages(client, [page for page in pages if page is not None])
                self._last_end = time.monotonic()

    def _publish_pages(self, client: SyncPrefectClient, pages: Sequence[UIPage]) -> None:
        texts = [page for page in pages if isinstance(page.text, str)]
        if len(texts) > 1 and best_effort(self._publish_together, client, texts):
            pages = [page for page in pages if isinstance(page.text, float)]
        for page in pages:
            with self._lock:
                page = self._progress.pop(page.key, page)
            best_effort(self._publish_ui_page, client, page)
            self._last_end = time.monotonic()

    def _publish_together(self, client: SyncPrefectClient, pages: Sequence[UIPage]) -> bool:
        """Publishes pages in one request; returns False if the server takes none of them so."""
        if self._takes_together:
            try:
                fields = [self._page_fields(page) for page in pages]
                client.request("POST", TOGETHER, json=fields)  # pyright: ignore[reportArgumentType]
            except PrefectHTTPStatusError:
                self._takes_together = False
        return self._takes_together

    def _publish_ui_page(self, client: SyncPrefectClient, page: UIPage) -> None:
        # Requests of our own: Prefect's methods send an event after each, see
        # `infra.prefect.app.send_no_events_of_pages`.
        if page.key in self._progress_ids:
            update = ArtifactUpdate(data=page.text, description=page.description)
            place = {"id": self._progress_ids[page.key]}
            client.request("PATCH", "/artifacts/{id}", json=_fields(update), path_params=place)
            return
        created = client.request("POST", "/artifacts/", json=self._page_fields(page))
        if isinstance(page.text, float):
            self._progress_ids[page.key] = created.json()["id"]

    def _page_fields(self, page: UIPage) -> dict[str, Any]:
        values: dict[str, Any] = {
            "type": "progress" if isinstance(page.text, float) else "markdown",
            "key": page.key,
            "data": page.text,
            "description": page.description,
            "flow_run_id": uuid.UUID(self.flow_run_id),
            "task_run_id": uuid.UUID(page.task_run_id) if page.task_run_id else None,
        }
        return _fields(ArtifactCreate(**values))


def _fields(sent: ArtifactCreate | ArtifactUpdate) -> dict[str, Any]:
    return sent.model_dump(mode="json", exclude_unset=True)
