"""Makes the UI's rows of a run agree with its journal."""

import dataclasses
import datetime
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.logging.handlers import APILogWorker

from infra.prefect import journal
from infra.prefect.journal import Node, RunRecord
from infra.processes.identity import ProcessNote

MAX_REUSED_ROWS = 200
"""Up to this many re-used nodes without a row yet get a row each; more of them share one row."""

_PAGE = 200
"""Rows in one answer of Prefect's API."""
_UNDER_WAY = 1.0
"""Time without a change of the rows after which no earlier event is on its way any more [s]."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Pauses between two looks at the rows [s]; they double, since ten thousand rows take a second."""
_KILLED = "its process was killed"
_PROCESS = "process"
"""Key in the context of a run that a command began: the process that runs it."""
_KEY = "parcel"
"""Task key of our rows, none of which Prefect's own engine runs."""
TYPES = {
    "made": StateType.COMPLETED,
    "reused": StateType.COMPLETED,
    "failed": StateType.FAILED,
    "not run": StateType.CANCELLED,
}
_ENDINGS = {
    "completed": StateType.COMPLETED,
    "failed": StateType.FAILED,
    "cancelled": StateType.CANCELLED,
    "crashed": StateType.CRASHED,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A task run as the server has it.

    Attributes:
      id, name, task_key, dynamic_key, run_count: as Prefect has them.
      state: type of its state; None before the first.
      told: time at which it got that state; None before the first.
      start_time: time at which it began [ISO 8601]; None if it did not.
    """

    id: uuid.UUID
    name: str
    task_key: str
    dynamic_key: str
    run_count: int
    state: StateType | None
    told: datetime.datetime | None
    start_time: str | None

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL_STATES


def begin(flow: Flow[..., Any], parameters: dict[str, Any]) -> FlowRun:
    """Makes the row of a run of this process, with a note of the process.

    Prefect's engine makes a row, and only then calls the flow, which opens a journal. If the
    process is killed in between, the note shows that the run has ended.

    Args:
      flow: flow that will run.
      parameters: arguments of the flow.
    """
    with get_client(sync_client=True) as client:
        return client.create_flow_run(
            flow,
            parameters=flow.serialize_parameters(parameters),
            context={_PROCESS: dataclasses.asdict(ProcessNote.of_this_process())},
        )


def settle_ended(store: Path) -> None:
    """Settles the rows of every run of a store that ended here, or whose process is gone.

    Args:
      store: the store's folder on this machine; Prefect's client must be set to its server.
    """
    own = ProcessNote.of_this_process()
    for path in sorted(journal.folder(store).glob("*.jsonl")):
        try:
            record = journal.read(path)
        except FileNotFoundError:
            continue  # Another process has settled it.
        if record is None:
            journal.settled(path)
            continue
        ended = not record.process.is_alive() or (record.process == own and record.ending)
        if ended and settle(record):
            journal.settled(path)
    _settle_unrecorded(store)


def settle(record: RunRecord, *, patience: float = 15.0, flow_run: bool = True) -> bool:
    """Gives every node of a run one row with its name and state, and the run its state.

    Rows are sent to the server as events, as Prefect's own engine sends them. So they have the
    times of the journal, and events still in the engine's queues are older and ignored.

    Args:
      record: the run.
      patience: longest wait for the server to write another row [s].
      flow_run: whether to settle the run's own state, too; False if Prefect will set it.

    Returns:
      Whether every row was seen to agree.
    """
    if record.ending is None:
        record.ending, record.message = "crashed", _KILLED
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(uuid.UUID(record.flow_run_id))
        except ObjectNotFound:
            return True  # The run is another server's, or the database is new.
        told = _settle_tasks(client, record, patience)
        if flow_run and (run.state is None or not run.state.is_final()):
            kind = _ENDINGS[record.ending]
            if run.state is not None and run.state.is_cancelling():
                kind = StateType.CANCELLED
            state: State[Any] = State(type=kind, message=record.message or None)
            client.set_flow_run_state(run.id, state, force=True)
    return told


def _settle_unrecorded(store: Path) -> None:
    """Ends runs whose process was killed after its row was made and before its journal was."""
    kinds = FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
    asked = FlowRunFilter(state=FlowRunFilterState(type=kinds))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=asked, limit=_PAGE):
            note = run.context.get(_PROCESS)
            if note is None or ProcessNote.read(note).is_alive():
                continue
            if not (journal.folder(store) / f"{run.id}.jsonl").exists():
                state: State[Any] = State(type=StateType.CRASHED, message=_KILLED)
                client.set_flow_run_state(run.id, state, force=True)


def is_cancelling(flow_run_id: str) -> bool:
    """Returns whether somebody has asked the server to cancel a run."""
    if not flow_run_id:
        return False
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(uuid.UUID(flow_run_id)).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def flush(timeout: float = 10.0) -> None:
    """Sends what Prefect's client still has in its queues: events and log lines.

    Args:
      timeout: longest time for each of the two [s].
    """
    EventsWorker.drain_all(timeout=timeout, at_exit=False)
    APILogWorker.drain_all(timeout=timeout, at_exit=False)


def _settle_tasks(client: SyncPrefectClient, record: RunRecord, patience: float) -> bool:
    # Events sent during the run may still be on their way: wait until the rows stop changing.
    waited, missing, pause = 0.0, -1, _FIRST_PAUSE
    fewest, deadline = math.inf, math.inf
    while True:
        rows = list(rows_of(client, record.flow_run_id))
        wrong = list(_wrong(record, rows))
        if not wrong:
            return True
        if len(wrong) < fewest:  # The server makes progress; thousands of rows take it minutes.
            fewest, deadline = len(wrong), time.monotonic() + patience
        if time.monotonic() > deadline:
            return False
        if waited < min(_UNDER_WAY, patience / 3):
            waited = waited + pause if len(wrong) == missing else 0.0
            missing = len(wrong)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            continue
        now = datetime.datetime.now(datetime.UTC)
        run = record.flow_run_id
        told = [event(run, node, state, now, row=row) for node, row, state in wrong]
        client.request("POST", "/events", json=told)
        logs = [
            LogCreate(
                name="parcel.study",
                level=20,
                message=node.told,
                timestamp=cast(Any, now),
                flow_run_id=uuid.UUID(run),
                task_run_id=uuid.UUID(node.task_run_id),
            )
            for node, _, _ in wrong
            if node.name not in record.nodes or record.nodes[node.name].task_run_id is None
            if node.outcome is not None
        ]
        if logs:
            client.create_logs(logs)
        # The server writes events one after the other; sending one twice changes nothing.
        _wait(client, record, [str(node.task_run_id) for node, _, _ in wrong], now, deadline)


def _wait(
    client: SyncPrefectClient,
    record: RunRecord,
    ids: Sequence[str],
    told: datetime.datetime,
    deadline: float,
) -> None:
    awaited, pause = set(ids), _FIRST_PAUSE
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        rows = rows_of(client, record.flow_run_id)
        if awaited <= {str(row.id) for row in rows if row.told is not None and row.told >= told}:
            return


def _wrong(record: RunRecord, rows: Sequence[Row]) -> Iterator[tuple[Node, Row | None, State[Any]]]:
    """Yields each node whose row is missing or wrong, with that row and the node's state.

    The yielded node has the id of its row.
    """
    by_id = {str(row.id): row for row in rows}
    by_name = {row.name: row for row in rows}
    matched: set[uuid.UUID] = set()
    for node in _shown(record):
        row = by_id.get(node.task_run_id or "") or by_name.get(node.name)
        state = _state_of(node, record)
        if row is not None:
            matched.add(row.id)
            if (row.state, row.name) != (state.type, node.name):
                yield dataclasses.replace(node, task_run_id=str(row.id)), row, state
            continue
        own = node.task_run_id or str(row_id(record.flow_run_id, node.name))
        yield dataclasses.replace(node, task_run_id=own), None, state
    for row in rows:  # Rows that the journal does not know, and that nobody will end.
        if row.id not in matched and not row.is_final:
            node = Node(name=row.name, task_run_id=str(row.id))
            yield node, row, _state_of(node, record)


def _shown(record: RunRecord) -> Iterator[Node]:
    """Yields the nodes that get a row each, and one node that stands for many re-used ones."""
    silent = [n for n in record.nodes.values() if n.outcome == "reused" and n.task_run_id is None]
    many = len(silent) > MAX_REUSED_ROWS
    for node in record.nodes.values():
        if not (many and node.outcome == "reused" and node.task_run_id is None):
            yield node
    if many:
        names = "\n".join(node.name for node in silent)
        yield Node(
            name=f"{len(silent)} re-used",
            outcome="reused",
            detail=names,
            started=silent[0].ended,
            ended=silent[-1].ended,
        )


def _state_of(node: Node, record: RunRecord) -> State[Any]:
    if node.outcome is not None:
        return State(type=TYPES[node.outcome], message=node.told)
    why = f"the run {record.ending}{': ' if record.message else ''}{record.message}"
    if node.started is not None or node.name not in record.nodes:
        return State(type=StateType.CRASHED, message=f"under way when {why}")
    if record.ending in ("completed", "failed"):
        return State(type=StateType.FAILED, message="not run: an input of it failed")
    return State(type=StateType.CRASHED, message=f"not reached when {why}")


def row_id(flow_run_id: str, name: str) -> uuid.UUID:
    """Returns the id of a node's row, which is the same for everybody who sends events of it."""
    return uuid.uuid5(uuid.UUID(flow_run_id), name)


def event(
    flow_run_id: str,
    node: Node,
    state: State[Any],
    now: datetime.datetime,
    *,
    row: Row | None = None,
    reads: Sequence[Mapping[str, Any]] = (),
    attempt: int = 1,
) -> dict[str, Any]:
    """Returns the event that Prefect's engine sends when a task run changes its state.

    Source: prefect 3.8.8, utilities/engine: emit_task_run_state_change_event.

    Args:
      flow_run_id: id of the run.
      node: the node; its task run id names the row.
      state: new state of the row.
      now: time of that state; the server keeps a newer one.
      row: existing row of that id, if there is one.
      reads: ids of the rows of its inputs, as Prefect's task inputs.
      attempt: number of the attempt, counted from 1.
    """
    ended = node.ended or now
    began = (node.started or ended).isoformat()
    if row is not None and not node.started:
        began = row.start_time or began
    started = datetime.datetime.fromisoformat(began)
    run: dict[str, Any] = {
        "name": node.name,
        "task_key": row.task_key if row else _KEY,
        "dynamic_key": row.dynamic_key if row else node.name,
        "expected_start_time": began,
        "start_time": began,
        "run_count": max(attempt, row.run_count if row else 1),
    }
    if state.is_final():
        run |= {
            "end_time": ended.isoformat(),
            "total_run_time": (ended - started).total_seconds(),
        }
    if reads:
        run["task_inputs"] = {"wait_for": list(reads)}
    label = state.name or ""
    return {
        "id": str(uuid.uuid4()),
        "occurred": now.isoformat(),
        "event": f"prefect.task-run.{label}",
        "resource": {
            "prefect.resource.id": f"prefect.task-run.{node.task_run_id}",
            "prefect.resource.name": node.name,
            "prefect.orchestration": "client",
            "prefect.state-name": label,
            "prefect.state-type": state.type.value,
        },
        "related": [
            {
                "prefect.resource.id": f"prefect.flow-run.{flow_run_id}",
                "prefect.resource.role": "flow-run",
            }
        ],
        "payload": {
            "intended": {"from": None, "to": state.type.value},
            "initial_state": None,
            "validated_state": {
                "type": state.type.value,
                "name": label,
                "message": state.message,
                "state_details": {},
                "data": None,
            },
            "task_run": run,
        },
    }


def rows_of(client: SyncPrefectClient, flow_run_id: str) -> Iterator[Row]:
    """Yields a run's rows as plain values; Prefect's own objects take twenty times as long."""
    asked = {"flow_runs": {"id": {"any_": [flow_run_id]}}, "sort": "ID_DESC", "limit": _PAGE}
    for offset in range(0, 10_000_000, _PAGE):
        words = {**asked, "offset": offset}
        page = client.request("POST", "/task_runs/filter", json=words).json()
        for found in page:
            state = found["state"]
            yield Row(
                id=uuid.UUID(found["id"]),
                name=found["name"],
                task_key=found["task_key"],
                dynamic_key=found["dynamic_key"],
                run_count=found["run_count"],
                state=StateType(state["type"]) if state else None,
                told=datetime.datetime.fromisoformat(state["timestamp"]) if state else None,
                start_time=found["start_time"],
            )
        if len(page) < _PAGE:
            return
