"""Ends the command within seconds of a signal, no matter what its libraries are doing.

Prefect, Ray and Beam each handle Ctrl-C in their own way, and some wait for threads that wait for
workers. So the stack is not unwound: a thread of ours receives the signal, does the few things that
must be done, and exits; the family's guardian kills the rest. The thread reads Python's wakeup
pipe, to which signals are written even if a library replaced the handler or the main thread is
busy.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from infra.processes.family import Family

_EXIT_DEADLINE = 3.5
"""Time for everything that is done before the exit; users expect a prompt within 5 s [s]."""
_DEBOUNCE = 0.3
"""Signals closer together count as one: a shell may signal the process and its group [s]."""

_stopping = threading.Event()
_exit_hooks: list[Callable[[signal.Signals], None]] = []
_last_line = ""
_installed: Family | None = None
_wakeup: tuple[socket.socket, socket.socket] | None = None


def install_signal_handlers() -> Family:
    """Makes this process's family and listens to SIGINT, SIGTERM and SIGHUP; does so only once.

    Call it in the main thread, before heavy imports and before any process is started. In another
    thread it makes the family only, and signals keep their handlers.
    """
    global _installed, _wakeup
    if _installed is not None:
        return _installed
    _installed = Family()
    if threading.current_thread() is threading.main_thread():
        _wakeup = socket.socketpair()
        # Python writes to its end from a signal handler and so must not block; our thread may.
        # A handler written in Python runs only between two bytecodes of the main thread, which may
        # be inside a library for minutes. So Python's own C handler writes the signal's number into
        # this socket, and our thread reads it:
        #
        #   signal -> C handler -> _wakeup[1] -> _wakeup[0] -> the thread "signals"
        for end in _wakeup:
            end.setblocking(False)
        signal.set_wakeup_fd(_wakeup[1].fileno(), warn_on_full_buffer=False)
        _wakeup[0].setblocking(True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _do_nothing)
        threading.Thread(
            target=_await_signal, args=(_wakeup[0],), daemon=True, name="signals"
        ).start()
    return _installed


def add_exit_hook(function: Callable[[signal.Signals], None]) -> Callable[[], None]:
    """Registers a function to call with the signal before the process exits; the newest runs first.

    All of them together have `_EXIT_DEADLINE`; after that the process exits without waiting.

    Returns:
      Takes the function off the list: a notebook makes many runs in one process.
    """
    _exit_hooks.insert(0, function)
    return lambda: _exit_hooks.remove(function)


def end_with(line: str) -> None:
    """Sets what is printed last, behind the signal's name, if a signal ends this process."""
    global _last_line
    _last_line = line


def is_stopping() -> bool:
    """Returns whether a signal came, after which nothing new should be started."""
    return _stopping.is_set()


def wait_if_stopping() -> None:
    """Blocks for ever once a signal came: the listener ends the process, with the right code."""
    if is_stopping():
        threading.Event().wait()


def _do_nothing(number: int, frame: object) -> None:
    """Replaces the signal's default action; the listener gets it through the wakeup pipe."""


def _await_signal(pipe: socket.socket) -> None:
    while (number := pipe.recv(1)[0]) not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        continue  # A signal that some library handles.
    # From here on nothing new is started, and the clock runs:
    #
    #   0 s        SIGINT came; the hooks run in a thread of their own, the newest first
    #   0 - 0.3 s  the same signal again counts as the same press
    #   later      another signal: exit at once
    #   <= 3.5 s   exit with 130 (128 + SIGINT), whether or not the hooks are done
    #
    # Then the guardian sees its pipe close, and kills all that is left of the family.
    _stopping.set()
    began = time.monotonic()
    threading.Thread(target=_force_exit_on_second_signal, args=(pipe,), daemon=True).start()
    hooks = threading.Thread(target=_run_exit_hooks, args=(signal.Signals(number),), daemon=True)
    hooks.start()
    hooks.join(_EXIT_DEADLINE - (time.monotonic() - began))
    _exit_by_signal(number)


def _force_exit_on_second_signal(pipe: socket.socket) -> None:
    """Exits at once on a second signal, such as another Ctrl-C."""
    began = time.monotonic()
    while True:
        number = pipe.recv(1)[0]
        ends = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if ends and time.monotonic() - began > _DEBOUNCE:
            _exit_by_signal(number)


def _exit_by_signal(number: int) -> None:
    if _last_line:
        # The terminal may be what is gone.
        with contextlib.suppress(OSError, ValueError):
            print(f"ended by {signal.Signals(number).name}; {_last_line}", flush=True)
    exit_now(128 + number)


def _run_exit_hooks(number: signal.Signals) -> None:
    for function in list(_exit_hooks):
        try:
            function(number)
        except Exception as error:  # The other functions must still run.
            if os.environ.get("PARCEL_DEBUG"):
                print(f"parcel: before leaving: {error!r}", file=sys.stderr)


def exit_now(code: int) -> None:
    """Ends the process without atexit, destructors and other threads: any of them may hang."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
