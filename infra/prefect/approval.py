"""Pauses a run until a person approves it in the UI."""

import datetime
import time
import uuid
from typing import cast

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.input.run_input import RunInput, keyset_from_paused_state
from prefect.states import Paused
from prefect.utilities.engine import propose_state_sync
from pydantic import Field

_LOOK_EVERY = 2.0
"""Interval between two looks at whether somebody has answered [s]."""
_TIMEOUT = 7 * 24 * 3600
"""Longest wait for an answer, after which the run fails [s]."""


class NotApprovedError(RuntimeError):
    """The run was declined or cancelled, or nobody answered in time."""


class Approval(RunInput):
    """The form of a run that waits."""

    start: bool = Field(
        default=True, title="Start it", description="Off ends the run; nothing is made then."
    )


def wait_for_approval(flow_run_id: str, text: str) -> None:
    """Pauses a run until somebody resumes it in the UI.

    Prefect's own `pause_flow_run` does not notice that a run was cancelled meanwhile.

    Args:
      flow_run_id: id of this process's run.
      text: what the run is about to do, in Markdown; shown above the form.

    Raises:
      NotApprovedError: if the run must not continue.
    """
    run, form = uuid.UUID(flow_run_id), Approval.with_initial_data(description=text)
    paused = Paused(timeout_seconds=_TIMEOUT, pause_key=uuid.uuid4().hex)
    keys = keyset_from_paused_state(paused)
    paused.state_details.run_input_keyset = cast(dict[str, str], keys)
    with get_client(sync_client=True) as client:
        # The form first: whoever sees the pause finds it.
        form.save(keys, run)
        propose_state_sync(client, paused, flow_run_id=run)
        _await_run_approval(client, run)
    answer = cast(Approval, Approval.load(keys, run))
    if not answer.start:
        raise NotApprovedError("it was not approved")


def _await_run_approval(client: SyncPrefectClient, run: uuid.UUID) -> None:
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=_TIMEOUT)
    while datetime.datetime.now(datetime.UTC) < until:
        state = client.read_flow_run(run).state
        if state is not None and state.is_running():
            return
        if state is None or state.type not in (StateType.PAUSED, StateType.RUNNING):
            raise NotApprovedError("it was cancelled before it was approved")
        time.sleep(_LOOK_EVERY)
    raise NotApprovedError(f"nobody approved it within {_TIMEOUT // 86_400} days")
