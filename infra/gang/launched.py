"""A gang that a launcher starts, on one host or several: Slurm's `srun`, MPI's `mpirun`.

The launcher says to each process which rank it has. All of them reach a folder, in which rank 0
says where it is found, and each how it ended: a launcher has one exit code for all. `ray` is the
launcher that this project has: see `infra.ray.gang`.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.gang.local import own_path
from infra.gang.supervise import LAUNCHER, GangFailedError
from infra.gang.words import Place, codes_of, look_every, said, say

_RAY = (sys.executable, "-m", "infra.ray.gang")
RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Of the environment of a process: its rank, as Slurm, Open MPI and other MPIs say it."""
ADDRESS = "PARCEL_ADDRESS"
"""Of the environment of a member: where its host is found; not every host's name is known."""
_MEETING = "coordinator"
_TO_END = 10.0
"""For the members to end with their standard input, before their launcher is killed [s]."""
_LOG = "launcher.log"


class LaunchedGang:
    """Members that end with this process, whose standard input the launcher passes on.

    Args:
      launcher: its command, to which `-n SIZE` and the members' command are added.
      command: of every member; it learns its rank from the launcher.
      size: how many there are.
      place: where all of them say how they ended, see `infra.gang.words`.
      logs: folder for what they print.

    Raises:
      GangFailedError: if there is no such launcher.
    """

    def __init__(
        self, launcher: str, command: Sequence[str], size: int, place: Place, logs: Path
    ) -> None:
        self._place = place
        first, *options = shlex.split(launcher)
        words = [*(_RAY if first == "ray" else (first,)), *options, "-n", str(size), *command]
        with (logs / _LOG).open("wb") as log:
            try:
                self._launcher = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": own_path()},
                )
            except FileNotFoundError:
                raise GangFailedError(
                    f"compute.launcher {launcher!r} is no command of {socket.gethostname()}."
                ) from None

    def codes(self) -> Mapping[int, int | None]:
        """Returns rank -> exit code of those who said theirs, and the launcher's.

        A member that is killed says nothing; its launcher then ends, and names it in its log.
        """
        ended = self._launcher.poll()  # First: nobody who ended says more.
        return {LAUNCHER: ended, **codes_of(self._place)}

    def ask_to_leave(self, seconds: float) -> None:
        """Tells all members that their machine is about to be taken away, and waits for them."""
        if self._launcher.poll() is None:
            self._launcher.send_signal(signal.SIGTERM)  # Which launchers pass on.
        self._wait(seconds)

    def kill(self) -> None:
        """Ends all members; one that stands still ends when it wakes."""
        if self._launcher.stdin is not None:
            self._launcher.stdin.close()
        self._wait(_TO_END)
        self._launcher.kill()
        self._launcher.wait()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)


def launched_rank(environment: Mapping[str, str]) -> int | None:
    """Returns the rank that a launcher gave this process; None if none did."""
    found = (environment[name] for name in RANKS if name in environment)
    return next(map(int, found), None)


def meet(place: Place, rank: int, seconds: float) -> str:
    """Returns where rank 0 is found, as "host:port"; rank 0 says so, the others wait for it.

    Args:
      place: that all members reach; see `infra.gang.words`.
      rank: of this process.
      seconds: to wait [s].

    Raises:
      TimeoutError: if rank 0 has not come by then.
    """
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            host = os.environ.get(ADDRESS) or socket.gethostname()
            address = f"{host}:{probe.getsockname()[1]}"
        say(place, _MEETING, address)
        return address
    deadline = time.monotonic() + seconds
    while (found := said(place, _MEETING)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not come to {place} within {seconds:.0f} s.")
        time.sleep(look_every(place))
    return found
