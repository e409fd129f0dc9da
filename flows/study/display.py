"""The terminal while a study runs: a bar per step, or plain lines."""

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from infra.processes.signals import before_leaving
from infra.progress import Progress as StepProgress

_LINE_EVERY = 15.0
"""Between two lines about one running step, where output is not a terminal [s]."""


class Display:
    """A bar per running step and one for the whole; plain lines where there is no terminal.

    Safe to call from several threads.

    Args:
      num_steps: steps of the whole.
      console: where to print.
    """

    def __init__(self, num_steps: int, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, highlight=False)
        self.counts = {"made": 0, "reused": 0, "failed": 0}
        self._num_steps = num_steps
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._spoke: dict[str, float] = {}
        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._live = Live(self._progress, console=self.console, refresh_per_second=4)
        self._whole = self._progress.add_task("[bold]study", total=num_steps, note="")

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
            before_leaving(lambda _: self._live.stop())  # Or the terminal has no cursor.
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def update(self, name: str, progress: StepProgress) -> None:
        """Shows how far a step is."""
        with self._lock:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=progress.total, note="")
                self._spoke[name] = time.monotonic()
            self._progress.update(
                self._tasks[name],
                completed=progress.done,
                total=progress.total,
                note=progress.note,
            )
            quiet = time.monotonic() - self._spoke[name]
            if not self.console.is_terminal and quiet > _LINE_EVERY:
                self._spoke[name] = time.monotonic()
                self.console.print(
                    f"       … {name}: {progress.done}/{progress.total} {progress.note}",
                    markup=False,
                )

    def finish(self, name: str, *, outcome: str, seconds: float = 0.0, detail: str = "") -> None:
        """Notes the end of a step ("made", "reused", "failed"), or what became of a try of it.

        That is "again" where its worker was lost, "joined" where it was under way already.
        """
        with self._lock:
            if outcome in self.counts:
                self.counts[outcome] += 1
            task = self._tasks.pop(name, None)
            if task is not None:
                self._progress.remove_task(task)
            done = sum(self.counts.values())
            self._progress.update(self._whole, completed=done)
            if outcome == "reused" and self.console.is_terminal:
                return
            took = f"{seconds:6.1f} s" if outcome == "made" else "        "
            minutes, rest = divmod(int(time.monotonic() - self._began), 60)
            count = f"[{done:>3}/{self._num_steps}]"
            line = f"{minutes:02}:{rest:02} {count} {outcome:<6} {took} {name} {detail}"
            self.console.print(line.rstrip(), markup=False, soft_wrap=True)
