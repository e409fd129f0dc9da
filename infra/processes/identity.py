"""Which process did it: a note that still tells the truth once its pid is another's."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Self

import psutil

_SAME_START = 2.0
"""Two readings of one process's start differ by less; the kernel counts it from the boot [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessNote:
    """A process, told apart from a later one with the same pid.

    Attributes:
      pid: on its host.
      began: when it started [s since the epoch].
      host: where it runs.
    """

    pid: int
    began: float
    host: str

    @classmethod
    def own(cls) -> Self:
        """Returns the note of this process."""
        process = psutil.Process()
        return cls(pid=process.pid, began=process.create_time(), host=os.uname().nodename)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Returns the note in a dictionary that has its fields among others.

        Raises:
          KeyError: if a field is missing.
        """
        return cls(pid=int(values["pid"]), began=float(values["began"]), host=str(values["host"]))

    def is_alive(self) -> bool:
        """Returns whether the process lives; one on another host is assumed to."""
        if self.host != os.uname().nodename:
            return True
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.began) < _SAME_START
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
