"""Runs under way, noted in the store, so that one killed outright does not stay "Running"."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed


@contextlib.contextmanager
def note_running(store: Path, run_id: str) -> Iterator[None]:
    """Notes this process as the one behind a flow run, and tells Prefect of those that died.

    Args:
      store: the store's folder.
      run_id: of the flow run; "" where there is none.
    """
    folder = store / "runs" / "active"
    folder.mkdir(parents=True, exist_ok=True)
    for note in folder.glob("*.json"):
        if not _is_alive(note):
            _tell_crashed(note.stem)
            note.unlink(missing_ok=True)
    if not run_id:
        yield
        return
    own = folder / f"{run_id}.json"
    process = psutil.Process()
    note = {"pid": process.pid, "began": process.create_time(), "host": os.uname().nodename}
    own.write_text(json.dumps(note))
    try:
        yield
    finally:
        own.unlink(missing_ok=True)


def _is_alive(note: Path) -> bool:
    """Whether the noted process lives; one of another host is believed to."""
    try:
        noted = json.loads(note.read_text())
    except (OSError, json.JSONDecodeError):
        return False
    if noted["host"] != os.uname().nodename:
        return True
    try:
        return psutil.Process(noted["pid"]).create_time() == noted["began"]
    except psutil.NoSuchProcess:
        return False


def _tell_crashed(run_id: str) -> None:
    state = Crashed(message="The process running it was killed; a later run took up its work.")
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound):
        for task in _running_tasks(client, run_id):
            client.set_task_run_state(task, state, force=True)
        client.set_flow_run_state(run_id, state, force=True)  # type: ignore[arg-type]


def _running_tasks(client: SyncPrefectClient, run_id: str) -> list:
    running = TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
    found = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])),  # type: ignore[list-item]
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=running)),
    )
    return [task.id for task in found]
