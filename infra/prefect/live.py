"""Publishes a run under way to the UI: a row per node, log lines, pages.

Prefect's own task engine sends three events and a few log lines per task, each by itself, through
an event loop, which takes 20 ms of processor time per node. A study has thousands of nodes, so here
a batch is sent every second; a node that began and ended between two batches is sent once.
"""

import dataclasses
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State, StateType

from infra.prefect.journal import Node, now
from infra.prefect.published import published
from infra.prefect.rows import TYPES, event, row_id

_SENT_EVERY = 1.0
"""Interval between two batches [s]."""
_AT_ONCE = 8
"""Requests under way at a time; the server writes pages one by one anyway."""
_LONGEST_LINE = 20_000
"""Longest log line [characters]; the server refuses lines of megabytes."""


class Live:
    """Publishes one run to the UI; safe to call from several threads.

    Rows that cannot be published now are corrected when the run is settled, see `rows.settle`.

    Args:
      flow_run_id: id of the Prefect run; with "", nothing is published.
    """

    def __init__(self, flow_run_id: str) -> None:
        self.flow_run_id = flow_run_id
        self._changes: dict[str, dict[str, Any]] = {}
        self._lines: list[dict[str, Any]] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._posting = threading.Semaphore(_AT_ONCE)
        self._client: SyncPrefectClient | None = None
        self._thread = threading.Thread(target=self._keep_sending, daemon=True, name="rows")

    def __enter__(self) -> Self:
        if self.flow_run_id:
            self._client = published(lambda: get_client(sync_client=True).__enter__())
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.flow_run_id:
            self._over.set()
            self._thread.join()
        if self._client is not None:
            self._client.__exit__(None, None, None)

    def task_run_id(self, name: str) -> str | None:
        """Returns the id of a node's row; None if the run has no rows."""
        return str(row_id(self.flow_run_id, name)) if self.flow_run_id else None

    def began(self, node: Node, reads: Sequence[str], *, attempt: int = 1) -> None:
        """Publishes that a node began, or began again.

        Args:
          node: the node.
          reads: names of the nodes whose artifacts it reads, for the run's picture.
          attempt: number of the attempt, counted from 1.
        """
        name = "Retrying" if attempt > 1 else "Running"
        state: State[Any] = State(type=StateType.RUNNING, name=name)
        self._change(node, state, reads, attempt)

    def ended(self, node: Node, reads: Sequence[str], *, attempt: int = 1) -> None:
        """Publishes how a node ended, and logs it unless the node was re-used."""
        assert node.outcome is not None
        state: State[Any] = State(type=TYPES[node.outcome], message=node.told)
        self._change(node, state, reads, attempt)
        if node.outcome != "reused":
            self.log(f"{node.name}: {node.told}", node.name, failed=node.outcome == "failed")

    def log(self, text: str, node: str = "", *, failed: bool = False) -> None:
        """Logs a line, for a node or for the run as a whole."""
        line = {
            "name": "parcel.study",
            "level": 40 if failed else 20,
            "message": text[:_LONGEST_LINE],
            "timestamp": now().isoformat(),
            "flow_run_id": self.flow_run_id,
            "task_run_id": self.task_run_id(node) if node else None,
        }
        with self._lock:
            self._lines.append(line)

    def page(
        self, key: str, data: str | float, description: str, node: str, *, kind: str = "markdown"
    ) -> str | None:
        """Publishes a page of a node; returns its id, or None if it could not be published.

        Args:
          key: key of the page in the UI; a later page replaces an earlier one of the same key.
          data: text of the page; for "progress", how much is done [%].
          description: description of the page, in one line.
          node: name of the node whose page it is.
          kind: "markdown" or "progress".
        """
        asked = {
            "type": kind,
            "key": key,
            "data": data,
            "description": description,
            "flow_run_id": self.flow_run_id,
            "task_run_id": self.task_run_id(node),
        }
        answer = self._ask("POST", "/artifacts/", asked)
        return answer.json()["id"] if answer is not None else None

    def update(self, page: str, data: float, description: str) -> None:
        """Changes a progress page."""
        self._ask("PATCH", f"/artifacts/{page}", {"data": data, "description": description})

    def _change(self, node: Node, state: State[Any], reads: Sequence[str], attempt: int) -> None:
        told = dataclasses.replace(node, task_run_id=self.task_run_id(node.name))
        ids = [{"input_type": "task_run", "id": self.task_run_id(name)} for name in reads]
        entry = {"node": told, "state": state, "reads": ids, "attempt": attempt, "now": now()}
        with self._lock:
            self._changes[node.name] = entry

    def _keep_sending(self) -> None:
        while not self._over.wait(_SENT_EVERY):
            self._send()
        self._send()

    def _send(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, {}
            lines, self._lines = self._lines, []
        if changes:
            self._ask("POST", "/events", [event(self.flow_run_id, **c) for c in changes.values()])
        if lines:
            self._ask("POST", "/logs/", lines)

    def _ask(self, verb: Any, path: Any, body: Any) -> Any:
        """Sends a request; returns the server's answer, or None if it failed."""
        client = self._client
        if client is None:
            return None
        with self._posting:
            return published(lambda: client.request(verb, path, json=body))
