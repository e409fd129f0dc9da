"""The holder of a lease: a process, identified even after its pid was given to another one."""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import psutil


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """Identity of a process.

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
    def this_process(cls) -> "Holder":
        """Returns this process."""
        # A pid alone is not enough: pids are given out again, after a reboot from 1 on, and every
        # container counts its own. (machine, pid, start) is not given out twice.
        pid = os.getpid()
        return cls(
            host=os.uname().nodename, machine=_machine_id(), pid=pid, began=_start_time(pid) or 0
        )

    @classmethod
    def read(cls, values: Any) -> "Holder":
        """Returns the holder that was written as plain values.

        Raises:
          TypeError: if the values are not those of a holder.
        """
        holder = cls(**values)
        texts, numbers = (holder.host, holder.machine), (holder.pid, holder.began)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int) for number in numbers
        ):
            raise TypeError(f"not a holder: {values!r}")
        return holder

    @property
    def is_on_this_machine(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.machine == _machine_id()

    @property
    def has_ended(self) -> bool:
        """Whether it has certainly ended; a process of another machine may always be running."""
        return self.is_on_this_machine and _start_time(self.pid) != self.began


@functools.cache
def _machine_id() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # Not Linux: use the host's name.
        return os.uname().nodename


def _start_time(pid: int) -> int | None:
    """Returns when a process began; None if it does not run. A zombie has ended already."""
    try:
        # /proc counts from the boot. psutil adds the time of the boot, so its date moves when the
        # clock is set, and a living process would look like another one.
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
