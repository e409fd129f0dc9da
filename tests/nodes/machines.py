"""Machines on one box that share nothing: each with its own network, files, processes and name.

    switch     10.99.0.1     a bridge, and the Cloud Storage that every machine can reach
    head       10.99.0.2     Ray's head, without cores; the command runs here, beside the checkout
    node 1 …   10.99.0.3 …   Ray's nodes; the libraries are there to read, the checkout is not

Nothing of it has an address outside of its own namespaces. Everything ends with the test: a
machine's processes with its first one, its mounts with its last one, links with their namespace.
"""

import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Self

import psutil
import pytest

from tests.e2e.conftest import environment
from tests.gcs.server import GCS
from tests.ray_nodes import HEALTH

CHECKOUT = Path(__file__).parents[2]
VENV = Path(sys.prefix).resolve()
SWITCH, HEAD = "10.99.0.1", "10.99.0.2"
PORT = 6379

_CLONE_NEWNET = 0x40000000

# Each machine has a /tmp of its own. A checkout, or a Python, that lies below this one's is bound
# into it again.
OWN_TMP = """
mount --rbind /tmp /mnt
mount -t tmpfs tmpfs /tmp
for folder in $KEPT; do mkdir -p "$folder"; mount --rbind "/mnt${folder#/tmp}" "$folder"; done
umount --recursive --lazy /mnt
"""
_NEEDED = {CHECKOUT, VENV, Path(sys.base_prefix).resolve()}
KEPT = " ".join(
    str(folder)
    for folder in sorted(_NEEDED)
    if folder.is_relative_to("/tmp") and not _NEEDED & set(folder.parents)
)
"""Folders below /tmp that `OWN_TMP` keeps, for its variable."""

# $1 is the machine's name, $2 its address; the others are folders to hide.
_SETUP = f"""
hostname "$1"
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
{OWN_TMP}
mkdir /tmp/home /tmp/venv
export ADDRESS="$2"
printf '127.0.0.1 localhost\\n%s %s\\n' "$2" "$1" > /tmp/hosts; shift 2
mount --bind /tmp/hosts /etc/hosts
mount --bind "$VENV" /tmp/venv
for folder in "$@"; do mount -t tmpfs tmpfs "$folder"; done
mkdir -p "$VENV"
mount --bind /tmp/venv "$VENV"
umount /tmp/venv
mount -o remount,bind,ro "$VENV"
mount -o remount,bind,ro /
cd /tmp
"""


def skip_without_namespaces() -> None:
    """Skips the test where this machine lets nobody make namespaces."""
    if missing := [
        tool for tool in ("ip", "unshare", "nsenter", "setpriv") if shutil.which(tool) is None
    ]:
        pytest.skip(f"no {', '.join(missing)}: install Debian's iproute2 and util-linux")
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "ip", "link", "add", "try", "type", "bridge"],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        pytest.skip(f"namespaces need root here: {tried.stderr.strip()}")


class Machine:
    """One machine: its name, and its first process as this machine sees it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self._process = name, process
        self._init: psutil.Process | None = None

    @property
    def init(self) -> psutil.Process:
        """The first process of its own process space; the kernel ends all others with it."""
        deadline = time.monotonic() + 30
        while self._init is None:
            assert self._process.poll() is None, f"{self.name} did not start"
            assert time.monotonic() < deadline, f"{self.name} did not start"
            children = psutil.Process(self._process.pid).children()
            self._init = children[0] if children else None
            time.sleep(0.05)
        return self._init

    def kill(self) -> None:
        """Ends everything on it at once, as a lost power supply does."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.init.kill()

    def freeze(self) -> None:
        """Stops everything on it, as a paused virtual machine is; nobody's connection closes."""
        for process in [self.init, *self.init.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)

    def wait(self, seconds: float = 30) -> int:
        """Waits until nothing of it is left; returns how its first command ended."""
        return self._process.wait(timeout=seconds)


