"""What a command costs, with everything it starts: daemons and what outlives it included.

A control group counts them. What `wait` returns would not do: Ray's raylet never waits for its
workers.
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
"""Between two looks at whether the last process has ended [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """One run of a command.

    Attributes:
      wall: until the command itself ended [s].
      cpu: processor time of it and of all it started, until the last of them ended [s].
    """

    wall: float
    cpu: float


def run_counted(command: Sequence[str], env: Mapping[str, str], log: Path, folder: Path) -> Usage:
    """Runs a command and returns what it cost.

    Args:
      command: what to run.
      env: its environment.
      log: file that its output is appended to.
      folder: where it runs; `python -m` looks for modules there first.

    Raises:
      RuntimeError: if the command fails, or no control group can be made.
    """
    with _control_group() as group, log.open("a") as out:
        began = time.monotonic()
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
        with contextlib.suppress(OSError):  # Something of a command that failed is left in it.
            group.rmdir()
