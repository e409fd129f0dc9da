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

_POLL_INTERVAL = 0.02
"""Interval between two looks at the members [s]."""
_MAX_LOSSES = 3
"""Losses in a row, without a further saved state in between, after which a gang has failed."""
_SAVE_TIMEOUT = 2.0
"""Time for members to save their state when the supervisor must stop; Ray gives it 3 s [s]."""

_SAVED = "its machine is taken away; the state was saved"
LAUNCHER = -1
"""Rank that stands for the launcher, where one started the members."""
_MAX_REASON_LENGTH = 300
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
    # Each start of the gang has a folder of its own. Losses count only without progress in between,
    # since a long training on machines that come and go is lost many times:
    #
    #   start 0   saves at 100, 200; lost   got further: 0 losses in a row
    #   start 1   from 200, lost at 250     1
    #   start 2   from 200, lost at 240     2
    #   start 3   from 200, lost at 260     3: failed. Perhaps it runs out of memory there
    number = losses = best_point = 0
    while True:
        message_folder = f"{place}/{number}"
        reader = ProgressReader(message_folder, logs)
        gang = start(message_folder)
        try:
            loss = yield from _follow_gang_members(
                gang, reader, max(_POLL_INTERVAL, poll_interval(place))
            )
        # A failure has the cost of all members, who may have failed before their first progress.
        except GangFailedError:
            yield dataclasses.replace(
                reader.last, resumable=False, happened=False, devices=reader.read_devices()
            )
            raise
        # The reader or this process must stop (`flows.steps.job`), and so must the members. They
        # are notified before they are killed, so that they can save where they are.
        except (GeneratorExit, SystemExit, KeyboardInterrupt):
            gang.notify_preemption(_SAVE_TIMEOUT)
            raise
        finally:
            gang.kill()
        if not loss:
            return message_folder
        number += 1
        losses = 0 if reader.resume_point > best_point else losses + 1
        best_point = max(best_point, reader.resume_point)
        if losses >= _MAX_LOSSES:
            raise GangFailedError(
                f"{loss}; the gang was lost {losses} times without getting further."
            )
        note = f"{loss}; all members are restarted"
        yield dataclasses.replace(
            reader.last, resumable=False, note=note, happened=True, devices=reader.read_devices()
        )


def _follow_gang_members(
    gang: Gang, reader: ProgressReader, pause: float
) -> Generator[Progress, None, str]:
    """Yields progress while the members live; returns how they were lost, "" if all ended well.

    Raises:
      GangFailedError: if a member failed by its own error.
    """
    while True:
        codes = gang.exit_codes()
        # Read after the codes: a member reports before it ends, so no last report is missed.
        for progress in reader.read_new():
            yield progress
            reader.acknowledge()
        failures = {rank: code for rank, code in codes.items() if code}
        # Survivors of a lost member end or are aborted by JAX (SIGABRT) a little later, so they
        # are not the cause.
        killed = [r for r, code in failures.items() if code < 0 and code != -signal.SIGABRT]
        failed = sorted(
            (r for r, code in failures.items() if code == FAILED), key=lambda rank: rank == LAUNCHER
        )
        # An error of the code would come back at every start; a killed process may not. If both
        # happened, the error may be a consequence of the loss: start again.
        if failed and not killed:
            raise GangFailedError(f"{_member_name(failed[0])}: {reader.reason(failed[0])}")
        if failures:
            preempted = [r for r, code in failures.items() if code == PREEMPTED and r != LAUNCHER]
            rank = (killed or preempted or list(failures))[0]
            cause = (
                _SAVED if rank in preempted else _cause_text(failures[rank], reader.reason(rank))
            )
            return f"{_member_name(rank)} was lost ({cause})"
        # What is left are zeros, and None for a process that still runs.
        if None not in codes.values():
            return ""
        time.sleep(pause)


def _member_name(rank: int) -> str:
    return "a process of the launcher" if rank == LAUNCHER else f"rank {rank}"


def _cause_text(code: int, reason: str) -> str:
    # A member that JAX aborts logs the reason last; one that is killed cannot log any.
    if code < 0 and code != -signal.SIGABRT:
        return signal.Signals(-code).name
    return f"exit code {code}: {reason[-_MAX_REASON_LENGTH:]}"
