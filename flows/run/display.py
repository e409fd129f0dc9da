"""The terminal's display of a running study: progress bars with the time left, or plain lines."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flows.report.durations import age_text, time_left_text
from infra.processes.signals import add_exit_hook, is_stopping
from infra.progress import WAIT_EVERY
from infra.progress import Progress as StepProgress
from infra.terminal import terminal_console

_LINE_EVERY = 15.0
"""Interval between two lines about one running step, where output is not a terminal [s]."""


_MAX_BARS = 16
"""Most running steps shown as a bar each; a cluster runs hundreds."""
_FORECAST_EVERY = 1.0
"""Interval between two estimates of the time left [s]."""


class Display:
    """A bar per running step and one for the whole study; plain lines if there is no terminal.

    Safe to call from several threads.

    Args:
      num_steps: number of steps of the study, as its graph counts nodes.
      console: console to print on; None takes standard output.
      time_left: function that returns the time until all is done [s], or None if unknown.
    """

    def __init__(
        self,
        num_steps: int,
        console: Console | None = None,
        time_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.console = console or terminal_console(file=sys.stdout, highlight=False)
        self.counts = {"made": 0, "reused": 0, "failed": 0, "not run": 0}
        self._num_steps = num_steps
        self._time_left, self._time_left_text, self._last_forecast_at = time_left, "", float("-inf")
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._last_line_at: dict[str, float] = {}
        self._causes_shown: set[str] = set()
        self._began = self._printed_at = time.monotonic()
        self._idle_at = self._began
        self._over = threading.Event()
        # On a terminal, a bar for the study, and below it one for each running step:
        #
        #   study          ━━━╸────────────── 4/17    0:02:40 5 min left
        #   stage1 vanilla ━━━━━━━━━╸──────── 540/900 0:01:12 loss 1.93, 1 min left
        #   stage1 parcel  ━━━━━━━━━━━━━━━━━━         0:00:20 compiles
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
        )
        self._live = Live(self._progress, console=self.console, refresh_per_second=4)
        self._study_task = self._progress.add_task(
            "[bold]study", total=num_steps, count=f"0/{num_steps}", note="begins"
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
            # Otherwise the cursor stays hidden.
            self._remove_hook = add_exit_hook(lambda _: self._live.stop())
        else:
            threading.Thread(target=self._break_silence, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self.console.is_terminal:
            self._live.stop()
            self._remove_hook()

    def begin(self, name: str, seconds: float | None = None, work: str = "") -> None:
        """Shows that a step has begun.

        Args:
          name: the step.
          seconds: its estimated time [s]; None if unknown.
          work: what it does, as ", with 3 evaluations".
        """
        with self._lock:
            left = time_left_text(seconds)
            self._add_task(name, f"begins, {left}" if left else "begins")
            self._update_study_bar()
            if not self.console.is_terminal:
                done = sum(self.counts.values())
                self._print_progress_line(
                    done, f"{'begun':<15} {name}{work} {f'({left})' if left else ''}"
                )

    def update(self, name: str, progress: StepProgress, seconds_left: float | None = None) -> None:
        """Shows the progress of a step.

        Args:
          name: the step.
          progress: its progress.
          seconds_left: estimated time until it ends [s]; None if unknown.
        """
        with self._lock:
            self._add_task(name, "")
            self._update_study_bar()
            # Nothing is counted yet: of a step that begins or compiles, the bar shows only that.
            has_count = progress.total > 0 and (progress.done > 0 or not progress.note)
            count = f"{progress.done:,}/{progress.total:,}" if has_count else ""
            note = ", ".join(
                filter(
                    None,
                    (progress.note or ("" if count else "begins"), time_left_text(seconds_left)),
                )
            )
            self._progress.update(
                self._tasks[name],
                completed=progress.done,
                total=progress.total if has_count else None,
                count=count,
                note=note,
            )
            # In a log file there are no bars: now and then a line says how far a step is.
            quiet = time.monotonic() - self._last_line_at[name]
            if not self.console.is_terminal and quiet > _LINE_EVERY:
                self._last_line_at[name] = time.monotonic()
                self._print_text(f"       … {name}: {' '.join(filter(None, (count, note)))}")

    def _break_silence(self) -> None:
        """Prints a line now and then while nothing else does, as where a program compiles."""
        while not self._over.wait(1.0):
            with self._lock:
                if time.monotonic() - self._printed_at < WAIT_EVERY or is_stopping():
                    continue
                # What was told about longest ago; a node without a task waits for a worker.
                name = min(self._tasks, key=lambda name: self._last_line_at[name], default="")
                if name:
                    (task,) = (t for t in self._progress.tasks if t.id == self._tasks[name])
                    told = ", ".join(filter(None, (task.fields["count"], task.fields["note"])))
                    text = f"{name}: {told}, for {age_text(task.elapsed or 0.0)}"
                    self._last_line_at[name] = time.monotonic()
                else:
                    text = f"waits for a worker, for {age_text(time.monotonic() - self._idle_at)}"
                self._print_text(f"       … {text}")

    def _add_task(self, name: str, note: str) -> None:
        # Bars beyond `_MAX_BARS` exist, but are hidden until one above them ends.
        if name not in self._tasks:
            shown = len(self._tasks) < _MAX_BARS
            self._tasks[name] = self._progress.add_task(
                escape(name), total=None, count="", note=note, visible=shown
            )
            self._last_line_at[name] = time.monotonic()

    def print_event(self, name: str, what: str) -> None:
        """Prints a line on an event in a step that is still running."""
        with self._lock:
            self._print_progress_line(sum(self.counts.values()), f"{'':<15} {name}: {what}")

    def finish(self, name: str, *, outcome: str, seconds: float = 0.0, detail: str = "") -> None:
        """Records how a step ended: `outcome` is "made", "reused", "failed" or "not run".

        Of all steps that are not run for one reason, the first is printed, with the reason.

        Two more outcomes are no end, only printed: "again" (the worker was lost and the step is
        retried) and "joined" (another run's job for the same step was found and is followed).
        """
        with self._lock:
            if outcome in self.counts:
                self.counts[outcome] += 1
            task = self._tasks.pop(name, None)
            if task is not None:
                self._progress.remove_task(task)
            if not self._tasks:
                self._idle_at = time.monotonic()
            # A place is free now: the next hidden bar appears.
            done = sum(self.counts.values())
            for hidden_task in list(self._tasks.values())[:_MAX_BARS]:
                self._progress.update(hidden_task, visible=True)
            self._update_study_bar()
            if outcome == "reused" and self.console.is_terminal:
                return
            if outcome == "not run":
                if detail in self._causes_shown:
                    return
                self._causes_shown.add(detail)
                detail += "; more such steps are only counted"
            took = f"{seconds:6.1f} s" if outcome == "made" else "        "
            told = f"{name}{detail}" if detail.startswith((":", ",")) else f"{name} {detail}"
            self._print_progress_line(done, f"{outcome:<6} {took} {told}")

    def reuse(self, num: int) -> None:
        """Records that `num` steps are reused, in one line."""
        with self._lock:
            self.counts["reused"] += num
            self._update_study_bar()
            self._print_progress_line(sum(self.counts.values()), f"reused {num} steps")

    def _print_progress_line(self, done: int, text: str) -> None:
        #   02:40 [  4/17, 5 min left] made     72.3 s stage1 vanilla steps 900, loss 1.93
        # After a signal the next line is the last one, and says how to go on.
        if is_stopping():
            return
        minutes, rest = divmod(int(time.monotonic() - self._began), 60)
        suffix = (
            f", {self._time_left_text}" if self._time_left_text and done < self._num_steps else ""
        )
        line = f"{minutes:02}:{rest:02} [{done:>3}/{self._num_steps}{suffix}] {text}"
        self._print_text(line.rstrip())

    def _print_text(self, line: str) -> None:
        self._printed_at = time.monotonic()
        self.console.print(line, markup=False, soft_wrap=True)

    def _update_study_bar(self) -> None:
        if time.monotonic() - self._last_forecast_at > _FORECAST_EVERY:
            self._last_forecast_at, self._time_left_text = (
                time.monotonic(),
                time_left_text(self._time_left()),
            )
        hidden = len(self._tasks) - _MAX_BARS
        more = f"and {hidden} more under way" if hidden > 0 else ""
        done = sum(self.counts.values())
        if not self._tasks and done < self._num_steps:
            more = "waits for a worker"
        self._progress.update(
            self._study_task,
            completed=done,
            count=f"{done}/{self._num_steps}",
            note=", ".join(filter(None, (self._time_left_text, more))),
        )
