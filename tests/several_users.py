"""A machine with several users, who see each other's processes or not, as /proc is mounted.

    root's mount namespace     /proc with hidepid=0, 1 or 2; Python's folders, readable to everyone
      `-- uid 1001, 1002       two users of one group, whose folders are the group's

The mounts end with the namespace's first process. Pids are those of the whole machine.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

CHECKOUT = Path(__file__).parents[1]
GROUP = 2000
FIRST, SECOND = 1001, 1002


class SharedMachine:
    """The namespace, and a folder of the group.

    Args:
      pid: first process of the namespace.
      folder: a folder that both users may write to.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self.folder = pid, folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, uid: int, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a command of a user; its output is to be read, its errors are among it."""
        keep = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        own = {"HOME": str(self.folder / str(uid)), "JAX_PLATFORMS": "cpu"}
        os.makedirs(own["HOME"], exist_ok=True)
        os.chown(own["HOME"], uid, GROUP)
        enter = ["nsenter", f"--target={self._pid}", "--mount", f"--wd={self.folder}"]
        become = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"]
        process = subprocess.Popen(
            [*enter, *become, *command],
            env=keep | own | {"PYTHONDONTWRITEBYTECODE": "1"} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            umask=0o002,
        )
        self._started.append(process)
        return process

    def python(
        self, uid: int, code: str, *arguments: str, **variables: str
    ) -> subprocess.Popen[str]:
        """Starts a program of a user; see `start`."""
        return self.start(uid, sys.executable, "-c", code, *arguments, **variables)

    def run(self, uid: int, *command: str, **variables: str) -> str:
        """Returns what a command of a user prints, which must end well."""
        process = self.start(uid, *command, **variables)
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, out
        return out

    def end(self) -> None:
        """Ends what was started."""
        for process in self._started:
            process.kill()
            process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    """Returns the next line that a process prints."""
    out: IO[str] | None = process.stdout
    assert out is not None
    return out.readline().strip()


@contextlib.contextmanager
def shared_machine(hidepid: int) -> Iterator[SharedMachine]:
    """Yields a machine on which /proc is mounted with `hidepid`; skips the test without root."""
    if missing := [tool for tool in ("nsenter", "setpriv", "unshare") if not shutil.which(tool)]:
        pytest.skip(f"no {', '.join(missing)}: install Debian's util-linux")
    folder = Path(tempfile.mkdtemp(prefix="parcel-users-", dir="/tmp"))
    setup = _setup(folder, hidepid)
    first = subprocess.Popen(
        ["unshare", "--mount", "sh", "-ec", f"{setup}\necho ready; exec sleep infinity"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    machine = SharedMachine(first.pid, folder)
    try:
        if line_of(first) != "ready":
            assert first.stderr is not None
            pytest.skip(f"namespaces need root here: {first.stderr.read().strip()}")
        os.chown(folder, 0, GROUP)
        folder.chmod(0o2775)
        yield machine
    finally:
        machine.end()
        first.kill()
        first.communicate()
        shutil.rmtree(folder)


def _setup(folder: Path, hidepid: int) -> str:
    """Returns the shell's lines that mount /proc, and open Python's folders to everyone."""
    lines = ["mount --make-rprivate /", f"mount -t proc -o hidepid={hidepid} proc /proc"]
    # Below a home that only its owner may enter, what is needed is all that is left.
    needed = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, CHECKOUT)}
    closed = {parent for path in needed if (parent := _closed_parent(path))}
    inside = sorted(path for path in needed if _closed_parent(path))
    aside = {path: folder / f"tree{number}" for number, path in enumerate(inside)}
    for path, place in aside.items():
        lines += [f"mkdir {place}", f"mount --bind {shlex.quote(str(path))} {place}"]
    lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(path))}" for path in closed]
    for path, place in aside.items():
        lines += [f"mkdir -p {shlex.quote(str(path))}"]
        lines += [f"mount --bind {place} {shlex.quote(str(path))}", f"umount {place}"]
    return "\n".join(lines)


def _closed_parent(path: Path) -> Path | None:
    """Returns the outermost folder above a path that others may not enter."""
    closed = [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
    return closed[-1] if closed else None
