"""The cores that this process was given."""

import contextlib
import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
"""Where a container finds its own limits."""
_NO_QUOTA = ("max", "-1")


def num_cores() -> int:
    """Returns the number of cores that this process may keep busy.

    `NPROC`, which the launchers of steps set, is the share of one of several processes of a
    machine; without it, all of the machine's cores count.
    """
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdigit() and int(given) else machine_cores()


def machine_cores(cgroup: Path = _CGROUP) -> int:
    """Returns the number of cores that the system lets the process use, within its container.

    Args:
      cgroup: folder with the limits of the container.
    """
    num = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        num = len(os.sched_getaffinity(0))
    return min(num, _cgroup_core_limit(cgroup) or num)


def _cgroup_core_limit(folder: Path) -> int | None:
    """Returns a container's limit on processor time, rounded up to cores; None if there is none.

    Source: the Linux kernel's cgroup-v2.rst ("cpu.max") and sched-bwc.rst, version 1.
    """
    texts: list[str] = []
    with contextlib.suppress(OSError):
        texts = (folder / "cpu.max").read_text().split()
    if not texts:
        with contextlib.suppress(OSError):
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            texts = [(folder / "cpu" / name).read_text().strip() for name in files]
    if len(texts) != 2 or texts[0] in _NO_QUOTA:
        return None
    return max(1, math.ceil(int(texts[0]) / int(texts[1])))
