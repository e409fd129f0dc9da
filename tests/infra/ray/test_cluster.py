"""A cluster of this machine: streams, losses, devices, and what it leaves open or behind."""

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.ray.cluster import Cluster
from infra.ray.devices import device_environment, usable_gpus, worker_environment
from infra.ray.errors import RayWorkerLostError
from tests.processes import LOOPBACK, command_line, listened, listening

pytestmark = pytest.mark.slow


def counted(num: int, pause: float = 0.0) -> Iterator[int]:
    for i in range(num):
        time.sleep(pause)
        yield i


def told_environment(*names: str) -> Iterator[dict[str, str | None]]:
    yield {name: os.environ.get(name) for name in names}


def failing() -> Iterator[int]:
    yield 1
    raise KeyError("no such thing")


def dying() -> Iterator[int]:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One cluster for all: a start takes seconds. The tests that damage and stop it come last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_PLATFORMS", raising=False)
        made = Cluster(num_cpus=2, num_gpus=2)
        made.start()
    yield made
    made.stop()


def below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def first(name: str) -> psutil.Process:
    return next(process for process in below() if command_line(process).startswith(name))


def without_files() -> None:
    """Deletes what Ray keeps in the folder of temporary files.

    Ray's processes delete and make files there meanwhile, and its end deletes the folder itself.
    """
    session = Path(session_of(first("raylet")))
    shutil.rmtree(session, ignore_errors=True)
    assert not (session / "sockets").exists()


def session_of(raylet: psutil.Process) -> str:
    session = re.search(r"/\S*/session_[^/\s]+", command_line(raylet))
    assert session
    return session[0]


def test_streams_items_errors_and_lost_workers(cluster: Cluster):
    assert list(cluster.stream(counted, 3, num_cpus=1, name="three")) == [0, 1, 2]
    items = cluster.stream(failing, num_cpus=1, name="failing")
    assert next(items) == 1
    with pytest.raises(KeyError, match="no such thing"):
        next(items)
    with pytest.raises(RayWorkerLostError, match="'dying'"):
        list(cluster.stream(dying, num_cpus=1, name="dying"))


def test_a_stream_left_early_gives_its_core_back(cluster: Cluster):
    for i in range(3):  # More than there are cores: each must be freed for the next.
        items = cluster.stream(counted, 10_000, 0.05, num_cpus=2, name=f"endless {i}")
        assert next(items) == 0
        items.close()  # type: ignore[attr-defined]


def test_a_stream_left_as_its_task_ends_harms_no_other(cluster: Cluster):
    # Where a cancellation crossed the end, Ray gave the next task to a worker about to be killed,
    # or ended the driver.
    for i in range(60):
        items = cluster.stream(counted, 1 + i % 2, num_cpus=1, name=f"short {i}")
        assert next(items) == 0
        items.close()  # type: ignore[attr-defined]


def test_it_listens_on_loopback_only(cluster: Cluster):
    assert list(cluster.stream(counted, 1, num_cpus=1, name="one")) == [0]
    family = below()
    assert {"raylet", "gcs_server"} <= {command_line(process).split(" ")[0] for process in family}
    heard = listened(family)
    assert heard
    assert heard <= LOOPBACK


