"""Who holds a lease: a process, known again after its number was given to another one."""

import dataclasses
import functools
import os
from pathlib import Path

import psutil


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """A process.

    Attributes:
      host: the machine's name, for people.
      machine: what tells whether a process number means anything here: this boot of this kernel,
        and the container's process space (two containers of one host count from 1 each).
      pid: its number.
      began: when it began, in ticks since boot: unlike a date it does not move with the clock.
    """

    host: str
    machine: str
    pid: int
    began: int

    @classmethod
    def here(cls) -> "Holder":
        """Returns this process."""
        pid = os.getpid()
        return cls(host=os.uname().nodename, machine=_machine(), pid=pid, began=_began(pid) or 0)

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.machine == _machine()

    @property
    def is_gone(self) -> bool:
        """Whether it surely runs no more; one of another machine may run for all we know."""
        return self.is_here and _began(self.pid) != self.began


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # No Linux: the name has to do.
        return os.uname().nodename


def _began(pid: int) -> int | None:
    """Returns when a process began; None if it does not run. A zombie has ended already."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        try:
            process = psutil.Process(pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return None if ended else round(process.create_time())
        except psutil.NoSuchProcess:
            return None
    # proc(5): "pid (name) state ... starttime ...", and the name may hold spaces and brackets.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
