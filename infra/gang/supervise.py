"""Keeps a gang going: processes that compute together, none of which can go on without the rest.

When one is lost, the rest are ended and all begin again, from the last point to go on from that
they wrote themselves.
"""

import dataclasses
import signal
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Protocol

from infra.gang.words import FAILED, PREEMPTED, Listener, look_every
from infra.progress import Progress

_LOOK_EVERY = 0.02
"""Between two looks at the members [s]."""
_LOSSES = 3
"""How often in a row a gang may be lost without having got to a further point to go on from."""
_TO_LEAVE = 2.0
"""For members to save their state when the supervisor is told to stop; Ray gives it 3 s [s]."""

_SAVED = "its machine is taken away; the state was saved"
LAUNCHER = -1
"""Rank of whatever started the members, where that is no member's own process."""
_REASON = 300
"""Of why a member ended, as one line of progress cites it [characters]."""


class Gang(Protocol):
    """Members that were started together; see `infra.gang.local`."""

    def codes(self) -> Mapping[int, int | None]:
        """Returns rank -> exit code, minus the signal that ended it; None while it lives.

        Of members that a launcher started, those who said theirs, and its own.
        """
        ...

    def ask_to_leave(self, seconds: float) -> None:
        """Tells all members that their machine is about to be taken away, and waits for them."""
        ...

    def kill(self) -> None:
        """Ends all members at once."""
        ...


class GangFailedError(RuntimeError):
    """A member failed of its own fault, or the gang was lost again and again."""


def supervise(
    start: Callable[[str], Gang], place: str, logs: Path
) -> Generator[Progress, None, str]:
    """Yields the progress of a gang until all of its members have ended well.

    Args:
      start: starts the gang, whose members tell of themselves in the folder it is given (see
        `infra.gang.words`); again, with another folder, after it was lost.
      place: where these folders are, a place that is new: a folder, or gs://bucket/prefix.
      logs: folder for what the members print; made here.

    Returns:
      The folder of those who ended well.

    Raises:
      GangFailedError: if a member failed of its own fault, or the gang was lost too often.
    """
    logs.mkdir(parents=True, exist_ok=True)
    number = losses = furthest = 0
    while True:
        here = f"{place}/{number}"
        listener = Listener(here, logs)
        gang = start(here)
        try:
            lost = yield from _follow(gang, listener, max(_LOOK_EVERY, look_every(place)))
        # Whoever reads, or this process, was told to stop (`flows.steps.job`); so are they.
        except (GeneratorExit, SystemExit, KeyboardInterrupt):
            gang.ask_to_leave(_TO_LEAVE)
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
        note = f"{lost}; all members begin again"
        yield dataclasses.replace(listener.last, resumable=False, note=note, happened=True)


def _follow(gang: Gang, listener: Listener, pause: float) -> Generator[Progress, None, str]:
    """Yields progress while the members live; returns how they were lost, "" if all ended well.

    Raises:
      GangFailedError: if one failed of its own fault.
    """
    while True:
        codes = gang.codes()
        for progress in listener.news():  # After a look at the codes: nobody who ended said more.
            yield progress
            listener.deal_with()
        ended = {rank: code for rank, code in codes.items() if code}
        # Survivors end for want of the one that was lost, or are aborted by JAX: a little later.
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
    return "what the launcher started" if rank == LAUNCHER else f"rank {rank}"


def _how(code: int, reason: str) -> str:
    # Who is aborted, by JAX, says why at the end of its log; who is killed can say nothing.
    if code < 0 and code != -signal.SIGABRT:
        return signal.Signals(-code).name
    return f"exit code {code}: {reason[-_REASON:]}"
