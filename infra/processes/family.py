"""Every process that a command starts, directly or not, and a guardian that ends them with it.

A child inherits its environment, however often it is forked and wherever its parent goes: a mark
there names the family. The guardian is a small process that reads a pipe whose other end only the
command holds. The pipe closes when the command is gone, killed outright or not; whatever still
wears the mark is then killed.
"""

import os
import subprocess
import sys
import time
import uuid

import psutil

MARK = "PARCEL_FAMILY"
"""Environment variable with the marks of all families a process belongs to, by colons."""

_GIVE_UP = 20.0
"""A guardian that cannot end its family in this time leaves [s]."""


class Family:
    """The processes started by this one from now on, and by those.

    A family may lie in another: a run that `parcel serve` starts has its own.
    """

    def __init__(self) -> None:
        outer = os.environ.get(MARK, "")
        self.mark = uuid.uuid4().hex
        # Not of its own family, or it would have to kill itself. A session of its own: Ctrl-C at
        # the terminal is for the command.
        self._guardian = subprocess.Popen(
            [sys.executable, __file__, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.environ[MARK] = ":".join(filter(None, [outer, self.mark]))

    def members(self) -> list[psutil.Process]:
        """Returns the living processes of the family, without this one."""
        return members(self.mark)


def members(mark: str) -> list[psutil.Process]:
    """Returns the processes that wear a mark, and their children, which may have dropped it."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if mark in process.environ().get(MARK, "").split(":"):
                found[process.pid] = process
                found |= {child.pid: child for child in process.children(recursive=True)}
        except psutil.Error:  # It ended meanwhile, or is another user's.
            continue
    return [process for pid, process in found.items() if pid != os.getpid()]


def _guard(mark: str) -> None:
    """Waits until the founder is gone, then ends what it left."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _GIVE_UP
    while time.monotonic() < deadline and (left := members(mark)):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.1)  # One may have started another before it was killed: look again.


if __name__ == "__main__":
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _guard(sys.argv[1])
