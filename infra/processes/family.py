"""The family of a command: all processes that it starts, and a guardian that kills them after it.

A mark in the environment names the family; every descendant inherits it, even when its parent is
gone. The guardian is a small process that reads a pipe whose other end only the command holds. The
pipe closes when the command ends, even by SIGKILL; the guardian then kills every process that has
the mark.
"""

import collections
import contextlib
import os
import subprocess
import sys
import time
import uuid

import psutil

MARK = "PARCEL_FAMILY"
"""Environment variable with the marks of all families of a process, separated by colons."""

_GIVE_UP = 20.0
"""Time after which a guardian stops trying to kill its family [s]."""


class Family:
    """The processes that this one starts from now on, and their descendants.

    Families can be nested: a run that `parcel serve` starts has its own.
    """

    def __init__(self) -> None:
        outer = os.environ.get(MARK, "")
        self.mark = uuid.uuid4().hex
        # Started before the mark is set, since a guardian in the family would kill itself. In its
        # own session, so that Ctrl-C at the terminal does not reach it.
        self._guardian = subprocess.Popen(
            [sys.executable, __file__, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.environ[MARK] = ":".join(filter(None, [outer, self.mark]))

    def processes(self) -> list[psutil.Process]:
        """Returns the living processes of the family, without this one."""
        return family_processes(self.mark)


def family_processes(mark: str) -> list[psutil.Process]:
    """Returns the processes that have a mark, and their children, which may have dropped it."""
    found: dict[int, psutil.Process] = {}
    children = collections.defaultdict[int, list[psutil.Process]](list)
    # A mark and not the tree of parents: a process whose parent has ended belongs to init, but
    # still has its environment.
    #
    #   parcel serve                    its family is a1
    #   `-- parcel run      a1          its own family is b2
    #       `-- Ray's head  a1:b2       of both, also when its parent has ended
    for process in psutil.process_iter():
        # Each by itself, for psutil's own list of children fails of one process that is hidden.
        with contextlib.suppress(psutil.Error):  # It ended meanwhile, or is another user's.
            children[process.ppid()].append(process)
            if mark in process.environ().get(MARK, "").split(":"):
                found[process.pid] = process
    pending = list(found)
    while pending:
        for child in children[pending.pop()]:
            if child.pid not in found:
                found[child.pid] = child
                pending.append(child.pid)
    return [process for pid, process in found.items() if pid != os.getpid()]


def _kill_family_after_exit(mark: str) -> None:
    """Waits until the command has ended, then kills what is left of its family."""
    # Nobody writes to this pipe: the read ends when the command has ended, by whatever signal.
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _GIVE_UP
    while time.monotonic() < deadline and (survivors := family_processes(mark)):
        for process in survivors:
            with contextlib.suppress(psutil.Error):  # It has ended, or became another user's.
                process.kill()
        time.sleep(0.1)  # A process may have started another before it was killed: look again.


if __name__ == "__main__":
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _kill_family_after_exit(sys.argv[1])
