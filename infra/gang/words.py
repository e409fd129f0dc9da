"""What the members of a gang, and who looks after them, say to each other: files in one folder.

told/<n>       rank 0 -> `Progress`, the n-th
accelerator    rank 0 -> kind of its devices
heard          the supervisor -> how many of these lines it has dealt with
reason-<rank>  a member that gives up -> why, in one line
ended-<rank>   a member, last of all -> its exit code
coordinator    rank 0 -> where it listens, where a launcher started the members

Files, not pipes: a member may be on another machine, which shares the folder, or nothing but a
bucket. Each start of the gang has a folder of its own, so that nobody hears those who were lost.
"""

import dataclasses
import functools
import json
import os
import time
from pathlib import Path

from infra.progress import Progress
from infra.store.files import Files
from infra.store.places import BUCKET, open_files

FAILED, PEER_LOST, PREEMPTED = 1, 17, 143
"""Exit codes of a member: of its own fault, for want of another member, and asked to leave."""

Place = str | os.PathLike[str]
"""A folder, or gs://bucket/prefix."""

_LOOK_EVERY = 0.01
"""Between two looks at what somebody may have said [s]."""
_ASK_EVERY = 0.5
"""The same in a bucket, where each is a request [s]."""
_LAST_WORDS = 2000
"""Of a log, as an error cites it [bytes]."""


class Teller:
    """What rank 0 tells; safe to make where nobody listens, with None for the place."""

    def __init__(self, place: Place | None) -> None:
        self._place, self._told = place, 0

    def tell(self, progress: Progress) -> None:
        """Tells how far the work is; with a point to go on from, waits until that was dealt with.

        So what lies in the scratch folder stays as it is while it is copied to a store elsewhere.
        In a bucket nobody waits: members that speak there have scratch folders of their own.
        """
        text = json.dumps(dataclasses.asdict(progress))
        if self._place is None:
            print(text, flush=True)
            return
        say(self._place, f"told/{self._told}", text)
        self._told += 1
        waits = progress.resumable and not _is_bucket(self._place)
        while waits and int(said(self._place, "heard") or 0) < self._told:
            time.sleep(_LOOK_EVERY)

    def tell_accelerator(self, kind: str) -> None:
        """Tells the kind of device that JAX computes on, such as "cpu"."""
        if self._place is not None:
            say(self._place, "accelerator", kind)


def give_reason(place: Place | None, rank: int, reason: str) -> None:
    """Says why a member gives up."""
    if place is None:
        print(reason, flush=True)
    else:
        say(place, f"reason-{rank}", reason)


def note_end(place: Place | None, rank: int, code: int) -> None:
    """Says with which exit code a member ends."""
    if place is not None:
        say(place, f"ended-{rank}", str(code))


def codes_of(place: Place) -> dict[int, int]:
    """Returns rank -> exit code, of the members that have said theirs."""
    names = [name for name in _files(os.fspath(place)).listing("") if name.startswith("ended-")]
    return {int(name.partition("-")[2]): int(said(place, name) or 0) for name in names}


class Listener:
    """Hears what a gang tells.

    Args:
      place: where it tells it.
      logs: folder of `<rank>.log` or `launcher.log`, what members printed.

    Attributes:
      last: what was told last.
      point: units done at the last point to go on from; 0 before the first.
    """

    def __init__(self, place: Place, logs: Path) -> None:
        self._place, self._logs = place, logs
        self._read = self._heard = 0
        self.last, self.point = Progress(done=0, total=0), 0

    def news(self) -> list[Progress]:
        """Returns the progress that was told since the last call."""
        found = []
        while (text := said(self._place, f"told/{self._read}")) is not None:
            self.last = Progress(**json.loads(text))
            self.point = self.last.done if self.last.resumable else self.point
            self._read += 1
            found.append(self.last)
        return found

    def deal_with(self) -> None:
        """Says that one more of the lines was dealt with, where somebody waits for that."""
        self._heard += 1
        if not _is_bucket(self._place):
            say(self._place, "heard", str(self._heard))

    def reason(self, rank: int) -> str:
        """Returns why a member gave up: what it said, or the end of what it printed."""
        if (reason := said(self._place, f"reason-{rank}")) is not None:
            return reason
        logs = (self._logs / f"{name}.log" for name in (rank, "launcher"))
        log = next((log for log in logs if log.exists()), self._logs)
        text = log.read_bytes()[-_LAST_WORDS:].decode(errors="replace") if log.is_file() else ""
        return " ".join(text.split())


def say(place: Place, name: str, text: str) -> None:
    """Writes a file of which readers see all or nothing."""
    _files(os.fspath(place)).put(name, text.encode())


def said(place: Place, name: str) -> str | None:
    """Returns the text of a file; None if it is not there."""
    try:
        return _files(os.fspath(place)).read(name).decode()
    except FileNotFoundError:
        return None


def look_every(place: Place) -> float:
    """Returns how long to wait between two looks at what is said there [s]."""
    return _ASK_EVERY if _is_bucket(place) else _LOOK_EVERY


def _is_bucket(place: Place) -> bool:
    return os.fspath(place).startswith(BUCKET)


@functools.lru_cache(maxsize=4)
def _files(place: str) -> Files:
    return open_files(place)
