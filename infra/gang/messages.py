"""Messages between the members of a gang and their supervisor: files in one folder.

file           writer -> content
told/<n>       rank 0 -> its n-th `Progress`
accelerator    rank 0 -> kind of its devices
devices        rank 0 -> number of the devices of all members
heard          the supervisor -> how many reports of progress it has handled
reason-<rank>  a member that gives up -> why, in one line
ended-<rank>   a member, last of all -> its exit code
coordinator    rank 0 -> its address, if a launcher started the members

They are files and not pipes because a member may be on another machine, which shares only the
folder, or only a bucket. Each start of the gang has a new folder, so that reports of lost members
are never read.
"""

import dataclasses
import functools
import json
import os
import time
from pathlib import Path

from infra.credentials import redact_text
from infra.progress import Progress
from infra.store.backend import StoreBackend
from infra.store.stored_folder import BUCKET_SCHEME, open_backend

FAILED, PEER_LOST, PREEMPTED = 1, 17, 143
"""Exit codes of a member: its own error, another member was lost, and it was asked to leave."""

GangFolder = str | os.PathLike[str]
"""A folder, or gs://bucket/prefix."""

_POLL_INTERVAL = 0.01
"""Interval between two looks for a message [s]."""
_BUCKET_POLL_INTERVAL = 0.5
"""The same in a bucket, where each look is a request [s]."""
_LOG_TAIL = 2000
"""Length of the end of a log that an error cites [bytes]."""


class ProgressWriter:
    """Rank 0's reports to the supervisor; with None for the place, progress is printed instead."""

    def __init__(self, place: GangFolder | None) -> None:
        self._place, self._num_written = place, 0

    def write(self, progress: Progress) -> None:
        """Reports progress; if it is resumable, waits until the supervisor has handled it.

        So the scratch folder does not change while it is copied to a store elsewhere. There is no
        wait in a bucket: members that report there have scratch folders of their own.
        """
        text = json.dumps(dataclasses.asdict(progress))
        if self._place is None:
            print(text, flush=True)
            return
        write_message(self._place, f"told/{self._num_written}", text)
        self._num_written += 1
        # A resumable state is copied while nobody writes to the folder that holds it:
        #
        #   rank 0                          supervisor
        #   told/0   step 10          ->    read, shown;                     heard = 1
        #   told/1   step 20, saved   ->    read; the folder is copied;      heard = 2
        #   waits until heard is 2
        #   trains on
        waits = progress.resumable and not _is_bucket(self._place)
        while waits and int(read_message(self._place, "heard") or 0) < self._num_written:
            time.sleep(_POLL_INTERVAL)

    def write_devices(self, kind: str, count: int) -> None:
        """Reports the kind of device that JAX computes on, such as "cpu", and their number."""
        if self._place is not None:
            write_message(self._place, "accelerator", kind)
            write_message(self._place, "devices", str(count))


def write_failure_reason(place: GangFolder | None, rank: int, reason: str) -> None:
    """Writes why a member gives up."""
    if place is None:
        print(reason, flush=True)
    else:
        write_message(place, f"reason-{rank}", reason)


def write_exit_code(place: GangFolder | None, rank: int, code: int) -> None:
    """Writes the exit code with which a member ends."""
    if place is not None:
        write_message(place, f"ended-{rank}", str(code))


def read_exit_codes(place: GangFolder) -> dict[int, int]:
    """Returns rank -> exit code of the members that have written theirs."""
    names = [
        name
        for name in _open_message_backend(os.fspath(place)).listing("")
        if name.startswith("ended-")
    ]
    return {int(name.partition("-")[2]): int(read_message(place, name) or 0) for name in names}


class ProgressReader:
    """Reads the reports of a gang.

    Args:
      place: place where the gang reports.
      logs: folder with the members' output: `<rank>.log` or `launcher.log`.

    Attributes:
      last: the latest progress.
      resume_point: units done at the last resumable progress; 0 before the first.
      devices: number of the devices of all members; 0 until rank 0 has reported it.
    """

    def __init__(self, place: GangFolder, logs: Path) -> None:
        self._place, self._logs = place, logs
        self._num_read = self._num_acknowledged = 0
        self.last, self.resume_point = Progress(done=0, total=0), 0
        self.devices = 0

    def read_new(self) -> list[Progress]:
        """Returns the progress that was reported since the last call."""
        reports = []
        while (text := read_message(self._place, f"told/{self._num_read}")) is not None:
            self.last = dataclasses.replace(
                Progress(**json.loads(text)), devices=self.read_devices()
            )
            self.resume_point = self.last.done if self.last.resumable else self.resume_point
            self._num_read += 1
            reports.append(self.last)
        return reports

    def read_devices(self) -> int:
        """Returns `devices`, which is read until it is there."""
        self.devices = self.devices or int(read_message(self._place, "devices") or 0)
        return self.devices

    def acknowledge(self) -> None:
        """Notes that one more report was handled; not in a bucket, where nobody waits for it."""
        self._num_acknowledged += 1
        if not _is_bucket(self._place):
            write_message(self._place, "heard", str(self._num_acknowledged))

    def reason(self, rank: int) -> str:
        """Returns why a member gave up: its own reason, or else the end of its log."""
        if (reason := read_message(self._place, f"reason-{rank}")) is not None:
            return reason
        # A member that was killed gave no reason, but perhaps printed one. Under a launcher all of
        # them print to one log.
        logs = (self._logs / f"{name}.log" for name in (rank, "launcher"))
        log = next((log for log in logs if log.exists()), self._logs)
        text = log.read_bytes()[-_LOG_TAIL:].decode(errors="replace") if log.is_file() else ""
        return " ".join(redact_text(text).split())


def write_message(place: GangFolder, name: str, text: str) -> None:
    """Writes a file atomically: readers see all of it or nothing."""
    _open_message_backend(os.fspath(place)).put(name, text.encode())


def read_message(place: GangFolder, name: str) -> str | None:
    """Returns the text of a file; None if it is not there."""
    try:
        return _open_message_backend(os.fspath(place)).read(name).decode()
    except FileNotFoundError:
        return None


def poll_interval(place: GangFolder) -> float:
    """Returns the interval between two looks for a message in a place [s]."""
    return _BUCKET_POLL_INTERVAL if _is_bucket(place) else _POLL_INTERVAL


def _is_bucket(place: GangFolder) -> bool:
    return os.fspath(place).startswith(BUCKET_SCHEME)


@functools.lru_cache(maxsize=4)
def _open_message_backend(place: str) -> StoreBackend:
    return open_backend(place)
