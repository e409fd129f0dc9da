"""Alerts: a failed, stalled or too long run is told by webhook and mail, through a real server."""

import asyncio
import contextlib
import http.server
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.deep


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address that takes what is posted to it, and what was."""
    heard: list[dict[str, Any]] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/token-of-the-lab", heard
    server.shutdown()
    server.server_close()


@pytest.fixture
def mailbox() -> Iterator[tuple[str, list[str]]]:
    """The address of a mail server that takes any mail, and the mails that came."""
    mails: list[str] = []
    loop = asyncio.new_event_loop()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                word = line[:4].upper()
                if word == b"DATA":
                    writer.write(b"354 go on\r\n")
                    mails.append((await reader.readuntil(b"\r\n.\r\n")).decode())
                writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                await writer.drain()
                if word == b"QUIT":
                    break
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(talk, "127.0.0.1", 0))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = server.sockets[0].getsockname()[1]
    yield f"mailto://127.0.0.1:{port}?from=parcel@lab.test&to=owner@lab.test", mails
    loop.call_soon_threadsafe(loop.stop)


def deployed_run(name: str) -> tuple[str, Callable[[Any], None]]:
    """Registers a deployment and a run of it; returns its id and what sets the run's state."""
    from prefect import flow
    from prefect.client.orchestration import get_client

    @flow(name="study")
    def study() -> None: ...

    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(study)
        deployment = client.create_deployment(flow_id, name)
        run = client.create_flow_run_from_deployment(deployment, name=f"run of {name}")

    def become(state: Any) -> None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, state, force=True)

    return str(deployment), become


def registered(name: str, deployment: str, **values: Any) -> dict[str, str]:
    from infra.prefect.alerts import Alerts, register_alerts
    from infra.prefect.api import named_server

    with named_server() as client:
        said = register_alerts(client, f"study/{name}", deployment, Alerts(**values))
    time.sleep(5)  # The server's services hear of an automation a moment later.
    return said


def wait(heard: list[Any], number: int, within: float = 180.0) -> None:
    deadline = time.monotonic() + within
    while len(heard) < number:
        assert time.monotonic() < deadline, heard
        time.sleep(0.2)


@pytest.mark.usefixtures("served_store")
def test_a_failed_and_a_crashed_run_are_told_and_another_deployments_are_not(
    webhook: tuple[str, list[dict[str, Any]]], mailbox: tuple[str, list[str]]
):
    from prefect.states import Completed, Crashed, Failed, Running

    (address, heard), (mail, mails) = webhook, mailbox
    deployment, become = deployed_run("bad")
    _, other = deployed_run("other")
    first = registered("bad", deployment, addresses=[address, mail])
    assert first == {"study/bad: failed": "new", "study/bad: stalled": "new"}
    again = registered("bad", deployment, addresses=[address, mail])
    assert set(again.values()) == {"unchanged"}
    changed = registered("bad", deployment, addresses=[address, mail], stall=30)
    assert changed == {"study/bad: failed": "unchanged", "study/bad: stalled": "changed"}
    other(Failed(message="not ours"))
    become(Running())
    become(Failed(message="1 steps failed"))
    wait(heard, 1)
    assert heard[0]["subject"] == "study/bad: run of bad"
    assert "state: Failed 1 steps failed" in heard[0]["text"]
    assert "/runs/flow-run/" in heard[0]["text"]
    become(Running())
    become(Crashed(message="its lease lapsed"))
    wait(heard, 2)
    assert "state: Crashed its lease lapsed" in heard[1]["text"]
    wait(mails, 2)
    assert "To: owner@lab.test" in mails[0]
    become(Running())
    become(Completed())
    time.sleep(3)
    assert len(heard) == 2


@pytest.mark.night
@pytest.mark.usefixtures("served_store")
def test_a_run_that_makes_no_progress_is_told_once_and_one_over_the_cap_is_cancelled(
    webhook: tuple[str, list[dict[str, Any]]], tmp_path: Path
):
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    from infra.prefect.watch import _emit_progress

    address, heard = webhook
    deployment, become = deployed_run("slow")
    registered("slow", deployment, addresses=[address], stall=0.5, cap=0.025, cancel=True)
    become(Running())
    began = time.monotonic()
    with get_client(sync_client=True) as client:
        asked = {"flow_runs": {"name": {"any_": ["run of slow"]}}}
        (found,) = client.request("POST", "/flow_runs/filter", json=asked).json()
        run = client.read_flow_run(uuid.UUID(found["id"]))
        while time.monotonic() - began < 40:  # Longer than it may be silent, but it is not.
            _emit_progress(run)
            time.sleep(3)
        assert heard == []
        wait(heard, 1)
        assert "No progress was seen for 0.5 minutes." in heard[0]["text"]
        wait(heard, 2)
        assert "longer than 0.025 hours. It is cancelled." in heard[1]["text"]
        state = client.read_flow_run(run.id).state
        assert state is not None
        assert state.name in ("Cancelling", "Cancelled")


@pytest.mark.usefixtures("served_store")
def test_addresses_are_secrets():
    from prefect.client.orchestration import get_client

    from infra.errors import ConfigError

    deployment, _ = deployed_run("secret")
    token = "https://hooks.slack.com/services/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"
    for address in (token, "https://lab.test/verysecret", "mailto://me:verysecret@lab.test"):
        registered("secret", deployment, addresses=[address])
    with get_client(sync_client=True) as client:
        shown = client.request("POST", "/block_documents/filter", json={}).text
    assert "parcel-alert-" in shown
    assert "verysecret" not in shown
    for wrong in ("ftp://verysecret", "verysecret", "slack-webhook/none"):
        with pytest.raises(ConfigError, match="--alert must be") as refused:
            registered("secret", deployment, addresses=[wrong])
        assert "verysecret" not in str(refused.value)
