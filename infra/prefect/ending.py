"""Keeps the journal of a run under way, and makes its rows right however the run ends.

Log lines of the run, which Prefect sends to its server, hold no credentials meanwhile.
"""

import contextlib
import contextvars
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infra.credentials import redact_text
from infra.errors import one_line_message, redact_error, traceback_text
from infra.prefect import journal as journals
from infra.prefect.best_effort import best_effort
from infra.prefect.journal import Journal
from infra.prefect.rows import flush, is_cancelling, settle, settle_earlier_try
from infra.processes.signals import add_exit_hook, install_signal_handlers
from infra.terminal import printable_lines

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
        record = journals.read_journal(journal.path) if flow_run_id else None
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


def redact_logs() -> None:
    """Has every log line of this process written without credentials and control characters."""
    logging.setLogRecordFactory(_make_record)


def _make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = logging.LogRecord(*args, **kwargs)
    # A line that cannot be formatted stays: the handler reports that, and does not write it.
    with contextlib.suppress(TypeError, ValueError):
        record.msg, record.args = printable_lines(redact_text(record.getMessage())), ()
    if record.exc_info and record.exc_info[1] is not None:
        # Handlers then write this text.
        record.exc_text = printable_lines(traceback_text(record.exc_info[1])).rstrip()
    return record
