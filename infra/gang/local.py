"""A gang of processes on this machine, which share the cores and GPUs of their starter."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.processes.module import python_path

Command = Callable[[int, str], Sequence[str]]
"""(rank, rank 0's address as "host:port") -> the command of a member."""


class LocalGang:
    """A gang on this machine.

    Each member's standard input is a pipe from this process. The pipe closes when this process
    ends, and the member then ends, too.

    Args:
      command: command of each member.
      size: number of members.
      folder: folder for their output.
    """

    def __init__(self, command: Command, size: int, folder: Path) -> None:
        # All members are here, so the port of rank 0 can be picked before any of them starts.
        coordinator = f"127.0.0.1:{_free_port()}"
        self._members: list[subprocess.Popen[bytes]] = []
        for rank in range(size):
            with (folder / f"{rank}.log").open("wb") as log:
                member = subprocess.Popen(
                    command(rank, coordinator),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=member_environment(rank, size, os.environ),
                )
            self._members.append(member)

    def exit_codes(self) -> dict[int, int | None]:
        """Returns rank -> exit code, negative if a signal ended it; None while it lives."""
        return {rank: member.poll() for rank, member in enumerate(self._members)}

    def notify_preemption(self, seconds: float) -> None:
        """Notifies all members that their machine is being preempted, and waits for them."""
        for member in self._members:
            if member.poll() is None:
                member.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while None in self.exit_codes().values() and time.monotonic() < deadline:
            time.sleep(0.01)

    def kill(self) -> None:
        """Kills all members at once, including stopped ones (SIGSTOP)."""
        for member in self._members:
            member.kill()
        for member in self._members:
            member.wait()
            if member.stdin is not None:
                member.stdin.close()


def member_environment(rank: int, size: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a member: its share of the worker's cores and GPUs.

    Args:
      rank: rank of the member.
      size: size of the gang.
      inherited: environment of the worker; see `infra.ray.devices`.

    Raises:
      ValueError: if the GPUs cannot be divided evenly.
    """
    # Members share what their worker has. With 8 cores, 4 GPUs and 2 members:
    #
    #   rank 0   NPROC=4   CUDA_VISIBLE_DEVICES=0,1
    #   rank 1   NPROC=4   CUDA_VISIBLE_DEVICES=2,3
    threads = max(1, int(inherited.get("NPROC") or os.cpu_count() or 1) // size)
    multi = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    environment = {
        **inherited,
        "NPROC": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "XLA_FLAGS": " ".join([inherited.get("XLA_FLAGS", ""), multi]).strip(),
        "PYTHONPATH": python_path(),
        # NCCL, which connects GPUs, would take a network's interface before loopback.
        "NCCL_SOCKET_IFNAME": inherited.get("NCCL_SOCKET_IFNAME", "lo"),
    }
    if gpus := [gpu for gpu in inherited.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]:
        if len(gpus) % size:
            raise ValueError(
                f"processes must divide the GPUs that they share, {len(gpus)}, got {size}; set "
                f"compute.gpus_per_stage or gpus_per_cell to a multiple of it, or to 0."
            )
        gpus_per_member = len(gpus) // size
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(
            gpus[rank * gpus_per_member : (rank + 1) * gpus_per_member]
        )
    return environment


def exit_on_stdin_close(code: int) -> None:
    """Ends this process, a member, with an exit code as soon as its starter has ended."""

    def wait() -> None:
        # Not `sys.stdin`: a thread blocked in it makes Python abort at its exit.
        while os.read(0, 1):
            continue
        # `sys.exit` would end this thread only, while the main one may wait for a lost member.
        os._exit(code)

    threading.Thread(target=wait, daemon=True, name="starter").start()


def _free_port() -> int:
    """Returns a port that is free now; if it is taken before rank 0 listens, the gang is lost."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
