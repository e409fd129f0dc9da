"""A cluster already there: code comes to its workers; a task gets what it asks for, or an error."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.steps.code import checkout
from infra.ray.cluster import Cluster, WorkerLost
from tests.processes import end_family

pytestmark = pytest.mark.slow

HEALTH = {
    "health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3,
}  # fmt: skip
HERE = "tests/infra/ray/test_external.py"
FOLDERS = ("tests", "tests/infra", "tests/infra/ray")
CODE = {
    **checkout().files,
    **{f"{folder}/__init__.py": b"" for folder in FOLDERS},
    HERE: Path(__file__).read_bytes(),
    "tests/processes.py": Path(__file__).parents[2].joinpath("processes.py").read_bytes(),
}


def told(*names: str) -> Iterator[dict[str, str | None]]:
    yield {name: os.environ.get(name) for name in names}


def origins() -> Iterator[dict[str, str]]:
    import flows.steps.code
    import infra.ray.driver

    yield {module.__name__: str(module.__file__) for module in (flows.steps.code, infra.ray.driver)}


def endless() -> Iterator[int]:
    for i in itertools.count():
        yield i
        time.sleep(0.05)


def digest() -> Iterator[dict[str, bytes]]:
    yield dict(checkout().files)


def node(home: Path, *words: str) -> subprocess.Popen[str]:
    """Starts a node whose Python would find an old checkout, and waits until it is up."""
    own = {"PYTHONPATH": str(home), "WHOSE": "the node's"}
    started = subprocess.Popen(
        [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-gpus=0",
            "--object-store-memory=80000000", *words,
        ],
        cwd=home,
        env=os.environ | own | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert started.stdout is not None
    assert any("Ray runtime started" in line for line in started.stdout), "Ray did not start"
    return started


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("node")
    for package in ("flows", "infra"):
        (made / package).mkdir()
        (made / package / "__init__.py").write_text("raise ImportError('an old checkout')")
    return made


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """A cluster of one node, with more cores than this machine and the chips of a TPU host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    # Ray takes 127.0.0.1 for "this machine", and looks for another address of it.
    head = node(
        home, "--head", "--node-ip-address=127.0.0.2", f"--port={port}", "--num-cpus=5",
        "--include-dashboard=false", '--resources={"TPU": 4}',
        f"--system-config={json.dumps(HEALTH)}",
    )  # fmt: skip
    try:
        yield f"127.0.0.2:{port}"
    finally:
        end_family(psutil.Process(head.pid))


@pytest.fixture
def cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = Cluster(address=address, num_cpus=None, code=CODE, place_within=4)
    yield made
    made.stop()


def test_workers_run_the_code_of_the_run_whatever_lies_on_their_node(cluster: Cluster):
    (found,) = cluster.stream(origins, num_cpus=1, name="origins")
    assert all("/working_dir_files/" in path for path in found.values()), found
    (files,) = cluster.stream(digest, num_cpus=1, name="digest")
    assert files == checkout().files


def test_a_task_takes_cores_by_the_nodes_count(cluster: Cluster):
    assert cluster.cores() == 5
    (found,) = cluster.stream(told, "NPROC", num_cpus=5, name="five")
    assert found == {"NPROC": "5"}


def test_a_task_that_wants_gpus_takes_the_chips_of_a_tpu_host(cluster: Cluster):
    names = ("JAX_PLATFORMS", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    (found,) = cluster.stream(told, *names, num_cpus=1, num_gpus=0.5, name="cell")
    assert found == {"JAX_PLATFORMS": "tpu,cpu", "XLA_PYTHON_CLIENT_MEM_FRACTION": None}
    (found,) = cluster.stream(told, *names, num_cpus=1, name="no device")
    assert found["JAX_PLATFORMS"] == "cpu"


def test_the_environment_is_the_nodes_own(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WHOSE", "the driver's")
    monkeypatch.setenv("PARCEL_STATE", "/of/the/driver")
    (found,) = cluster.stream(
        told, "WHOSE", "PARCEL_STATE", "JAX_COMPILATION_CACHE_DIR", num_cpus=1, name="whose"
    )
    assert found == {"WHOSE": "the node's", "PARCEL_STATE": None, "JAX_COMPILATION_CACHE_DIR": None}


def test_a_task_too_large_for_every_node_says_so(cluster: Cluster):
    began = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        list(cluster.stream(told, num_cpus=64, name="stage1"))
    assert time.monotonic() - began < 30
    assert str(caught.value) == (
        "'stage1' could not run: no node of the cluster has 64 CPU; there are 1 with 5 CPU and "
        "4 TPU."
    )


def test_a_task_on_a_stopped_node_is_lost(cluster: Cluster, address: str, home: Path):
    words = (f"--address={address}", "--node-ip-address=127.0.0.3", "--num-cpus=6")
    second = psutil.Process(node(home, *words).pid)
    try:
        items = cluster.stream(endless, num_cpus=6, name="cell")
        assert next(items) == 0
        for process in [second, *second.children(recursive=True)]:
            process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(WorkerLost, match="'cell' died with its node"):
            list(items)
        assert time.monotonic() - began < 20  # Of 420 until Ray gives its connection up.
    finally:
        end_family(second)
