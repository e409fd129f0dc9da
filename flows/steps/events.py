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
    """TensorBoard's event file of a stage, filled from the stage's logs.

    Args:
      logs: folder of the stage's logs, some of which may not exist yet.
      out: folder of the checkpoint, where the event file is written.
    """

    def __init__(self, logs: Path, out: Path) -> None:
        self._logs = {logs / METRICS: _training_event, logs / WATCH: _watch_event}
        self._read: dict[Path, tuple[int, int]] = dict.fromkeys(self._logs, (0, 0))
        self._written: set[tuple[str, int]] = set()
        self._writer = SummaryWriter(str(out / EVENTS))

    def follow(self) -> None:
        """Writes the rows logged since the last call; of a replaced log, only the new points."""
        # The logs are followed like `tail -f`: from where the last call ended, complete lines only.
        for path, scalars in self._logs.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                state, (number, start) = os.fstat(file.fileno()), self._read[path]
                # A replaced or shortened log is read from its start; `_written` skips known points.
                is_same = number == state.st_ino and start <= state.st_size
                start = file.seek(start if is_same else 0)
                text = file.read()
            complete_lines = text[: text.rfind(b"\n") + 1]  # The rest of a line is still to come.
            self._read[path] = state.st_ino, start + len(complete_lines)
            for row in map(json.loads, complete_lines.splitlines()):
                for name, value in scalars(row):
                    if (name, row["step"]) not in self._written:
                        self._written.add((name, row["step"]))
                        self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


def _training_event(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the points of a training log's line; each budget has a loss curve of its own."""
    yield f"loss_at_budget/{row['budget']}", row["loss"]
    for name, value in row.items():
        if name == "jumps":  # Their losses are on no curve.
            continue
        if isinstance(value, dict):
            yield from ((f"{name}/{part}", number) for part, number in value.items())
        elif name not in ("step", "budget"):
            yield name, value


def _watch_event(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the point of a watch log's line: one task at one budget."""
    quantity = "loss" if "loss" in row else "score"
    yield f"watched_{quantity}/{row['task']}_{row['budget']}", row[quantity]
