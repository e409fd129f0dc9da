"""Tells trackers what a run made, each by a process of its own, so that none can hold the work."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from flows.config.tracker import Tracker
from flows.run.tracked_run import is_training
from infra.credentials import redact_text
from infra.processes.module import module_command, python_path
from infra.store.store import Artifact, Store

_PATIENCE = 30.0
"""Time without an answer of a tracker after which the run ends without it [s]; the start of its
library alone takes 10 s on a busy machine of two cores."""


class Trackers:
    """The trackers of one run; safe to call from several threads.

    What could not be written here, the next run of the study writes.

    Args:
      trackers: names of the trackers.
      store: the run's store.
      ui: address of Prefect's UI [URI]; "" if there is none.
    """

    def __init__(self, trackers: Iterable[Tracker], store: Store, ui: str) -> None:
        self._links = [_TrackerLink(tracker, store.uri, ui) for tracker in dict.fromkeys(trackers)]
        self._study = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for link in self._links:
            if self._study:
                link.put(f"study {self._study}")
            link.end()
        for link in self._links:
            link.wait()

    def put(self, artifact: Artifact) -> None:
        """Has an artifact's training written, if it has one, some time later."""
        if is_training(artifact):
            for link in self._links:
                link.put(f"stage {artifact.key}")

    def put_study(self, run: str) -> None:
        """Has the study of a run written when the run ends, by the full name of its record."""
        self._study = run


class _TrackerLink:
    """The process of one tracker."""

    def __init__(self, tracker: Tracker, uri: str, ui: str) -> None:
        self._tracker = tracker
        self._is_warned = False
        self._last = time.monotonic()
        # In its own session: Ctrl-C is for the run, which then ends this process with its family.
        self._process = subprocess.Popen(
            module_command("flows.run.tracker_process", uri, tracker, ui),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._words, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._words.fileno(), False)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def put(self, words: str) -> None:
        # A pipe holds hundreds of lines. One that is full drops them: the tracker hangs, and what
        # it misses is in the run's record.
        with contextlib.suppress(OSError):
            os.write(self._words.fileno(), f"{words}\n".encode())

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._words.close()
        self._last = time.monotonic()

    def wait(self) -> None:
        while self._thread.is_alive() and time.monotonic() - self._last < _PATIENCE:
            self._thread.join(0.1)
        if self._thread.is_alive():
            self._warn(f"no answer within {_PATIENCE:.0f} s")
            with contextlib.suppress(ProcessLookupError):  # What it started, too.
                os.killpg(self._process.pid, signal.SIGKILL)
            self._thread.join()

    def _read(self) -> None:
        for line in self._answers:
            self._last = time.monotonic()
            word, _, why = line.decode(errors="replace").strip().partition(" ")
            if word == "failed":
                self._warn(why)
        if code := self._process.wait():
            self._warn(f"its process ended with code {code}")

    def _warn(self, why: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            print(
                f"parcel: {self._tracker} could not be written to ({redact_text(why)}); the work "
                f"continues, and the next run of the study writes what is missing.",
                file=sys.stderr,
            )
