"""The cores that this process was given."""

import os


def num_cores() -> int:
    """Returns the number of cores that this process may keep busy.

    `NPROC`, which the launchers of steps set, is the share of one of several processes of a
    machine; without it, all cores count that the system lets the process run on.
    """
    given = os.environ.get("NPROC", "")
    if given.isdigit() and int(given):
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
