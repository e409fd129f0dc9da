"""A cluster already there: code comes to its workers; a task gets what it asks for, or an error."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.steps.code import checkout
from infra.ray.cluster import Cluster
from tests.processes import end_family

pytestmark = pytest.mark.slow

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


def digest() -> Iterator[dict[str, bytes]]:
    yield dict(checkout().files)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node with more cores than this machine, and an old checkout at hand."""
    home = tmp_path_factory.mktemp("node")
    for package in ("flows", "infra"):
        (home / package).mkdir()
        (home / package / "__init__.py").write_text("raise ImportError('an old checkout')")
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    # Ray takes 127.0.0.1 for "this machine", and looks for another address of it.
    node = subprocess.Popen(
        [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
            "--node-ip-address=127.0.0.2", f"--port={port}", "--include-dashboard=false",
            "--num-cpus=5", "--num-gpus=0", '--resources={"TPU": 4}',
            "--object-store-memory=100000000",
        ],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(home), "WHOSE": "the node's"}
        | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert node.stdout is not None
        for line in node.stdout:
            if "Ray runtime started" in line:
                break
        yield f"127.0.0.2:{port}"
    finally:
        end_family(psutil.Process(node.pid))


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
