"""Keeps the journal of a run under way, and makes its rows right however the run ends."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.errors import one_line_message
from infra.prefect import journal as journals
from infra.prefect.journal import Journal
from infra.prefect.published import published
from infra.prefect.rows import flush, is_cancelling, settle
from infra.processes.signals import add_exit_hook, install_signal_handlers

_LAST_PATIENCE = 1.5
"""Time for the server to write the rows of a run that a signal ends [s]. The next command on the
store settles what is missing then."""


@contextlib.contextmanager
def recorded(
    store: Path, flow_run_id: str, *, cancel: Callable[[], None] = lambda: None
) -> Iterator[Journal]:
    """Yields the journal of a flow run; settles its rows on exit, or at a signal.

    Prefect sets the run's own state, unless a signal ends the run.

    Args:
      store: the store's folder on this machine.
      flow_run_id: id of the Prefect run; "" if there is none.
      cancel: stops work that would outlive this process; called only if a person ended the run, by
        Ctrl-C or in the UI.
    """
    install_signal_handlers()
    journal = Journal(store, flow_run_id)

    def at_signal(number: signal.Signals) -> None:
        wanted = number == signal.SIGINT or published(is_cancelling, flow_run_id)
        journal.close("cancelled" if wanted else "crashed", f"{number.name} came")
        if wanted:
            cancel()
        _settle(journal, patience=_LAST_PATIENCE, flow_run=True)

    add_exit_hook(at_signal)
    try:
        yield journal
    except BaseException as error:
        reason = one_line_message(error)
        journal.close("failed" if isinstance(error, Exception) else "crashed", reason)
        raise
    finally:
        _settle(journal, patience=15.0, flow_run=False)


def _settle(journal: Journal, *, patience: float, flow_run: bool) -> None:
    record = journals.read(journal.path) if journal.flow_run_id else None
    if record is not None:
        published(flush, patience)
        published(settle, record, patience=patience, flow_run=flow_run)
