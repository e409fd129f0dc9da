"""Supervises a gang: processes that compute together, none of which can continue without the rest.

When one is lost, the rest are killed and all start again, from the last state that they saved.
"""

import dataclasses
import signal
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Protocol

from infra.gang.messages import FAILED, PREEMPTED, ProgressReader, poll_interval
from infra.progress import Progress

_LOOK_EVERY = 0.02
"""Interval between two looks at the members [s]."""
_LOSSES = 3
"""Losses in a row, without a further saved state in between, after which a gang has failed."""
_TO_LEAVE = 2.0
"""Time for members to save their state when the supervisor must stop; Ray gives it 3 s [s]."""

_SAVED = "its machine is taken away; the state was saved"
LAUNCHER = -1
"""Rank that stands for the launcher, where one started the members."""
_REASON = 300
"""Longest reason of a member's end in one line of progress [characters]."""


class Gang(Protocol):
    """The members that were started together; see `infra.gang.local`."""

    def exit_codes(self) -> Mapping[int, int | None]:
        """Returns rank -> exit code, negative if a signal ended it; None while it lives.

        For a gang of a launcher: the codes of the members that wrote theirs, and the launcher's.
        """
        ...

    def notify_preemption(self, seconds: float) -> None:
        """Notifies all members that their machine is being preempted, and waits for them."""
        ...

    def kill(self) -> None:
        """Ends all members at once."""
        ...


class GangFailedError(RuntimeError):
    """A member failed by its own error, or the gang was lost too often."""


def supervise(
    start: Callable[[str], Gang], place: str, logs: Path
) -> Generator[Progress, None, str]:
    """Yields the progress of a gang until all of its members have ended well.

    Args:
      start: starts the gang, whose members report in the folder that it is given (see
        `infra.gang.messages`); called again, with a new folder, after the gang was lost.
      place: new place for these folders: a folder, or gs://bucket/prefix.
      logs: folder for the members' output; made here.

    Returns:
      The folder of the gang that ended well.

    Raises:
      GangFailedError: if a member failed by its own error, or the gang was lost too often.
    """
    logs.mkdir(parents=True, exist_ok=True)
    number = losses = furthest = 0
    while True:
        here = f"{place}/{number}"
        listener = ProgressReader(here, logs)
        gang = start(here)
        try:
            lost = yield from _follow(gang, listener, max(_LOOK_EVERY, poll_interval(place)))
        # The reader or this process must stop (`flows.steps.job`), and so must the members.
        except (GeneratorExit, SystemExit, KeyboardInterrupt):
            gang.notify_preemption(_TO_LEAVE)
            raise
        finally:
            gang.kill()
        if not lost:
            return here
        number += 1
        losses = 0 if listener.point > furthest else losses + 1
        furthest = max(furthest, listener.point)
        if losses >= _LOSSES:
            raise GangFailedError(
                f"{lost}; the gang was lost {losses} times without getting further."
            )
        note = f"{lost}; all members are restarted"
        yield dataclasses.replace(listener.last, resumable=False, note=note, happened=True)


def _follow(gang: Gang, listener: ProgressReader, pause: float) -> Generator[Progress, None, str]:
    """Yields progress while the members live; returns how they were lost, "" if all ended well.

    Raises:
      GangFailedError: if a member failed by its own error.
    """
    while True:
        codes = gang.exit_codes()
        for progress in listener.news():  # Read after the codes, so that no last report is missed.
            yield progress
            listener.deal_with()
        ended = {rank: code for rank, code in codes.items() if code}
        # Survivors of a lost member end or are aborted by JAX (SIGABRT) a little later, so they
        # are not the cause.
        killed = [r for r, code in ended.items() if code < 0 and code != -signal.SIGABRT]
        failed = sorted(
            (r for r, code in ended.items() if code == FAILED), key=lambda rank: rank == LAUNCHER
        )
        if failed and not killed:
            raise GangFailedError(f"{_who(failed[0])}: {listener.reason(failed[0])}")
        if ended:
            left = [r for r, code in ended.items() if code == PREEMPTED and r != LAUNCHER]
            rank = (killed or left or list(ended))[0]
            how = _SAVED if rank in left else _how(ended[rank], listener.reason(rank))
            return f"{_who(rank)} was lost ({how})"
        if None not in codes.values():
            return ""
        time.sleep(pause)


def _who(rank: int) -> str:
    return "a process of the launcher" if rank == LAUNCHER else f"rank {rank}"


def _how(code: int, reason: str) -> str:
    # A member that JAX aborts logs the reason last; one that is killed cannot log any.
    if code < 0 and code != -signal.SIGABRT:
        return signal.Signals(-code).name
    return f"exit code {code}: {reason[-_REASON:]}"
