"""Ends the command within seconds of a signal, whatever its libraries are doing.

Prefect, Ray and Beam each have their own idea of Ctrl-C, some wait for threads that wait for
workers. So nothing is unwound: a thread of ours hears of the signal, does the few things that must
be done, and leaves; the family's guardian clears up behind. The thread reads Python's wakeup
pipe, which is written to even where a library replaced the handler or the main thread is busy.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from infra.processes.family import Family

_AT_MOST = 3.5
"""For all that is to be done before leaving; a prompt is expected in five [s]."""
_SAME_PRESS = 0.3
"""Signals closer than this are one: a shell may send to the process and to its group [s]."""

_stopping = threading.Event()
_last_words: list[Callable[[signal.Signals], None]] = []
_installed: Family | None = None
_wakeup: tuple[socket.socket, socket.socket] | None = None


def install() -> Family:
    """Founds this process's family and listens to SIGINT, SIGTERM and SIGHUP; once.

    Call it in the main thread, before heavy imports and before anything is started. In another
    thread the family is founded, and signals stay as they are.
    """
    global _installed, _wakeup
    if _installed is not None:
        return _installed
    _installed = Family()
    if threading.current_thread() is threading.main_thread():
        _wakeup = socket.socketpair()
        for end in _wakeup:
            end.setblocking(False)
        signal.set_wakeup_fd(_wakeup[1].fileno(), warn_on_full_buffer=False)
        _wakeup[0].setblocking(True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _heard)
        threading.Thread(target=_listen, args=(_wakeup[0],), daemon=True, name="signals").start()
    return _installed


def before_leaving(function: Callable[[signal.Signals], None]) -> None:
    """Has a function called with the signal before the process leaves; the newest first.

    It has seconds: beyond that the process leaves without it.
    """
    _last_words.insert(0, function)


def is_stopping() -> bool:
    """Returns whether a signal came: nothing new should be started."""
    return _stopping.is_set()


def wait_if_stopping() -> None:
    """Does not return once a signal came: the listener ends the process, with the right code."""
    if is_stopping():
        threading.Event().wait()


def _heard(number: int, frame: object) -> None:
    """Keeps the signal from its default; the listener was told by the wakeup pipe."""


def _listen(pipe: socket.socket) -> None:
    while (number := pipe.recv(1)[0]) not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        continue  # Another signal that some library handles.
    _stopping.set()
    began = time.monotonic()
    threading.Thread(target=_hurry, args=(pipe,), daemon=True).start()
    speaking = threading.Thread(target=_speak, args=(signal.Signals(number),), daemon=True)
    speaking.start()
    speaking.join(_AT_MOST - (time.monotonic() - began))
    _leave(number)


def _hurry(pipe: socket.socket) -> None:
    """Leaves at once at the second Ctrl-C."""
    began = time.monotonic()
    while True:
        number = pipe.recv(1)[0]
        ends = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if ends and time.monotonic() - began > _SAME_PRESS:
            _leave(number)


def _speak(number: signal.Signals) -> None:
    for function in list(_last_words):
        try:
            function(number)
        except Exception as error:  # The next one has its own words to say.
            if os.environ.get("PARCEL_DEBUG"):
                print(f"parcel: before leaving: {error!r}", file=sys.stderr)


def _leave(number: int) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(128 + number)