def test_no_port_tells_a_stranger_anything(cluster: Cluster):
    assert list(cluster.stream(counted, 1, num_cpus=1, name="one")) == [0]
    # Pages of metrics ask for no token. The head's would begin last; it notes that they did not.
    logs = Path(session_of(first("raylet"))) / "logs"
    for name in ("monitor.log", "dashboard.log"):
        while "while starting the metrics server" not in (logs / name).read_text():
            time.sleep(0.1)
    asked = 0
    for port in {entry.port for entry in listening(below())}:
        for path in ("/", "/metrics", "/api/version", "/api/jobs/"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            with contextlib.suppress(http.client.HTTPException, OSError):  # It speaks gRPC.
                connection.request("GET", path)
                assert connection.getresponse().status == 401
                asked += 1
            connection.close()
    assert asked


def test_nobody_else_reads_its_files_or_runs_anything_on_it(cluster: Cluster):
    assert list(cluster.stream(counted, 1, num_cpus=1, name="one")) == [0]
    session = Path(session_of(first("raylet")))
    assert session.is_dir()
    folder = session.parents[1]  # Ray's own folder, which it opens to everybody, lies within it.
    assert folder.stat().st_mode & 0o077 == 0
    # What any user of the machine can see and try: the address, without the token.
    address = re.search(r"--gcs-address=(\S+)", command_line(first("raylet")))
    assert address
    code = f"import ray; ray.init(address={address[1]!r}); print('came in')"
    token = first("raylet").environ()["RAY_AUTH_TOKEN"]
    for known, comes_in in (("", False), ("0" * 64, False), (token, True)):
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": known} if known else {}
        stranger = subprocess.run(
            [sys.executable, "-c", code],
            # Without this, Ray looks for a cluster on the loopback at the machine's other address.
            env={**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **auth},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ("came in" in stranger.stdout) == comes_in, stranger.stderr[-500:]


def test_a_task_gets_the_gpus_it_asks_for_and_no_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    names = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_MEM_FRACTION")

    def seen(num_gpus: float) -> list[str | None]:
        task = cluster.stream(
            told_environment, *names, num_cpus=1, num_gpus=num_gpus, name=f"{num_gpus} GPUs"
        )
        return list(next(task).values())

    assert seen(0) == ["", "cpu", None]
    assert seen(1) in (["0", "cuda,cpu", "0.90"], ["1", "cuda,cpu", "0.90"])
    assert seen(0.5)[1:] == ["cuda,cpu", "0.45"]
    assert seen(float("inf")) == ["0,1", "cuda,cpu", "0.90"]
    # Two halves lie on one GPU at the same time.
    halves = [
        cluster.stream(told_environment, *names, num_cpus=1, num_gpus=0.5, name="half")
        for _ in range(2)
    ]
    assert len({next(half)["CUDA_VISIBLE_DEVICES"] for half in halves}) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda: first("raylet").kill(), lambda: first("gcs_server").kill(), without_files],
    ids=["raylet", "gcs_server", "files"],
)
def test_a_dead_head_is_a_lost_worker_and_the_next_try_starts_a_fresh_one(
    cluster: Cluster, damage: Callable[[], None]
):
    items = cluster.stream(counted, 10_000, 0.05, num_cpus=1, name="long")
    assert next(items) == 0
    damage()
    began = time.monotonic()
    with pytest.raises(RayWorkerLostError, match="'long' died"):
        list(items)
    assert time.monotonic() - began < 10
    assert list(cluster.stream(counted, 2, num_cpus=1, name="again")) == [0, 1]


def test_stopped_twice_and_from_two_threads_it_leaves_no_process(cluster: Cluster):
    assert list(cluster.stream(counted, 1, num_cpus=1, name="one")) == [0]
    # Other tests of this process may have servers of their own.
    own = [p for p in psutil.Process().children() if "infra.ray.driver" in command_line(p)]
    left = [process for driver in own for process in (driver, *driver.children(recursive=True))]
    assert len(left) > 3
    folder = Path(session_of(first("raylet"))).parents[1]
    threads = [threading.Thread(target=cluster.stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cluster.stop()
    assert not psutil.wait_procs(left, timeout=10)[1]
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="being stopped"):
        cluster.start()


def test_the_users_own_platform_wins():
    assert device_environment(1, 0, {"JAX_PLATFORMS": "cpu"})["JAX_PLATFORMS"] == "cpu"
    assert device_environment(0, 4, {}) == {"JAX_PLATFORMS": "tpu,cpu"}
    assert device_environment(1 / 3, 0, {})["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.30"
    own = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}
    assert device_environment(0.5, 0, own)["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"


def test_what_runs_on_a_gpu_is_compiled_to_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
    ours, users, threads = worker_environment(2, 0.5, 0, {})["XLA_FLAGS"].split()
    assert ours == "--xla_gpu_deterministic_ops=true"
    assert users == "--xla_gpu_deterministic_ops=false"  # The last one counts.
    assert threads == "--xla_cpu_multi_thread_eigen=true"
    monkeypatch.delenv("XLA_FLAGS")
    assert worker_environment(1, 0, 0, {})["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"


def test_no_gpu_is_taken_from_a_user_who_keeps_to_the_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert usable_gpus(None) == 0
    assert usable_gpus(2) == 2


def test_its_folder_is_short_and_outlives_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Sockets have names of at most 107 bytes, of which Ray's session takes most.
    long = tmp_path / "slurm_jobdir_of_a_cluster_with_long_paths/1355700/tmp.t0016/of_user_somebody"
    long.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)
    made = Cluster(num_cpus=1)
    made.start()
    try:
        assert list(made.stream(counted, 2, num_cpus=1, name="before")) == [0, 1]
        shutil.rmtree(long)  # As a cleaner of old files does.
        assert list(made.stream(counted, 2, num_cpus=1, name="after")) == [0, 1]
    finally:
        made.stop()
