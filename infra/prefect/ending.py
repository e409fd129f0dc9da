"""Keeps the journal of a run under way, and makes its rows right however the run ends."""

import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.errors import one_line_message, redact_error
from infra.prefect import journal as journals
from infra.prefect.best_effort import best_effort
from infra.prefect.journal import Journal
from infra.prefect.log_records import redact_logs
from infra.prefect.rows import flush, is_cancelling, settle, settle_earlier_try
from infra.processes.signals import add_exit_hook, install_signal_handlers

_CANCEL_EVERY = 3.0
"""Interval between two looks at whether somebody cancelled the run in the UI [s]."""

_past_runs: list[Callable[[], None]] = []
"""Each takes the exit hook of a run that is over off the list of hooks."""

_LAST_FLUSH = 0.7
"""Time for Prefect's queues to be sent when a signal ends a run [s]."""


@contextlib.contextmanager
def journal_of(
    store: Path, flow_run_id: str, *, cancel: Callable[[], None] = lambda: None
) -> Iterator[Journal]:
    """Yields the journal of a flow run, and closes it on exit, at a signal, or if it is cancelled.

    Prefect sets the run's own state, and the rows of its nodes, unless a signal ends the run.

    Args:
      store: the store's folder on this machine.
      flow_run_id: id of the Prefect run; "" if there is none.
      cancel: stops work that would outlive this process; called only if a person ended the run, by
        Ctrl-C or in the UI.
    """
    install_signal_handlers()
    redact_logs()
    journal = Journal(store, flow_run_id)

    def at_signal(number: signal.Signals) -> None:
        is_wanted = number == signal.SIGINT or best_effort(is_cancelling, flow_run_id)
        journal.close("cancelled" if is_wanted else "crashed", f"{number.name} came")
        if is_wanted:
            cancel()
        # The process is about to exit. What is not settled in time here is settled by the next
        # command on the store.
        record = journals.read(journal.path) if flow_run_id else None
        if record is not None:
            best_effort(flush, _LAST_FLUSH)
            best_effort(settle, record)

    # A hook outlasts its run, whose rows Prefect has yet to set, but not the next run's beginning.
    while _past_runs:
        _past_runs.pop()()
    remove_hook = add_exit_hook(at_signal)
    over = threading.Event()
    if flow_run_id:
        best_effort(settle_earlier_try, flow_run_id)
        # In the context of this thread, which holds Prefect's settings.
        run = contextvars.copy_context().run
        polling = threading.Thread(
            target=run, args=(_end_if_cancelled, flow_run_id, over), daemon=True
        )
        polling.start()
    try:
        yield journal
    except BaseException as error:
        reason = one_line_message(error)
        journal.close("failed" if isinstance(error, Exception) else "crashed", reason)
        redact_error(error)  # Prefect sends its message with the state of the run.
        raise
    finally:
        over.set()
        _past_runs.append(remove_hook)


def _end_if_cancelled(flow_run_id: str, over: threading.Event) -> None:
    """Ends this process like Ctrl-C once somebody cancels its run in the UI.

    Nobody else would: Prefect's runner ends only processes that it has started itself.
    """
    while not over.wait(_CANCEL_EVERY):
        if best_effort(is_cancelling, flow_run_id):
            print("the run is cancelled, as somebody asked in the UI or by the API", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
            return
