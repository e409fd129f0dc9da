"""Nodes of a Ray cluster on this machine, as `ray start` makes them on others."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.ray.jobs import JobServer
from infra.source_code import checkout
from tests.processes import end_family

HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Ray's own settings take 14 s for a node that was killed and 66 s for one that was stopped."""

# Ray takes 127.0.0.1 for "this machine", and looks for another address of it.
HEAD = "127.0.0.2"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HEAD, 0))
        return probe.getsockname()[1]


def node(home: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Starts a node whose Python looks in `home` for modules, and waits until it is up."""
    own = {
        "PYTHONPATH": str(home),
        "WHOSE": "the node's",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        **variables,
    }
    started = subprocess.Popen(
        [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-gpus=0",
            "--object-store-memory=80000000", f"--dashboard-agent-listen-port={free_port()}",
            *words,
        ],
        cwd=home, env=os.environ | own, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    assert any("Ray runtime started" in line for line in started.stdout), "Ray did not start"
    return started


@dataclasses.dataclass(frozen=True)
class Head:
    """A cluster's head: its own address, and its job server's."""

    address: str
    url: str


@contextlib.contextmanager
def head_of(home: Path, *words: str, **variables: str) -> Iterator[Head]:
    """Yields a cluster of one node, with a job server."""
    port, dashboard = free_port(), free_port()
    started = node(
        home,
        "--head",
        f"--node-ip-address={HEAD}",
        f"--port={port}",
        "--include-dashboard=true",
        f"--dashboard-host={HEAD}",
        f"--dashboard-port={dashboard}",
        f"--system-config={json.dumps(HEALTH)}",
        *words,
        **variables,
    )
    try:
        yield Head(f"{HEAD}:{port}", f"http://{HEAD}:{dashboard}")
    finally:
        end_family(psutil.Process(started.pid))


@contextlib.contextmanager
def job_servers(
    head: Head, monkeypatch: pytest.MonkeyPatch, *, node_wait: float
) -> Iterator[Callable[[], JobServer]]:
    """Yields a function that connects to a head's job server, as another process would."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    servers: list[JobServer] = []

    def connect() -> JobServer:
        servers.append(JobServer(head.address, code=checkout().files, node_wait=node_wait))
        return servers[-1]

    yield connect
    for server in servers:
        server.close()
