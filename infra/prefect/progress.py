"""How far the nodes of a run under way are, in a file beside its journal that is replaced.

<store>/runs/active/<flow run>.json    {"transfer m3 chartqa seed=1": {"done": 40, "total": 100, …}}

A journal keeps every line, so it has begins and ends only. This file has the newest state alone.
"""

import dataclasses
import json
import threading
import time
from pathlib import Path

from infra.credentials import redact_text
from infra.prefect import journal
from infra.typed_json import parse_typed

_WRITE_EVERY = 1.0
"""Least interval between two writes about work that goes on [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeProgress:
    """How far a node is that runs.

    Attributes:
      step: the step of the node that is at work.
      key: key of the artifact that its job makes, of several the first.
      done, total: units of its work done, and all of them; 0 of 0 before the first is done.
      note: text to show beside them, such as the loss.
      devices: what computes, in words: "1 GPU", "2 cores"; "" for this process.
      seconds_left: estimated time until the node ends, when this was written [s]; None if unknown.
      began: time at which its work began, after any wait for a worker [s since the epoch].
      written: time at which this was known [s since the epoch].
    """

    step: str
    done: int
    total: int
    note: str
    devices: str
    seconds_left: float | None
    began: float
    written: float
    key: str = ""


class ProgressFile:
    """The progress of the nodes of a run under way; safe to call from several threads.

    Args:
      store: the store's folder on this machine.
      flow_run_id: id of the Prefect run; with "", no file is written.
    """

    def __init__(self, store: Path, flow_run_id: str) -> None:
        self._path = journal.folder(store) / f"{flow_run_id}.json" if flow_run_id else None
        # A part of the file is made when its node changes, not at each write: with a thousand nodes
        # under way, every begin and end would make a thousand parts.
        self._parts: dict[str, tuple[str, str]] = {}  # Node -> its step, and its part as JSON.
        self._lock = threading.Lock()
        self._written = float("-inf")

    def update(self, node: str, progress: NodeProgress) -> None:
        """Notes how far a node is."""
        values = {**dataclasses.asdict(progress), "note": redact_text(progress.note)}
        part = f"{json.dumps(node)}: {json.dumps(values)}"
        with self._lock:
            is_new = node not in self._parts or self._parts[node][0] != progress.step
            self._parts[node] = progress.step, part
            if is_new or time.monotonic() - self._written >= _WRITE_EVERY:
                self._write_node_progress()

    def end(self, node: str) -> None:
        """Notes that a node does not run any more."""
        with self._lock:
            if self._parts.pop(node, None) is not None:
                self._write_node_progress()

    def _write_node_progress(self) -> None:
        if self._path is None:
            return
        self._written = time.monotonic()
        # Replaced whole, so that a reader never sees half of it.
        partial = self._path.with_suffix(".partial")
        partial.write_text(f"{{{', '.join(part for _, part in self._parts.values())}}}")
        partial.replace(self._path)


def read_progress(store: Path, flow_run_id: str) -> dict[str, NodeProgress]:
    """Returns node -> its progress, of a run on this machine; empty if none is known."""
    try:
        text = (journal.folder(store) / f"{flow_run_id}.json").read_bytes()
        return parse_typed(dict[str, NodeProgress], text, "it")
    except (OSError, ValueError):
        return {}  # Not written yet, damaged, or by another version.
