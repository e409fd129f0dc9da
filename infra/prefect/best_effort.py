"""Calls to the UI, guarded so that one that fails, or never ends, never stops the work."""

import contextlib
import contextvars
import os
import queue
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from infra.errors import one_line_message

P = ParamSpec("P")
R = TypeVar("R")

DEADLINE = 20.0
"""Longest wait for a call to the UI [s]; the call itself goes on in a thread of its own."""
HEALTH_TIMEOUT = 5.0
"""Longest wait for the server to say that it is well [s]."""
_LOOK_EVERY = 5.0
"""Interval between two checks whether the server answers [s]."""

_lock = threading.Lock()
_last_look = ("", float("-inf"), True)
"""The server that was looked at last [URI], when, and whether it answered."""
_warned: set[str] = set()
"""Servers of which the terminal has a line."""


def best_effort(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Makes a call to Prefect's API and returns its result, or None if it failed or is late.

    Prefect retries a failing call for more than a minute, and waits a minute for each answer. So no
    call is made while the server does not answer, and none is waited for beyond `DEADLINE`.
    """
    ended: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((call(*args, **kwargs), None))
        except Exception as error:
            ended.put((None, error))

    # The call sees the flow run that it belongs to, which is in the context of this thread.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    with warn_only():
        if not server_answers():
            raise ConnectionError(f"no server answers at {os.environ.get('PREFECT_API_URL')}")
        thread.start()
        try:
            result, error = ended.get(timeout=DEADLINE)
        except queue.Empty:
            raise TimeoutError(f"the server did not answer within {DEADLINE:.0f} s") from None
        if error is not None:
            raise error
        return result
    return None


@contextlib.contextmanager
def warn_only() -> Iterator[None]:
    """Has an error within end there, with a line on the terminal for the first of each server."""
    try:
        yield
    except Exception as error:
        server = os.environ.get("PREFECT_API_URL", "")
        with _lock:
            if server in _warned:
                return
            _warned.add(server)
        why = one_line_message(error)
        print(f"parcel: the UI could not be updated ({why}); the work continues.", file=sys.stderr)


def server_answers() -> bool:
    """Returns whether the server of `PREFECT_API_URL` answers, by a look that is seconds old."""
    global _last_look
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return True  # The user's Prefect profile may name a server.
    with _lock:
        server, looked_at, answers = _last_look
        if server != url or time.monotonic() - looked_at > _LOOK_EVERY:
            answers = is_healthy(url, HEALTH_TIMEOUT)
            _last_look = (url, time.monotonic(), answers)
        return answers


def is_server_away() -> bool:
    """Returns whether the server did not answer when it was last looked at."""
    return not _last_look[2]


def is_healthy(api: str, timeout: float) -> bool:
    """Returns whether the API of a Prefect server says that it is well.

    Args:
      api: address of the API [URI].
      timeout: longest wait for its answer [s].
    """
    # Only an answer counts: for a server that was stopped, the kernel still accepts connections.
    try:
        with urllib.request.urlopen(f"{api.rstrip('/')}/health", timeout=timeout) as answer:
            return answer.status == 200
    except (OSError, ValueError):  # ValueError: the address is none.
        return False
