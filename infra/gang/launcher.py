"""A gang started by a launcher, such as Slurm's `srun` or MPI's `mpirun`, on one host or several.

The launcher gives each process its rank. All members reach one folder: rank 0 writes its address
there, and each member its exit code, because a launcher has a single exit code for all. The
launchers `ray` and `tpu-vm` are this project's own, see `infra.ray.gang` and `infra.ssh.gang`.
"""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.gang.messages import (
    GangFolder,
    poll_interval,
    read_exit_codes,
    read_message,
    write_message,
)
from infra.gang.supervise import LAUNCHER, GangFailedError
from infra.processes.module import module_command, python_path

_OWN = {"ray": "infra.ray.gang", "tpu-vm": "infra.ssh.gang"}
"""The project's own launchers -> module."""
MPI_RANK = "PMI_RANK"
"""Environment variable that holds a process's rank under MPI and the project's own launchers."""
RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", MPI_RANK)
"""Environment variables that hold a process's rank under Slurm, Open MPI and others."""
SIZE = "PARCEL_GANG_SIZE"
"""Environment variable with the number of members, where it may be fewer than were asked for."""
ADDRESS = "PARCEL_ADDRESS"
"""Environment variable with the address of a member's host; not every host's name resolves."""
_COORDINATOR = "coordinator"
_EXIT_TIMEOUT = 10.0
"""Time for members to end after their input closes, before their launcher is killed [s]."""
_LOG = "launcher.log"


class LauncherGang:
    """A gang of a launcher.

    The launcher passes its standard input, a pipe from this process, on to the members. The pipe
    closes when this process ends, and the members then end, too.

    Args:
      launcher: command of the launcher, to which `-n SIZE` and the members' command are added.
      command: command of every member, which learns its rank from the launcher.
      size: number of members.
      place: place where all of them write how they ended, see `infra.gang.messages`.
      logs: folder for their output.

    Raises:
      GangFailedError: if the launcher's command does not exist.
    """

    def __init__(
        self, launcher: str, command: Sequence[str], size: int, place: GangFolder, logs: Path
    ) -> None:
        self._place = place
        program, *options = shlex.split(launcher)
        own = module_command(_OWN[program]) if program in _OWN else [program]
        argv = [*own, *options, "-n", str(size), *command]
        # A pipe and not the terminal as input: it closes when this process ends, however it ends.
        with (logs / _LOG).open("wb") as log:
            try:
                self._launcher = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": python_path()},
                )
            except FileNotFoundError:
                raise GangFailedError(
                    f"compute.launcher {launcher!r} was not found on {socket.gethostname()}."
                ) from None

    def exit_codes(self) -> Mapping[int, int | None]:
        """Returns rank -> exit code, of the members that wrote theirs and of the launcher.

        A member that is killed writes nothing; its launcher then ends, and names it in its log.
        """
        # Polled first: once the launcher has ended, its members write no more codes.
        launcher_code = self._launcher.poll()
        return {LAUNCHER: launcher_code, **read_exit_codes(self._place)}

    def notify_preemption(self, seconds: float) -> None:
        """Notifies all members that their machine is being preempted, and waits for them."""
        if self._launcher.poll() is None:
            self._launcher.send_signal(signal.SIGTERM)  # Launchers pass it on.
        self._await_launcher_end(seconds)

    def kill(self) -> None:
        """Ends all members; a stopped one (SIGSTOP) ends when it continues."""
        if self._launcher.stdin is not None:
            # Closing the pipe and not only killing the launcher: members on other hosts are not its
            # children, and would go on.
            self._launcher.stdin.close()
        self._await_launcher_end(_EXIT_TIMEOUT)
        self._launcher.kill()
        self._launcher.wait()

    def _await_launcher_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)


def launcher_rank(environment: Mapping[str, str]) -> int | None:
    """Returns the rank that a launcher gave this process; None if none did."""
    ranks = (environment[name] for name in RANKS if name in environment)
    return next(map(int, ranks), None)


def rendezvous_address(place: GangFolder, rank: int, seconds: float) -> str:
    """Returns rank 0's address as "host:port"; rank 0 publishes it, the others wait for it.

    Args:
      place: place that all members reach; see `infra.gang.messages`.
      rank: rank of this process.
      seconds: longest wait [s].

    Raises:
      TimeoutError: if rank 0 has not published its address by then.
    """
    # Rank 0 learns on which host it is only when it runs there, so nobody can be told beforehand:
    #
    #   rank 0                    the folder                    ranks 1 to n-1
    #   picks a free port
    #   writes its address   ->   coordinator: "node7:41873"
    #                                                      <-   look again and again, then read it
    #   all of them: jax.distributed connects to node7:41873
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            host = os.environ.get(ADDRESS) or socket.gethostname()
            address = f"{host}:{probe.getsockname()[1]}"
        write_message(place, _COORDINATOR, address)
        return address
    deadline = time.monotonic() + seconds
    while (address_of_rank_0 := read_message(place, _COORDINATOR)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank 0 wrote nothing to {place} in {seconds:.0f} s; check that the launcher "
                f"started it, and that it reaches this place."
            )
        time.sleep(poll_interval(place))
    return address_of_rank_0
