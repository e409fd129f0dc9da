"""Turns a function that reports through a callback into a generator of its reports."""

import queue
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

from infra.progress import Progress

T = TypeVar("T")


def stream_progress(function: Callable[[Callable[..., None]], T]) -> Generator[Progress, None, T]:
    """Runs `function(report)` in a thread, yields what it reports, and returns what it returns."""
    # The function calls back, but a step's `make` yields: the thread turns one into the other.
    #
    #   thread:  report ─▶ report ─▶ … ─▶ None        None comes also after an error
    #              │         │             │
    #   here:    yield     yield         return, or raise what was raised there
    reports: queue.Queue[Progress | None] = queue.Queue()
    values: list[T] = []
    errors: list[BaseException] = []

    def report(done: int, total: int, note: str = "") -> None:
        reports.put(Progress(done=done, total=total, note=note))

    def run() -> None:
        try:
            values.append(function(report))
        except BaseException as error:
            errors.append(error)
        finally:
            reports.put(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while (item := reports.get()) is not None:
        yield item
    thread.join()
    if errors:
        raise errors[0]
    return values[0]