class Machines:
    """The switch, the head and some nodes, from entering it as a context to leaving it.

    Args:
      count: nodes beside the head.
      logs: a folder for what machines print.
      cores: of each node, as Ray counts them: one alone has room for every training.
      commands: machine's name -> what its shell does instead of starting Ray; it knows its ADDRESS.
    """

    def __init__(
        self, count: int, logs: Path, cores: int = 4, commands: Mapping[str, str] | None = None
    ) -> None:
        self._count, self._logs, self._cores = count, logs, cores
        self._commands = commands or {}
        self._prefix = f"parcel{os.getpid()}"
        self._cleanup = contextlib.ExitStack()
        self.nodes: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as cleanup:
            switch = self._namespace(cleanup, "switch")
            _run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
            _run("ip", "-n", switch, "addr", "add", f"{SWITCH}/24", "dev", "switch")
            for link in ("lo", "switch"):
                _run("ip", "-n", switch, "link", "set", link, "up")
            with _inside(switch):  # A socket stays in the network that it was made in.
                self.gcs = GCS(host=SWITCH)
            self.gcs.bucket("testing")
            cleanup.enter_context(self.gcs)
            health = f"--system-config={json.dumps(HEALTH)}"
            ray = ["--head", f"--port={PORT}", "--num-cpus=0", health]
            ray += ["--include-dashboard=true", f"--dashboard-host={HEAD}"]
            self.head = self._start(cleanup, "head", HEAD, ray, hidden=[])
            self._await_head()
            for number in range(1, self._count + 1):
                name, address = f"node{number}", f"10.99.0.{2 + number}"
                ray = [f"--address={HEAD}:{PORT}", f"--num-cpus={self._cores}"]
                self.nodes[name] = self._start(cleanup, name, address, ray, hidden=_checkouts())
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def popen(self, *command: str, on: Machine, out: IO[str]) -> subprocess.Popen[str]:
        """Starts a command on a machine, beside what runs there."""
        inside = ["nsenter", "--target", str(on.init.pid), "--all", "--wdns=/tmp"]
        return subprocess.Popen(
            [*inside, *command],
            env=self.environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def call(self, *command: str, on: Machine) -> str:
        """Returns the output of a command on a machine."""
        path = self._logs / "call"
        with path.open("w") as out:
            self.popen(*command, on=on, out=out).wait(timeout=60)
        return path.read_text()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of every machine's processes."""
        own = {
            "HOME": "/tmp/home",
            "PARCEL_STATE": "/tmp/state",
            "PARCEL_STORE": "gs://testing/studies",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            # Jobs are run by the `python` of a node.
            "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
            "VENV": str(VENV),
            "KEPT": KEPT,
        }
        lead = ("RAY_", "XDG_", "TMPDIR", "PYTHONPATH", "JAX_COMPILATION_CACHE_DIR")
        user = {k: v for k, v in environment(Path("/")).items() if not k.startswith(lead)}
        return user | self.gcs.environment | own

    def _namespace(self, cleanup: contextlib.ExitStack, name: str) -> str:
        full = f"{self._prefix}-{name}"
        _run("ip", "netns", "add", full)
        cleanup.callback(_run, "ip", "netns", "delete", full)
        return full

    def _start(
        self,
        cleanup: contextlib.ExitStack,
        name: str,
        address: str,
        ray: list[str],
        hidden: list[Path],
    ) -> Machine:
        inside, switch = self._namespace(cleanup, name), f"{self._prefix}-switch"
        # The link's other end is made in the machine at once: this one's network has none of it.
        end = ["type", "veth", "peer", "name", "eth0", "netns", inside]
        _run("ip", "-n", switch, "link", "add", name, *end)
        _run("ip", "-n", switch, "link", "set", name, "master", "switch", "up")
        _run("ip", "-n", inside, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", inside, "link", "set", "eth0", "up")
        start = [
            str(VENV / "bin" / "python"), "-m", "ray.scripts.scripts", "start", "--block",
            f"--node-ip-address={address}", "--num-gpus=0", "--object-store-memory=80000000", *ray,
        ]  # fmt: skip
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        folders = [str(folder) for folder in hidden]
        # The shell stays: the first process of a space has to bury the others.
        command = self._commands.get(name) or shlex.join(start)
        shell = f"set -eu\n{_SETUP}\n{command}\necho Ray ended"
        with (self._logs / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [
                    # It dies with the test, even where that is killed.
                    "setpriv", "--pdeathsig", "KILL",
                    "ip", "netns", "exec", inside, "unshare", *spaces,
                    "bash", "-c", shell, "bash", name, address, *folders,
                ],
                env=self.environment, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        machine = Machine(name, process)
        cleanup.callback(machine.wait)
        cleanup.callback(process.kill)  # The rest dies with it, stopped or not.
        return machine

    def _await_head(self) -> None:
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in (self._logs / "head.log").read_text():
            assert time.monotonic() < deadline, (self._logs / "head.log").read_text()
            time.sleep(0.2)


def _checkouts() -> list[Path]:
    """Returns the folders where a machine could find the project's code."""
    found = {CHECKOUT}
    # An editable install knows a checkout, which need not be this one.
    where = "import importlib.util as u; print(u.find_spec('flows').origin)"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [VENV / "bin" / "python", "-c", where], cwd="/", env=bare, capture_output=True, text=True
    )
    if done.returncode == 0:
        found.add(Path(done.stdout.strip()).parents[1])
    return sorted(found)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """Has this thread make its sockets in another network."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        with open(path) as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")

    with open("/proc/thread-self/ns/net") as own:
        enter(f"/run/netns/{namespace}")
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{own.fileno()}")
