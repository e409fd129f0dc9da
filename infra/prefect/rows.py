"""The UI's rows of runs: the state that a node ends in, and rows that nobody else will end.

While a run is alive, Prefect's engine makes the row of each node and sets its states. If the run's
process is killed, or its server was away for a while, some rows are left *Running* or are missing:

    journal: made    row: Running    ─▶ Completed
    journal: made    no row          ─▶ Completed, a row made now
    journal: began   row: Running    ─▶ Crashed: "under way when the run crashed: …"
    journal: -       no row          ─▶ nothing: a node that never began has no row
"""

import dataclasses
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import Flow, Task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType, TaskRun
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.logging.handlers import APILogWorker

from infra.prefect import journal
from infra.prefect.api import read_all
from infra.prefect.journal import JournalNode, RunRecord
from infra.processes.identity import ProcessIdentity
from infra.store.redact import redact
from infra.store.store import Store

_KILLED = "its process was killed"
_PROCESS = "process"
"""Key in the context of a run that a command began: the process that runs it."""
_OUTCOMES = {
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
_UNFINISHED = [state for state in StateType if state not in TERMINAL_STATES]


def begin(flow: Flow[..., Any], parameters: dict[str, Any]) -> FlowRun:
    """Makes the row of a run of this process, with a note of the process.

    Prefect's engine makes a row, and only then calls the flow, which opens a journal. If the
    process is killed in between, the note shows that the run has ended.

    Args:
      flow: flow that will run.
      parameters: what the UI shows as its parameters.
    """
    with get_client(sync_client=True) as client:
        row = client.create_flow_run(
            flow,
            # For people alone: a flow of ours takes no arguments.
            parameters=redact(flow.serialize_parameters(parameters)),
            context={_PROCESS: dataclasses.asdict(ProcessIdentity.of_this_process())},
        )
    return row.model_copy(update={"parameters": {}})


def end_state(node: JournalNode) -> State[Any]:
    """Returns the state of the row of a node that has ended."""
    assert node.outcome is not None
    return State(type=_OUTCOMES[node.outcome], message=node.summary)


def settle_ended(store: Store) -> list[str]:
    """Settles the rows of every run of a store that ended here, or whose process is gone.

    Args:
      store: the store; Prefect's client must be set to its server.

    Returns:
      A line for each journal that is damaged, and for each run that the server did not let be
      settled; the next call tries that again.
    """
    lines: list[str] = []
    this_process = ProcessIdentity.of_this_process()
    for path, record in journal.unsettled(store):
        if record is None:
            journal.settled(path)
        elif isinstance(record, OSError):
            lines.append(f"{path}: a run's journal could not be read: {record}")
        elif journal.is_over(record, store) or (record.process == this_process and record.ending):
            try:
                settle(record)
            except PrefectHTTPStatusError as error:
                lines.append(f"run {record.flow_run_id}: its rows could not be ended: {error}")
                continue
            except ValueError as error:  # Its name is no run's.
                lines.append(f"{path}: it is no run's journal, move it out of there: {error}")
                continue
            journal.settled(path)
            if record.damaged:
                lines.append(
                    f"{path.parents[1]}/ended/{path.name}: a run's journal is damaged, and its "
                    f"rows were ended without what cannot be read: {record.damaged[0]}"
                )
    _settle_unrecorded(store.state)
    return lines


def settle(record: RunRecord) -> None:
    """Ends the rows of a run that has ended, as its journal says, and the run itself.

    Events of the run that reach the server later are older than what is set here, and ignored.
    """
    if record.ending is None:
        record.ending, record.message = "crashed", _KILLED
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(uuid.UUID(record.flow_run_id))
        except ObjectNotFound:
            return  # The run is another server's, or the database is new.
        _settle_rows(client, run, record)
        # One that is scheduled was handed back before its process ended, and will begin again.
        if run.state is None or not (run.state.is_final() or run.state.is_scheduled()):
            kind = _ENDINGS[record.ending]
            if run.state is not None and run.state.is_cancelling():
                kind = StateType.CANCELLED
            state: State[Any] = State(type=kind, message=record.message or None)
            client.set_flow_run_state(run.id, state, force=True)


def settle_earlier_try(flow_run_id: str) -> None:
    """Ends the rows that an earlier try of a run left unfinished; call it before the first row.

    A run is executed again where Kubernetes replaces its pod, or a worker takes it up after it was
    scheduled again. The machine of the earlier try may be gone, and its journal with it.
    """
    why = f"under way when an earlier try ended: {_KILLED}"
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(uuid.UUID(flow_run_id))
        if run.run_count <= 1:
            return
        for row in _unfinished_rows(client, run.id):
            # Not one of this try, which may have begun meanwhile: a slow server is not waited for.
            if row.flow_run_run_count < run.run_count:
                state: State[Any] = State(type=StateType.CRASHED, message=why)
                client.set_task_run_state(row.id, state, force=True)


def _unfinished_rows(client: SyncPrefectClient, run: uuid.UUID) -> list[TaskRun]:
    unfinished = TaskRunFilterState(type=TaskRunFilterStateType(any_=_UNFINISHED))
    return list(task_runs_of(client, run, TaskRunFilter(state=unfinished)))


def _settle_rows(client: SyncPrefectClient, run: FlowRun, record: RunRecord) -> None:
    # Whatever is still unfinished on the server gets its end, known to the journal or not.
    nodes = {node.task_run_id: node for node in record.nodes.values() if node.task_run_id}
    for row in _unfinished_rows(client, run.id):
        node = nodes.get(str(row.id)) or JournalNode(name=row.name)
        client.set_task_run_state(row.id, _last_state(node, record), force=True)
    # Rows are missing if a queue was lost with its process. All rows are read only then.
    count = {"flow_runs": {"id": {"any_": [record.flow_run_id]}}}
    if client.request("POST", "/task_runs/count", json=count).json() >= len(nodes):
        return
    present = {str(row.id) for row in task_runs_of(client, run.id)}
    for row_id, node in nodes.items():
        if row_id not in present:
            client.create_task_run(
                Task(_settle_rows, name="step"),  # Of it only the name counts.
                run.id,
                dynamic_key=row_id,
                id=uuid.UUID(row_id),
                name=node.name,
                state=_last_state(node, record),
            )


def task_runs_of(
    client: SyncPrefectClient, run: uuid.UUID, rows: TaskRunFilter | None = None
) -> Iterator[TaskRun]:
    """Yields the rows of a run, all or some."""
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    yield from read_all(client.read_task_runs, flow_run_filter=of_run, task_run_filter=rows)


def _last_state(node: JournalNode, record: RunRecord) -> State[Any]:
    if node.outcome is not None:
        return end_state(node)
    why = f"the run {record.ending}{': ' if record.message else ''}{record.message}"
    return State(type=StateType.CRASHED, message=f"under way when {why}")


def _settle_unrecorded(store: Path) -> None:
    """Ends runs whose process was killed after its row was made and before its journal was."""
    states = FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
    of_state = FlowRunFilter(state=FlowRunFilterState(type=states))
    with get_client(sync_client=True) as client:
        for run in list(read_all(client.read_flow_runs, flow_run_filter=of_state)):
            if not _has_ended(run.context.get(_PROCESS)):
                continue
            if not (journal.folder(store) / f"{run.id}.jsonl").exists():
                state: State[Any] = State(type=StateType.CRASHED, message=_KILLED)
                client.set_flow_run_state(run.id, state, force=True)


def _has_ended(note: Any) -> bool:
    """Returns whether a run's note of its process, as its row has it, is of one that has ended."""
    try:
        return note is not None and ProcessIdentity.read(note).has_ended
    except Exception:  # Whoever has the server's password may have written anything there.
        return False


def flush(timeout: float = 8.0) -> None:
    """Sends what Prefect's client still has in its queues, events and log lines, and ends them.

    Args:
      timeout: longest time for each of the two [s].
    """
    EventsWorker.drain_all(timeout=timeout, at_exit=False)
    APILogWorker.drain_all(timeout=timeout, at_exit=False)


def wait_for_events(timeout: float = 8.0) -> None:
    """Waits until Prefect's client has sent the events in its queue, of which rows are made.

    For processes in which many runs follow each other: Prefect never lets go of a worker that
    `flush` has ended, nor of its HTTP client.

    Args:
      timeout: longest time [s].
    """
    worker = EventsWorker.instance()
    waiting = threading.Thread(target=worker.wait_until_empty, daemon=True)
    waiting.start()
    waiting.join(timeout)


def is_cancelling(flow_run_id: str) -> bool:
    """Returns whether somebody has asked the server to cancel a run."""
    if not flow_run_id:
        return False
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(uuid.UUID(flow_run_id)).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())
