"""The live pages of a store with what its server knows: schedules, and runs that it can start."""

import threading
import time

from starlette.applications import Starlette

from flows.lineage.overview import EndedRun, ServerFacts, continuing_form
from flows.pages import app
from infra.prefect.server import Beside
from infra.store.store import Store

_ASK_EVERY = 20.0
"""Age from which the facts are read again, at the next request [s]: what a schedule would run is
found by looking all its steps up."""


def beside(store: Store) -> Beside:
    """Returns the names of the functions that make a server's pages and check its forms."""
    return Beside(
        function="flows.study.live_pages:pages_of",
        argument=store.uri,
        check="flows.study.form_values:served_form_problem",
    )


def pages_of(uri: str) -> Starlette:
    """Returns the pages of a store, for the process of its server.

    Args:
      uri: the store [URI].
    """
    return app.pages_of(uri, _NewestFacts(), continue_run)


class _NewestFacts:
    """What this process's server knows, read in a thread, so that no page waits for it."""

    def __init__(self) -> None:
        self._facts: ServerFacts | None = None
        self._asked = float("-inf")
        self._asking = threading.Lock()

    def __call__(self) -> ServerFacts | None:
        """Returns what was read last, None at first; has it read again if that is long ago."""
        is_old = time.monotonic() - self._asked > _ASK_EVERY
        # Whoever holds the lock is reading already.
        if is_old and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, daemon=True).start()
        return self._facts

    def _ask(self) -> None:
        try:
            # Its imports, which take a second, come here too.
            from flows.study.schedule import read_server_facts

            self._facts = read_server_facts()
        finally:
            self._asked = time.monotonic()
            self._asking.release()


def continue_run(store: str, run: EndedRun) -> str:
    """Starts the run that continues another, as its form would; returns its id.

    Args:
      store: the store [URI].
      run: the run that is continued.

    Raises:
      ConfigError: if the server has no form, or refuses it.
    """
    from flows.study.schedule import start_from_form

    return start_from_form("study", {**continuing_form(run.record), "store": store})
