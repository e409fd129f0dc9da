"""The progress of long work: yielded by the code that does it, shown by the code that waits."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator

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


_TERMINAL_S, _FILE_S = 0.5, 30.0
"""Least time between two lines of progress, on a terminal and elsewhere [s]."""


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
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
            # The rest of the line before is erased.
            print(
                f"\r{text}\x1b[K" if is_terminal else text,
                end="" if is_terminal else "\n",
                file=sys.stderr,
                flush=True,
            )

    try:
        yield show
    finally:
        if is_terminal and is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
