"""The log of a store's server, and what it says of errors: <store>/prefect/server.log, and .1.

Prefect's services (planning the runs of schedules, marking late runs, automations) run in the
background: one that dies each time fails nobody's request. Its error is a line here, and
`parcel status` counts them.

    2026-11-28T09:55:05+00:00 ERROR docket.dependencies: ↩ [ 12ms] schedule_deployments():
      InvalidRequestError: Can't evaluate bulk DML statement                     (in one line)
      in _insert_scheduled_flow_runs, prefect/server/models/deployments.py:1009

Prefect's messages may hold what its database has encrypted, such as the address of an alert. So of
an error the log has the first line, without addresses and the server's own secrets, and no values.
"""

import base64
import dataclasses
import datetime
import logging
import logging.handlers
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from infra.errors import one_line
from infra.prefect.private import open_private

_MAX_BYTES = 2**20
"""Size at which the log is put away as server.log.1, in place of an older one [bytes]."""
_MAX_MESSAGE = 400
"""Longest message of an error that is kept [characters]."""
_MAX_FRAMES = 12
"""Most places of a traceback that are kept, the innermost."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (?:ERROR|CRITICAL) (.*)")
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception): .*", re.MULTILINE)
_ADDRESS = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://\S+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerErrors:
    """Errors in the log of a server.

    Attributes:
      count: how many there are.
      since: time of the first of them.
      newest: time of the last.
      message: what the last one says, in one line.
      file: the log.
    """

    count: int
    since: datetime.datetime
    newest: datetime.datetime
    message: str
    file: Path

    @property
    def age(self) -> float:
        """Time since the newest [s]."""
        return (datetime.datetime.now(datetime.UTC) - self.newest).total_seconds()


def log_file(store: Path) -> Path:
    """Returns the path of the log of a store's server."""
    return store / "prefect" / "server.log"


def open_log(store: Path) -> IO[str]:
    """Begins the log of a server that starts; that of the server before is put away."""
    path = log_file(store)
    if path.exists() and path.stat().st_size:
        path.replace(path.with_suffix(".log.1"))
    return open_private(path, "w")


def read_errors(store: Path) -> ServerErrors | None:
    """Returns the errors in the log of a store's server; None if there are none."""
    path = log_file(store)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = [line for line in map(_LINE.fullmatch, lines) if line]
    if not found:
        return None
    return ServerErrors(
        count=len(found),
        since=datetime.datetime.fromisoformat(found[0][1]),
        newest=datetime.datetime.fromisoformat(found[-1][1]),
        message=one_line(found[-1][2]),
        file=path,
    )


def log_errors(store: Path, secrets: Sequence[str]) -> None:
    """Has the errors of every logger of this process, a server, written to the store's log.

    Once Prefect is imported, which sets the loggers up.

    Args:
      store: the store's folder.
      secrets: texts that are never written.
    """
    handler = _ServerLog(log_file(store), maxBytes=_MAX_BYTES, backupCount=1)
    handler.setLevel(logging.ERROR)
    handler.setFormatter(_ErrorLines(secrets))
    # Prefect gives some loggers handlers of their own, and lets nothing of theirs reach the root.
    known = map(logging.getLogger, list(logging.root.manager.loggerDict))
    for logger in (logging.root, *(each for each in known if not each.propagate)):
        logger.addHandler(handler)


class _ServerLog(logging.handlers.RotatingFileHandler):
    """Writes to a log that its owner alone can read, to which the process prints as well."""

    def _open(self) -> TextIOWrapper:
        log = open_private(Path(self.baseFilename), "a")
        for printed in (1, 2):
            os.dup2(log.fileno(), printed)
        return cast(TextIOWrapper, log)

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        # Where the file ends now: the process prints to it, too.
        assert self.stream is not None  # It is opened at once.
        return self.stream.seek(0, os.SEEK_END) >= self.maxBytes

    def doRollover(self) -> None:
        super().doRollover()
        if isinstance(self.formatter, _ErrorLines):
            self.formatter.forget()


class _ErrorLines(logging.Formatter):
    """An error as one line; where it was raised, the first time that it is seen."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        encoded = [base64.b64encode(secret.encode()).decode() for secret in secrets]
        self._secrets = [secret for secret in (*secrets, *encoded) if secret]
        self._seen: set[tuple[str, ...]] = set()

    def forget(self) -> None:
        """Says again where errors were raised: what was said is put away."""
        self._seen.clear()

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        error = record.exc_info[1] if record.exc_info else None
        message, places = self._redact_log_message(_error_of_traceback(record.getMessage())), []
        if error is not None:
            message = f"{message}: {self._error_text(_first_error_of_group(error))}"
            places = [*self._traceback_places(_first_error_of_group(error))]
        head = f"{when.isoformat(timespec='seconds')} {record.levelname} {record.name}: {message}"
        if (record.name, *places) in self._seen:
            return head
        self._seen.add((record.name, *places))
        return "\n".join([head, *places])

    def _traceback_places(self, error: BaseException) -> Iterator[str]:
        frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
        yield from (f"  in {f.name}, {f.filename}:{f.lineno}" for f in frames)
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            yield f"  from {self._error_text(_first_error_of_group(cause))}"

    def _error_text(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {self._redact_log_message(str(error))}"

    def _redact_log_message(self, text: str) -> str:
        """Returns the first line of a message without secrets."""
        (line, *_) = [*filter(None, map(str.strip, text.splitlines())), ""]
        for secret in self._secrets:
            line = line.replace(secret, "…")
        return one_line(_ADDRESS.sub(r"\1://…", line))[:_MAX_MESSAGE]


def _error_of_traceback(text: str) -> str:
    """Returns a message; of a traceback, as uvicorn has of a start that fails, its end."""
    if not text.lstrip().startswith("Traceback "):
        return text
    found = _RAISED.findall(text)
    return found[-1] if found else text


def _first_error_of_group(error: BaseException) -> BaseException:
    """Returns an error, or of a group of errors the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
