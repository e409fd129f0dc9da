"""Questions about processes that may end between two looks at them."""

import contextlib
from typing import Any

import psutil

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
"""Addresses that only this machine reaches."""


def command_line(process: psutil.Process) -> str:
    """Returns a process's name and command line; nothing where it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join([process.name(), *process.cmdline()])
    return ""


def listened(processes: list[psutil.Process]) -> set[str]:
    """Returns the addresses that any of them listens on."""
    return {place.ip for place in listening(processes)}


def listening(processes: list[psutil.Process]) -> set[Any]:
    """Returns the addresses and ports that any of them listens on, with fields `ip` and `port`."""
    heard = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for entry in process.net_connections():
                if entry.status == psutil.CONN_LISTEN:
                    heard.add(entry.laddr)
    return heard


def end_family(process: psutil.Process) -> None:
    """Kills a process and its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
