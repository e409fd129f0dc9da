"""A run that waits for a person: its form is there as soon as it is seen to wait."""

import contextvars
import threading
import time
import uuid
from pathlib import Path
from typing import cast

import pytest


@pytest.mark.slow
def test_whoever_sees_the_pause_finds_the_form_and_resumes_it(served_store: Path):
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    from infra.prefect.approval import wait_for_approval

    run_id: list[uuid.UUID] = []

    @flow
    def study() -> None:
        run_id.append(uuid.UUID(cast(str, flow_run.id)))
        wait_for_approval(str(run_id[0]), "the plan of toy")

    # The fixture's settings are this context's: a thread has its own unless it is given a copy.
    run = threading.Thread(target=contextvars.copy_context().run, args=(study,), daemon=True)
    run.start()
    with get_client(sync_client=True) as client:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            state = client.read_flow_run(run_id[0]).state if run_id else None
            if state is not None and state.is_paused():
                break
            time.sleep(0.05)
        else:
            pytest.fail("the run was not seen to wait")
        inputs = client.filter_flow_run_input(run_id[0], "paused", 9, set())
        assert any("the plan of toy" in each.value for each in inputs)
        client.resume_flow_run(run_id[0], {"start": True})
        run.join(300)
        state = client.read_flow_run(run_id[0]).state
    assert state is not None
    assert state.is_completed()
