"""Log lines of a run, which Prefect sends to its server: no credentials, no control characters."""

import contextlib
import logging
from typing import Any

from infra.credentials import redact_text
from infra.errors import traceback_text
from infra.terminal import printable_lines


def redact_logs() -> None:
    """Has every log line of this process written without either, by whatever logs it."""
    logging.setLogRecordFactory(_make_record)


def _make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = logging.LogRecord(*args, **kwargs)
    # A line that cannot be formatted stays: the handler reports that, and does not write it.
    with contextlib.suppress(TypeError, ValueError):
        record.msg, record.args = printable_lines(redact_text(record.getMessage())), ()
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = printable_lines(
            traceback_text(record.exc_info[1])
        ).rstrip()  # What handlers then write.
    return record
