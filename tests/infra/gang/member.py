"""A member of a gang that computes nothing: it does what a plan says, at each start the next.

    member.py FOLDER RANK START PLAN ROOT

FOLDER is where it tells, ROOT the test's. START is how often the gang was started before. PLAN has
words by commas; "tell" and "point" are what rank 0 tells, and who kills itself waits until that was
heard of.
"""

import os
import signal
import sys
import time
from pathlib import Path

from infra.gang.local import exit_on_stdin_close
from infra.gang.messages import (
    FAILED,
    PEER_LOST,
    PREEMPTED,
    ProgressWriter,
    read_message,
    write_failure_reason,
    write_message,
)
from infra.progress import Progress


def main() -> None:
    """Follows the plan."""
    folder, rank, start, plan = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    root = Path(sys.argv[5])
    exit_on_stdin_close(PEER_LOST)
    done = 0
    # Whole at once: a test may end this process, and read the number, at any moment.
    write_message(root, f"pid-{rank}", str(os.getpid()))
    writer = ProgressWriter(folder)
    for word in plan.split(", "):
        act, _, of = word.partition(" ")
        if act in ("tell", "point") and rank == 0:
            done = int(of or done + 1)
            writer.write(
                Progress(done=done, total=9, note=f"start {start}", resumable=act == "point")
            )
        elif act == "sleep":
            time.sleep(float(of))
        elif act == "leave":
            signal.signal(signal.SIGTERM, lambda *_: leave(root))
        elif act == "kill" and rank == int(of):
            while ("point" in plan or "tell" in plan) and read_message(folder, "heard") is None:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        elif act == "fail" and rank == int(of):
            write_failure_reason(folder, rank, "the batch does not fit")
            os._exit(FAILED)
        elif act == "ready":
            (root / f"ready-{rank}").write_text("")
        elif act == "preempted":
            os._exit(PREEMPTED)


def leave(root: Path) -> None:
    """Notes that it could save."""
    (root / "saved").write_text("")
    os._exit(PREEMPTED)


if __name__ == "__main__":
    main()
