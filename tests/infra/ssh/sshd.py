"""A real sshd on loopback, whose addresses stand for the hosts of a TPU VM, and gcloud's answers.

Its keys, its configuration and the list of known hosts are the test's own.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SSHD = Path("/usr/sbin/sshd")
HOSTS = ("127.0.0.1", "127.0.0.2")
"""All of 127.0.0.0/8 is this machine."""


def node(*external: str, state: str = "READY") -> dict[str, object]:
    """Returns a TPU VM with a host at each external address, as the Cloud TPU API describes it."""
    return {
        "name": "projects/lab/locations/us-central2-b/nodes/pod",
        "acceleratorType": "v4-16",
        "state": state,
        "id": "8161626364656667686",
        "networkEndpoints": [
            {"ipAddress": f"127.0.1.{i}", "port": 8470, "accessConfig": {"externalIp": address}}
            for i, address in enumerate(external)
        ],
    }


def gcloud(folder: Path, described: Mapping[str, object]) -> dict[str, str]:
    """Makes a gcloud that gives one answer; returns the environment in which it is found."""
    folder.mkdir(exist_ok=True)
    (folder / "node.json").write_text(json.dumps(described))
    program = folder / "gcloud"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/words\ncat {folder}/node.json\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def sshd(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """Starts sshd, and yields the launcher `tpu-vm` with the options that lead to it.

    Args:
      folder: for its files.
      variables: environment variables of what it runs.
    """
    if not SSHD.exists() or shutil.which("ssh") is None:
        pytest.skip("no sshd: install Debian's openssh-server")
    with contextlib.suppress(OSError):
        Path("/run/sshd").mkdir(exist_ok=True)  # Where it shuts its helper in, as root.
    folder.mkdir(exist_ok=True)
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
        )
    with socket.socket() as probe:
        probe.bind((HOSTS[0], 0))
        port = probe.getsockname()[1]
    own = {"PYTHONPATH": str(ROOT), **(variables or {})}
    given = " ".join(f'"{name}={value}"' for name, value in own.items())
    (folder / "config").write_text(
        "".join(f"ListenAddress {host}:{port}\n" for host in HOSTS)
        + f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nPidFile none\n"
        + "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        + f"SetEnv {given}\n"
    )
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", folder / "config"], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 30
        while "Server listening on 127.0.0.2" not in (folder / "log").read_text():
            if server.poll() is not None:
                pytest.skip(f"sshd does not run here: {(folder / 'log').read_text()}")
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.02)
        options = (
            f"Port={port}",
            f"IdentityFile={folder}/user",
            f"UserKnownHostsFile={folder}/known",
        )
        named = "tpu-vm --name pod --zone us-central2-b"
        yield f"{named} {' '.join(f'-o {o}' for o in options)} --python {sys.executable}"
    finally:
        server.terminate()
        server.wait()
