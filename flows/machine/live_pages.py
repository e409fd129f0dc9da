"""The live pages of a store with what its server knows: schedules, and runs that it can start."""

import dataclasses
import threading
import time

from starlette.applications import Starlette

from flows.pages import app
from flows.pages.overview import EndedRun, ServerFacts, continuing_form

_ASK_EVERY = 5.0
"""Age from which the facts are read again, at the next request [s]."""
_LOAD = 5.0
"""Least age from which they are read again, in times that the last reading took: what a schedule
would run is found by looking all its steps up."""


def server_pages(uri: str) -> Starlette:
    """Returns the pages of a store, for the process of its server.

    Args:
      uri: the store [URI].
    """
    return app.store_pages(uri, _NewestFacts(), continue_run, _ui_keys)


class _NewestFacts:
    """What this process's server knows, read in a thread: a page waits for it for a moment only.

    Args:
      patience: longest wait of a page for facts that are being read [s]; then it shows the last.
    """

    def __init__(self, patience: float = 2.0) -> None:
        self._patience = patience
        self._facts: ServerFacts | None = None
        self._read_at = self._asked_at = float("-inf")
        self._took = 0.0
        self._asking = threading.Lock()
        self._is_read = threading.Event()

    def __call__(self) -> ServerFacts | None:
        """Returns the facts read last, with their age if that is long ago; None at first."""
        if time.monotonic() - self._asked_at <= max(_ASK_EVERY, _LOAD * self._took):
            return self._facts_with_age()
        # Whoever holds the lock is reading already.
        if self._asking.acquire(blocking=False):
            self._is_read.clear()
            threading.Thread(target=self._refresh_server_facts, daemon=True).start()
        self._is_read.wait(self._patience)
        return self._facts_with_age()

    def _facts_with_age(self) -> ServerFacts | None:
        """Returns the facts, with their age if that is more than a moment."""
        age = time.monotonic() - self._read_at
        if self._facts is None or age <= _ASK_EVERY + self._took:
            return self._facts
        return dataclasses.replace(self._facts, age=age)

    def _refresh_server_facts(self) -> None:
        began = time.monotonic()
        try:
            # Its imports, which take a second, come here too.
            from flows.sweep.schedule import read_server_facts

            self._facts, self._read_at = read_server_facts(), time.monotonic()
        finally:  # Also where the server did not answer: what is shown is then as old as it was.
            self._took, self._asked_at = time.monotonic() - began, time.monotonic()
            self._asking.release()
            self._is_read.set()


def _ui_keys(sort: str, prefect_id: str) -> list[str]:
    """Returns the keys of the UI's pages of a task run, or of the one page of an id."""
    from prefect.client.orchestration import get_client

    from infra.prefect.best_effort import best_effort

    of = "task_runs" if sort == "task-run" else "artifacts"
    asked = {of: {"id": {"any_": [prefect_id]}}}
    with get_client(sync_client=True) as client:
        answer = best_effort(client.request, "POST", "/artifacts/filter", json=asked)
    return [page["key"] for page in answer.json() if page["key"]] if answer else []


def continue_run(store: str, run: EndedRun) -> str:
    """Starts the run that continues another, as its form would; returns its id.

    Args:
      store: the store [URI].
      run: the run that is continued.

    Raises:
      ConfigError: if the server has no form, or refuses it.
    """
    from flows.sweep.schedule import start_from_form

    return start_from_form("study", {**continuing_form(run.record), "store": store})
