"""A training's log as TensorBoard reads it: an event file, written while the training runs."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from model.files import METRICS, WATCH

EVENTS = "events"
"""Folder of the event file, beside the checkpoint."""


class EventFile:
    """What a stage notes by step, for TensorBoard.

    Args:
      logs: folder of the stage's logs, some of which may not be there yet.
      out: folder of the checkpoint.
    """

    def __init__(self, logs: Path, out: Path) -> None:
        self._logs = {logs / METRICS: _of_training, logs / WATCH: _of_watch}
        self._read: dict[Path, tuple[int, int]] = dict.fromkeys(self._logs, (0, 0))
        self._written: set[tuple[str, int]] = set()
        self._writer = SummaryWriter(str(out / EVENTS))

    def follow(self) -> None:
        """Writes what was noted since the last call; of a log that begins anew, what is new."""
        for path, scalars in self._logs.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                state, (number, start) = os.fstat(file.fileno()), self._read[path]
                is_same = number == state.st_ino and start <= state.st_size
                start = file.seek(start if is_same else 0)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]  # The rest of a line is still to come.
            self._read[path] = state.st_ino, start + len(whole)
            for row in map(json.loads, whole.splitlines()):
                for name, value in scalars(row):
                    if (name, row["step"]) not in self._written:
                        self._written.add((name, row["step"]))
                        self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()


def _of_training(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the curves of a line: the loss at its budget has one of its own."""
    yield f"loss_at_budget/{row['budget']}", row["loss"]
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{part}", one) for part, one in value.items())
        elif name not in ("step", "budget"):
            yield name, value


def _of_watch(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the curve of a look at one task and budget."""
    found = "loss" if "loss" in row else "score"
    yield f"watched_{found}/{row['task']}_{row['budget']}", row[found]
