"""Slurm itself, with two nodes on this machine, in namespaces that end with the command it is for.

    unshare --net --pid --mount-proc --fork --kill-child python -m tests.slurm.cluster DIR COMMAND…

Its daemons listen on every interface, and the network namespace has none that leads anywhere;
nothing of a process namespace outlives its first process, which is this one.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_NODES = ("node-a", "node-b")
_PORT = 16817
_TIMEOUT = 60.0
"""For the nodes to be idle [s]."""

_CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
PartitionName=all Nodes={nodes} Default=YES State=UP
"""


def missing() -> str:
    """Returns why Slurm cannot be started here; "" if it can."""
    tools = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "unshare", "ip")
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed: apt install slurmctld slurmd munge iproute2"
    tried = subprocess.run(["unshare", "--net", "--pid", "--fork", "true"], capture_output=True)
    return "" if tried.returncode == 0 else "this machine has no namespaces for us"


def within(folder: Path, command: Sequence[str]) -> list[str]:
    """Returns the command that runs another one with Slurm around it.

    Args:
      folder: an empty one, for the daemons; theirs are sockets, whose whole path has room for 107
        characters, so it is short.
      command: to run.
    """
    apart = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
    return [*apart, sys.executable, "-m", "tests.slurm.cluster", str(folder), *command]


def _start(folder: Path) -> None:
    """Starts the daemons, and waits until the nodes are idle."""
    # Where there is a loopback only, glibc finds no address to listen on.
    for words in (
        "link set lo up",
        "link add here type veth peer name there",
        "addr add 10.11.12.13/24 dev here",
        "link set here up",
        "link set there up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    for name in ("state", *(f"spool-{node}" for node in _NODES)):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    host, lines = socket.gethostname().partition(".")[0], []
    for number, node in enumerate(_NODES, start=1):
        where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={_PORT + number}"
        lines.append(f"NodeName={node} {where} CPUs=4 State=UNKNOWN\n")
    text = _CONFIG.format(host=host, port=_PORT, folder=folder, nodes=",".join(_NODES))
    (folder / "slurm.conf").write_text("".join([*lines, text]))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    own = [
        f"--{name}={folder}/munge.{name[:-5] if name.endswith('-file') else 'sock'}"
        for name in ("key-file", "pid-file", "log-file", "seed-file", "socket")
    ]
    subprocess.run(["munged", "--force", *own], check=True)
    subprocess.run(["slurmctld", "-i"], check=True)
    for node in _NODES:
        subprocess.run(["slurmd", "-N", node], check=True)
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        told = subprocess.run(["sinfo", "-h", "-o", "%D %t"], capture_output=True, text=True)
        if told.stdout.split() == [str(len(_NODES)), "idle"]:
            return
        time.sleep(0.2)
    raise TimeoutError((folder / "slurmctld.log").read_text()[-2000:])


if __name__ == "__main__":
    _start(Path(sys.argv[1]))
    sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)
