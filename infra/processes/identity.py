"""Identity of a process, and whether it is running, as far as this process can tell."""

import dataclasses
import errno
import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import psutil

_SAME_START = 2.0
"""Largest difference of two readings of a start in seconds, which moves with the clock [s]."""
_NEVER = -1
"""Start of a process that does not run any more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """Identity of a process, which a later one with the same pid does not share.

    Attributes:
      host: the machine's name, for people.
      machine: id of the space in which `pid` is unique: the boot of the kernel, and the container's
        pid namespace (two containers of one host count from 1 each).
      pid: process id.
      began: time of its start [ticks since boot], which unlike a date does not move with the clock.
    """

    host: str
    machine: str
    pid: int
    began: int

    @classmethod
    def of_this_process(cls) -> Self:
        """Returns this process."""
        # A pid alone is not enough: pids are given out again, after a reboot from 1 on, and every
        # container counts its own. (machine, pid, start) is not given out twice.
        began = _start_time("self")
        return cls(
            host=os.uname().nodename,
            machine=_machine_id(),
            pid=os.getpid(),
            began=began if isinstance(began, int) else 0,
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Returns the process that was written as plain values, which may have others beside them.

        Raises:
          KeyError, TypeError, ValueError: if the values are not those of a process.
        """
        host, pid = values["host"], values["pid"]
        if "machine" in values:
            machine, began = values["machine"], values["began"]
        else:
            machine, began = _of_earlier_note(host, pid, float(values["began"]))
        texts, numbers = (host, machine), (pid, began)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int) for number in numbers
        ):
            raise TypeError(f"not a process: {values!r}")
        return cls(host=host, machine=machine, pid=pid, began=began)

    @property
    def state(self) -> Literal["running", "ended", "unknown"]:
        """Whether it runs; "unknown" of another machine's, and of one that may not be seen.

        Where /proc is mounted with hidepid, as on many clusters, it hides the processes of others.
        What is unknown may be running: whoever asks goes by a lease, which lapses in the end.
        """
        if self.machine != _machine_id():
            return "unknown"
        began = _start_time(self.pid)
        if began == "hidden":
            return "unknown"
        return "running" if began == self.began else "ended"

    @property
    def is_running(self) -> bool:
        """Whether it is certainly running."""
        return self.state == "running"

    @property
    def has_ended(self) -> bool:
        """Whether it has certainly ended."""
        return self.state == "ended"


NOBODY = ProcessIdentity(host="unknown", machine="", pid=0, began=0)
"""A process of which nothing is known: no machine has this id, so it never counts as ended."""


def _of_earlier_note(host: str, pid: int, began: float) -> tuple[str, int]:
    """Returns machine and start of a process noted by version 0.2.0, which had a date [s] only."""
    if host != os.uname().nodename:
        return NOBODY.machine, NOBODY.began
    now = _start_time(pid)
    try:
        same = abs(psutil.Process(pid).create_time() - began) < _SAME_START
    except psutil.Error:
        same = False
    return _machine_id(), now if same and isinstance(now, int) else _NEVER


@functools.cache
def _machine_id() -> str:
    if sys.platform != "linux":
        return os.uname().nodename
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # /proc is not mounted, or only its processes are. A machine's name is not enough to say
        # that a process has ended: two containers, or two machines, may share it.
        return NOBODY.machine


def _start_time(pid: int | Literal["self"]) -> int | Literal["none", "hidden"]:
    """Returns when a process began; "none" if it does not run. A zombie has ended already."""
    if sys.platform != "linux":
        try:
            process = psutil.Process(None if pid == "self" else pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return "none" if ended else round(process.create_time())
        except psutil.NoSuchProcess:
            return "none"
        except psutil.AccessDenied:
            return "hidden"
    try:
        if pid != "self" and os.readlink("/proc/self") != str(os.getpid()):
            return _state_of_absent_process(
                pid
            )  # This /proc has the processes of another pid namespace.
        # /proc counts from the boot. psutil adds the time of the boot, so its date moves when the
        # clock is set, and a living process would look like another one. In bytes: a process may
        # give itself any name.
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        # Not there, or hidden: with hidepid=2 the folder is missing, with hidepid=1 it may not be
        # read.
        return _state_of_absent_process(pid)
    # proc(5): "pid (name) state ... starttime ...", and the name may hold spaces and brackets.
    fields = stat.rpartition(b")")[2].split()
    return "none" if fields[0] in (b"Z", b"X") else int(fields[19])


def _state_of_absent_process(pid: int | Literal["self"]) -> Literal["none", "hidden"]:
    """Returns the state of a process that /proc does not show."""
    if pid == "self":
        return "hidden"
    try:
        os.kill(pid, 0)  # Signal 0 is not sent: it only asks, and is answered whatever /proc shows.
    except OverflowError:  # No pid at all.
        return "none"
    except OSError as error:
        # EPERM says that there is one. It may be a later process with the same pid: nobody can see.
        return "none" if error.errno == errno.ESRCH else "hidden"
    return "hidden"
