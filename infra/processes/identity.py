"""Notes that identify a process, even after its pid was given to another one."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Self

import psutil

_SAME_START = 2.0
"""Largest difference of two readings of a process's start, which is counted from the boot [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessNote:
    """Identity of a process, which a later one with the same pid does not share.

    Attributes:
      pid: process id on its host.
      began: time of its start [s since the epoch].
      host: name of the host where it runs.
    """

    pid: int
    began: float
    host: str

    @classmethod
    def of_this_process(cls) -> Self:
        """Returns the note of this process."""
        process = psutil.Process()
        return cls(pid=process.pid, began=process.create_time(), host=os.uname().nodename)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Reads the note from a dictionary, which may have other fields, too.

        Raises:
          KeyError: if a field is missing.
        """
        return cls(pid=int(values["pid"]), began=float(values["began"]), host=str(values["host"]))

    def is_alive(self) -> bool:
        """Returns whether the process is alive; a process on another host is assumed to be."""
        if self.host != os.uname().nodename:
            return True
        try:
            process = psutil.Process(self.pid)
            # psutil reckons the start from the time of the boot, which moves a little when the
            # clock is set.
            has_same_start = abs(process.create_time() - self.began) < _SAME_START
            return has_same_start and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
