"""Beam's worker pools on machines of their own, which see a bucket and no folder of anybody's.

switch   10.98.0.1     a bridge, the Cloud Storage, and a service that shares out connections
driver   10.98.0.2     the command
pool 1…  10.98.0.3 …   `worker_pool_main`, as Flink's task managers and Kubernetes run it
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil
import pytest

from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus
from tests.gcs.server import GCS
from tests.nodes.machines import (
    CHECKOUT,
    KEPT,
    OWN_TMP,
    VENV,
    _inside,
    _run,
    skip_without_namespaces,
)

pytestmark = pytest.mark.deep

SWITCH, DRIVER, PORT = "10.98.0.1", "10.98.0.2", 50000
STALL = 15

_SETUP = f"""
set -eu
hostname "$1"
ip link set lo up
mount --bind "$HOSTS" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
{OWN_TMP}
mkdir /tmp/home
cd /tmp
shift
"$@"
echo ended
"""


class Pools:
    """The switch, a driver and some worker pools, from entering it as a context to leaving it."""

    def __init__(self, pools: Sequence[str], logs: Path) -> None:
        self._names, self._logs = list(pools), logs
        self._prefix = f"pools{os.getpid()}"
        self._cleanup = contextlib.ExitStack()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.connections: list[str] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as cleanup:
            switch = self._namespace(cleanup, "switch")
            _run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
            _run("ip", "-n", switch, "addr", "add", f"{SWITCH}/24", "dev", "switch")
            for link in ("lo", "switch"):
                _run("ip", "-n", switch, "link", "set", link, "up")
            addresses = {n: f"10.98.0.{3 + i}" for i, n in enumerate(self._names)}
            self._hosts = self._logs / "hosts"
            lines = [f"{a} {n}\n" for n, a in {"driver": DRIVER, **addresses}.items()]
            self._hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
            with _inside(switch):  # A socket stays in the network that it was made in.
                self.gcs = GCS(host=SWITCH)
                listening = socket.create_server((SWITCH, PORT))
            self.gcs.bucket("testing")
            cleanup.enter_context(self.gcs)
            cleanup.callback(listening.close)
            threading.Thread(
                target=self._share_out, args=(switch, listening, addresses), daemon=True
            ).start()
            self._link(cleanup, "driver", DRIVER)
            serve = ["-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={PORT}"]
            for name, address in addresses.items():
                self._link(cleanup, name, address)
                if name != "absent":
                    process = self.popen(name, sys.executable, *serve)
                    cleanup.callback(process.wait)
                    cleanup.callback(process.kill)
                    self.processes[name] = process
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def popen(self, machine: str, *command: str) -> subprocess.Popen[bytes]:
        """Starts a command on a machine; what it prints is in its log."""
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        environment = {
            **os.environ,
            **self.gcs.environment,
            "HOSTS": str(self._hosts),
            "KEPT": KEPT,
        }
        environment |= {"HOME": "/tmp/home", "PARCEL_STATE": "/tmp/state", "TMPDIR": "/tmp"}
        environment |= {"PYTHONPATH": str(CHECKOUT), "PATH": f"{VENV}/bin:{os.environ['PATH']}"}
        with (self._logs / f"{machine}.log").open("w") as log:
            return subprocess.Popen(
                [
                    "setpriv", "--pdeathsig", "KILL",
                    "ip", "netns", "exec", f"{self._prefix}-{machine}", "unshare", *spaces,
                    "bash", "-c", _SETUP, "bash", machine, *command,
                ],
                env=environment, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def kill(self, machine: str) -> None:
        """Ends everything on a machine at once."""
        psutil.Process(self.processes[machine].pid).children()[0].kill()

    def told(self, machine: str) -> str:
        return (self._logs / f"{machine}.log").read_text()

    def _namespace(self, cleanup: contextlib.ExitStack, name: str) -> str:
        full = f"{self._prefix}-{name}"
        _run("ip", "netns", "add", full)
        cleanup.callback(_run, "ip", "netns", "delete", full)
        return full

    def _link(self, cleanup: contextlib.ExitStack, name: str, address: str) -> None:
        inside, switch = self._namespace(cleanup, name), f"{self._prefix}-switch"
        end = ["type", "veth", "peer", "name", "eth0", "netns", inside]
        _run("ip", "-n", switch, "link", "add", name, *end)
        _run("ip", "-n", switch, "link", "set", name, "master", "switch", "up")
        _run("ip", "-n", inside, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", inside, "link", "set", "eth0", "up")

    def _share_out(self, switch: str, listening: socket.socket, addresses: dict[str, str]) -> None:
        """Gives each connection to the next pool that answers, as a Kubernetes service does."""
        names, turn = list(addresses), 0
        with _inside(switch):
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                for _ in names:
                    name, turn = names[turn % len(names)], turn + 1
                    try:
                        server = socket.create_connection((addresses[name], PORT), timeout=1)
                    except OSError:
                        continue
                    self.connections.append(name)
                    for one, other in ((client, server), (server, client)):
                        threading.Thread(target=_pump, args=(one, other), daemon=True).start()
                    break
                else:
                    client.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    source.settimeout(None)
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("drawn") / "raw"
    config = CorpusConfig(
        num_web=120,
        num_charts=0,
        num_scenes=0,
        num_videos=0,
        shard_size=10,
        image_width=900,
        image_height=900,
    )
    render_corpus(config, str(root))
    return root


OPTIONS = ("--num-shards", "24", "--image-px", "224", "--max-reject-rate", "0.5")


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "out"
    words = ["web", "train", "--data-root", str(corpus), "--out", str(out), *OPTIONS]
    subprocess.run([sys.executable, "-m", "pipelines.prepare", *words], check=True)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@contextlib.contextmanager
def driven(
    pools: Sequence[str], corpus: Path, tmp_path: Path
) -> Iterator[tuple[Pools, subprocess.Popen[bytes]]]:
    skip_without_namespaces()
    with Pools(pools, tmp_path) as machines:
        machines.gcs.upload(corpus, "raw")
        words = ["web", "train", "--data-root", "gs://testing/raw", "--out", "gs://testing/out"]
        external = ["environment_type=EXTERNAL", f"environment_config={SWITCH}:{PORT}"]
        words += [*OPTIONS, "--num-workers", "2", "--stall-s", str(STALL)]
        words += ["--runner-options", *external]
        command = [sys.executable, "-m", "pipelines.prepare", *words]
        run = machines.popen("driver", *command)
        try:
            yield machines, run
        finally:
            run.kill()
            run.wait()


def made(machines: Pools) -> dict[str, bytes]:
    bucket = machines.gcs.store.bucket("testing")
    names = [name for name in bucket.names if name.startswith("out/")]
    return {name.removeprefix("out/"): bucket.objects[name].data for name in names}


def pieces(machines: Pools) -> int:
    names = list(machines.gcs.store.bucket("testing").names)
    return sum(name.startswith("out/.work/pieces/") and name.endswith(".json") for name in names)


def test_two_pools_give_the_bytes_of_one_process(corpus, tmp_path, expected):
    with driven(["pool1", "pool2"], corpus, tmp_path) as (machines, run):
        run.wait(timeout=240)
        assert "web/train:" in machines.told("driver"), machines.told("driver")[-3000:]
        assert made(machines) == expected
        assert set(machines.connections) == {"pool1", "pool2"}


def test_a_pool_that_is_killed_costs_a_retry(corpus, tmp_path, expected):
    with driven(["pool1", "pool2"], corpus, tmp_path) as (machines, run):
        while pieces(machines) < 3:
            assert run.poll() is None, machines.told("driver")[-3000:]
            time.sleep(0.02)
        machines.kill("pool2")
        before = pieces(machines)
        run.wait(timeout=240)
        assert before < 24
        assert "web/train:" in machines.told("driver"), machines.told("driver")[-3000:]
        assert made(machines) == expected


def test_pools_that_never_start_end_the_run_in_time(corpus, tmp_path):
    began = time.monotonic()
    with driven(["absent"], corpus, tmp_path) as (machines, run):
        run.wait(timeout=STALL + 60)
        assert time.monotonic() - began < STALL + 60
        (line,) = [x for x in machines.told("driver").splitlines() if x.startswith("error:")]
        assert "FnApiRunner" in line
