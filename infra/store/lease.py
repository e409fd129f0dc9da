"""Leases: small files that say which process works on something, and that end with that process.

A lease avoids double work, but does not guarantee exclusion. A holder that was stopped for minutes
may find that another process took its lease and did its work: the commit, which is atomic, decides
whose result counts.

A lease is free to be taken

- at once, if its holder was a process of this machine and is seen to have ended;
- at once, if the process that started its holder, and gave it its token, knows that it is lost; or
- if it lapsed: by the clock of the store it was not renewed for its `ttl`, and the process that
  wants it then saw it unchanged for one more interval of renewal. (After a laptop's sleep every
  lease looks lapsed until its holder, awake again too, renews it.)

Every renewal changes the text, and every change names the text that it replaces. So if two
processes take a lease, or one takes and another renews it, one of them fails.
"""

import contextlib
import dataclasses
import datetime
import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from infra.processes.identity import NOBODY, ProcessIdentity
from infra.store.backend import StoreBackend
from infra.store.manifest import validate_key

LEASE_TTL = 120.0
"""Time without renewal after which a lease has lapsed [s]. That a holder on this machine has ended
is known at once; this is for other machines, and for holders that hang or are hidden."""

_RENEWALS_PER_TTL = 6
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.5
"""First and longest wait between two looks at a lease that is held [s]; the wait doubles."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lease:
    """The contents of a lease's file.

    Attributes:
      token: id of this holding of the lease.
      holder: process that holds it.
      since: time at which it was taken [ISO 8601, UTC, by the holder's clock].
      ttl: time without renewal after which it lapses [s].
      renewals: number of its renewals.
      keys: keys of the artifacts that the holder relies on; see `pins`.
    """

    token: str
    holder: ProcessIdentity
    since: str
    ttl: float
    renewals: int = 0
    keys: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether its file could be read; else nobody knows what it holds."""
        return bool(self.token)

    def to_json(self) -> bytes:
        """Returns the file's text."""
        return (json.dumps(dataclasses.asdict(self), sort_keys=True) + "\n").encode()


class HeldLease:
    """A lease that this process holds: a thread renews it until it is released, or found lost.

    Attributes:
      lost: whether another process has taken it.
    """

    def __init__(self, files: StoreBackend, name: str, lease: Lease) -> None:
        self.lost = False
        self._files, self._name, self._lease = files, name, lease
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(
            target=self._renew_until_released, name=f"lease {name}", daemon=True
        )
        self._thread.start()

    @property
    def token(self) -> str:
        """Id of this holding."""
        return self._lease.token

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the artifacts that its holder relies on."""
        return self._lease.keys

    def renew(self, keys: Iterable[str] = ()) -> bool:
        """Renews the lease, adds `keys` to it, and returns whether it was still held."""
        with self._lock:
            # If the swap fails, either another process took the lease, or the reply to our last
            # change was lost and the file is one renewal ahead of us. Only the file can say which:
            # read it, and try once more from its text.
            self.lost = not (
                self._write_renewal(keys)
                or (self._adopt_lease_text() and self._write_renewal(keys))
            )
            return not self.lost

    def _write_renewal(self, keys: Iterable[str]) -> bool:
        lease = dataclasses.replace(
            self._lease,
            renewals=self._lease.renewals + 1,
            keys=tuple(dict.fromkeys((*self._lease.keys, *keys))),
        )
        swapped = self._files.compare_and_swap(self._name, self._lease.to_json(), lease.to_json())
        if swapped:
            self._lease = lease
        return swapped

    def _adopt_lease_text(self) -> bool:
        """Adopts the file's text if the lease is still ours, and returns whether it is.

        The text differs from the one known here if the reply to an earlier change was lost.
        """
        try:
            current = _parse_lease(self._files.read(self._name))
        except FileNotFoundError:
            return False
        if current.token == self.token:
            self._lease = current
        return current.token == self.token

    def release(self) -> None:
        """Gives the lease back; a lost one is left to its new holder."""
        self._ended.set()
        self._thread.join()
        # An error must not fail finished work: the lease ends with this process at the latest.
        with contextlib.suppress(OSError):
            self._files.compare_and_delete(self._name, self._lease.to_json())

    def _renew_until_released(self) -> None:
        while not self._ended.wait(self._lease.ttl / _RENEWALS_PER_TTL):
            # If the disk fails for a moment, the next renewal succeeds; if for long, the lease
            # lapses.
            with contextlib.suppress(OSError):
                if not self.renew():
                    return


class LeaseHeldError(RuntimeError):
    """A lease that was wanted at once is another process's."""


@contextlib.contextmanager
def hold_lease(
    files: StoreBackend,
    name: str,
    *,
    ttl: float = LEASE_TTL,
    token: str | None = None,
    lost: Collection[str] = (),
    wait: bool = True,
) -> Iterator[HeldLease]:
    """Holds a lease, after waiting until it is free; see `acquire_lease`.

    Raises:
      LeaseHeldError: without `wait`, if it is not free.
    """
    lease = acquire_lease(files, name, ttl=ttl, keep_waiting=lambda: wait, token=token, lost=lost)
    if lease is None:
        raise LeaseHeldError(f"{name} is held by another process.")
    try:
        yield lease
    finally:
        lease.release()


def acquire_lease(
    files: StoreBackend,
    name: str,
    *,
    ttl: float = LEASE_TTL,
    keep_waiting: Callable[[], bool] = lambda: True,
    token: str | None = None,
    lost: Collection[str] = (),
) -> HeldLease | None:
    """Takes a lease, waiting while `keep_waiting` says so; returns None if it gave up.

    Args:
      files: files that the lease is in.
      name: name of the lease's file.
      ttl: time without renewal after which it lapses [s].
      keep_waiting: asked after every look at a lease that another process holds.
      token: id of this holding; None draws one.
      lost: tokens of holders that are known to be lost.
    """
    lease = Lease(
        token=token or uuid.uuid4().hex,
        holder=ProcessIdentity.of_this_process(),
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        ttl=ttl,
    )
    text, wait = lease.to_json(), _FIRST_WAIT
    last_seen, last_seen_at = b"", 0.0
    # With ttl = 120 s a holder renews every 20 s. Here A's machine sleeps from 45 s on, and B wants
    # the lease at 60 s:
    #
    #   t [s]  0     20     40     45       60            160          300
    #   A      take  renew  renew  (sleep)                             wakes, renews: swap fails,
    #                                                                  `lost` is set
    #   file   A 0   A 1    A 2                           B 0
    #   B                                   sees A 2 ...  120 s after A 2: swaps A 2 for B 0
    #
    # If A finishes its step all the same, nothing breaks: its commit creates the manifest only if
    # B's is not there yet, and whoever comes second throws its own files away.
    while not files.create_if_absent(name, text):
        try:
            current, modified = files.read(name), files.stat(name).modified
        except FileNotFoundError:
            continue  # Given back just now: try again.
        current_lease = _parse_lease(current)
        if current != last_seen:
            last_seen, last_seen_at = current, time.monotonic()
        # Our own monotonic clock measures how long the text stood still; the store's clock measures
        # how old it is. Clocks of two machines are never compared.
        # Both must hold: after a sleep of this machine, live leases look lapsed for an interval.
        is_unchanged = time.monotonic() - last_seen_at >= current_lease.ttl / _RENEWALS_PER_TTL
        has_lapsed = is_unchanged and files.now() - modified > current_lease.ttl * 1e9
        if current_lease.holder.has_ended or has_lapsed or current_lease.token in lost:
            # Several processes may see the same lapsed lease. The swap names the text that each of
            # them saw, so one wins, and the others look again at the winner's lease.
            if files.compare_and_swap(name, current, text):
                break
            continue
        if not keep_waiting():
            return None
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    return HeldLease(files, name, lease)


def _parse_lease(text: bytes) -> Lease:
    """Reads a lease; half of one, left by a power cut, counts as held by an unknown process."""
    try:
        raw: dict[str, Any] = json.loads(text)
        holder, keys = (
            ProcessIdentity.read(raw.pop("holder")),
            tuple(map(validate_key, raw.pop("keys"))),
        )
        lease = Lease(holder=holder, keys=keys, **raw)
        texts = isinstance(lease.token, str) and isinstance(lease.since, str)
        if not (texts and isinstance(lease.ttl, int | float)):
            raise TypeError("token and since must be texts, and ttl a number")
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError):
        # Nobody never counts as ended: the lease must lapse first.
        return Lease(token="", holder=NOBODY, since="", ttl=LEASE_TTL)
    return lease


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaseView:
    """A lease as others see it.

    Attributes:
      key: name of what is held.
      lease: contents of its file.
      renewed: time of its last renewal [UTC, by the store's clock].
      age: time since then [s].
      text: text of its file.
    """

    key: str
    lease: Lease
    renewed: datetime.datetime
    age: float
    text: bytes

    def is_live(self, grace: float = 0.0) -> bool:
        """Whether its holder may be alive; one that cannot be seen, for `ttl` and `grace`."""
        # The process table of this machine is certain, as far as it is shown. Of another machine,
        # and of a process that is hidden, only the renewals are known.
        state = self.lease.holder.state
        return state == "running" or (state == "unknown" and self.age <= self.lease.ttl + grace)


def list_leases(files: StoreBackend, folder: str) -> list[LeaseView]:
    """Returns the leases of a folder, by key."""
    leases, now = [], files.now()
    for name, stat in files.listing(folder).items():
        path = f"{folder}/{name}"
        try:
            text = files.read(path)
        except FileNotFoundError:
            continue  # Given back meanwhile.
        renewed = datetime.datetime.fromtimestamp(stat.modified / 1e9, datetime.UTC)
        key, age = name.removesuffix(".json"), (now - stat.modified) / 1e9
        leases.append(
            LeaseView(key=key, lease=_parse_lease(text), renewed=renewed, age=age, text=text)
        )
    return leases
