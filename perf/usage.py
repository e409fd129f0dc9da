"""Cost of a command and of all processes that it starts, including those that outlive it.

A control group counts them. The usage that `wait` returns would miss some: Ray's raylet never waits
for its workers.
"""

import contextlib
import dataclasses
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_LOOK_EVERY = 0.05
"""Time between two checks whether the last process has ended [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Cost of one run of a command.

    Attributes:
      wall: time until the command itself ended [s].
      cpu: processor time of it and of all processes it started, until the last one ended [s].
    """

    wall: float
    cpu: float


def run_counted(command: Sequence[str], env: Mapping[str, str], log: Path, folder: Path) -> Usage:
    """Runs a command and returns what it cost.

    Args:
      command: command to run.
      env: its environment.
      log: file that its output is appended to.
      folder: where it runs; `python -m` looks for modules there first.

    Raises:
      RuntimeError: if the command fails, or no control group can be made.
    """
    with _control_group() as group, log.open("a") as out:
        began = time.monotonic()
        # A shell enters the group and then becomes the command, so that all it starts is counted.
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
        code = subprocess.run(
            [*enter, *command],
            env=env,
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
        wall = time.monotonic() - began
        if code:
            raise RuntimeError(
                f"{' '.join(command)} ended with code {code}: {log.read_text()[-2000:]}"
            )
        while "populated 1" in (group / "cgroup.events").read_text():
            time.sleep(_LOOK_EVERY)
        used = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return Usage(wall=wall, cpu=int(used["usage_usec"]) / 1e6)


@contextlib.contextmanager
def _control_group() -> Iterator[Path]:
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    places = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
    if not places or not os.access(places[0], os.W_OK):
        raise RuntimeError(
            "processor time is counted by a control group (cgroup v2), for which this needs root."
        )
    group = places[0] / f"usage-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):  # A command that failed may have left processes in it.
            group.rmdir()
