"""Calls to the UI, guarded so that one that fails never stops the work."""

import os
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from infra.errors import one_line_message

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_EVERY = 5.0
"""Interval between two checks whether the server answers [s]."""

_lock = threading.Lock()
_seen = (float("-inf"), False)
_warned = False


def published(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Makes a call to Prefect's API and returns its result, or None if it failed.

    Prefect retries a failing call for more than a minute, so none is made while no server answers.
    """
    try:
        if not _server_answers():
            raise ConnectionError(f"no server answers at {os.environ.get('PREFECT_API_URL')}")
        return call(*args, **kwargs)
    except Exception as error:
        _warn_once(error)
        return None


def _server_answers() -> bool:
    global _seen
    url = urllib.parse.urlsplit(os.environ.get("PREFECT_API_URL", ""))
    if url.hostname is None:
        return True  # The user's Prefect profile may name a server.
    with _lock:
        if time.monotonic() - _seen[0] > _LOOK_EVERY:
            default = 443 if url.scheme == "https" else 80
            try:
                socket.create_connection((url.hostname, url.port or default), timeout=2).close()
                _seen = (time.monotonic(), True)
            except OSError:
                _seen = (time.monotonic(), False)
        return _seen[1]


def _warn_once(error: Exception) -> None:
    global _warned
    with _lock:
        if _warned:
            return
        _warned = True
    reason = one_line_message(error)
    print(f"parcel: the UI could not be updated ({reason}); the work continues.", file=sys.stderr)
