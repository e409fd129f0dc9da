"""The progress of long work: yielded by the code that does it, shown by the code that waits."""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator

from infra.terminal import drawing_stream, printable_lines

COMPILING = "compiles"
"""Note of work whose programs are being compiled, before the next of its units is done."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a piece of work.

    Attributes:
      done: number of units done so far: updates, records, files.
      total: number of all units.
      note: text to show beside them, such as the loss.
      loss: latest training loss; NaN where there is none.
      resumable: whether a new state to resume from was saved; the scratch folder is then copied to
        the store if that is elsewhere.
      happened: whether the note reports an event, such as the loss of a worker.
      devices: number of devices that compute, where other processes than the reader's do; 0 if
        they do not say.
    """

    done: int
    total: int
    note: str = ""
    loss: float = float("nan")
    resumable: bool = False
    happened: bool = False
    devices: int = 0


WAIT_EVERY = 15.0
"""Interval between two lines on something that is waited for [s]."""
_TERMINAL_S, _FILE_S = 0.5, 30.0
"""Least time between two lines of progress, on a terminal and elsewhere [s]."""


@contextlib.contextmanager
def progress_display() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows how far work has come; it may be called often.

    It writes to standard error: on a terminal always the same line, which is gone at the end, and
    elsewhere a line now and then. Work that takes less than that shows nothing.
    """
    is_terminal = sys.stderr.isatty()
    interval = _TERMINAL_S if is_terminal else _FILE_S
    shown, is_shown = time.monotonic(), False

    def show(text: str) -> None:
        nonlocal shown, is_shown
        if time.monotonic() - shown >= interval:
            shown, is_shown = time.monotonic(), True
            shown_text = printable_lines(text)
            # The rest of the line before is erased.
            print(
                f"\r{shown_text}\x1b[K" if is_terminal else shown_text,
                end="" if is_terminal else "\n",
                file=drawing_stream(sys.stderr),
                flush=True,
            )

    try:
        yield show
    finally:
        if is_terminal and is_shown:
            print("\r\x1b[K", end="", file=drawing_stream(sys.stderr), flush=True)


@contextlib.contextmanager
def wait_line(what: str, every: float = WAIT_EVERY) -> Iterator[None]:
    """Prints a line now and then while something lasts: "starting Prefect … 30 s".

    Args:
      what: what is waited for, in words.
      every: interval between two lines [s].
    """
    began, over = time.monotonic(), threading.Event()

    def show() -> None:
        while not over.wait(every):
            print(f"{what} … {time.monotonic() - began:.0f} s", flush=True)

    threading.Thread(target=show, daemon=True).start()
    try:
        yield
    finally:
        over.set()
