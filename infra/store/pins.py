"""Pins: the artifacts that a run under way relies on, which `gc` does not delete meanwhile.

    with store.pin_run(run_id) as pin:      # before anything of the run is looked up or kept
        pin.add(step.key)                  # before the hit is relied on ...
        hit = store.find(step.key)         # ... and what is found now stays until the end

`add`, and the moment in which `gc` decides what to delete, exclude each other (both hold one
lease). So either `gc` sees the pin, or the run sees that the artifact is no longer there. A pin
covers its keys and everything they were made from. It is a lease, so the pins of a process that has
ended do not count.

A pin is also the run's sign of life: see `infra.prefect.watch`.
"""

import contextlib
import re
import threading
import uuid
from collections.abc import Iterator

from infra.store.backend import StoreBackend
from infra.store.lease import HeldLease, LeaseView, acquire_lease, hold_lease, list_leases
from infra.store.manifest import validate_key

PINS = "pins"
GC_LEASE = "gc.json"
"""Lease of a process that changes pins, and of `gc` while it decides what to delete."""

PIN_TTL = 40.0
"""Time without renewal after which a pin has lapsed [s]: a lost machine shows within a minute."""

_MAX_KEYS = 256
"""Number of keys from which a lease gets no more: each change of a lease writes all of its keys."""

_RUN = re.compile(r"\w[\w.-]*")


class Pin:
    """The artifacts that one run relies on; they only grow.

    A change of a lease writes all of it, so there is one lease for every few hundred keys.

    Args:
      files: the store's files.
      run: the run's id.
    """

    def __init__(self, files: StoreBackend, run: str) -> None:
        self._files, self.run = files, run
        self._leases: list[HeldLease] = []
        self._pinned: set[str] = set()
        self._requested: dict[str, None] = {}
        self._lock = threading.Lock()
        with hold_lease(files, GC_LEASE):
            self._acquire_pin_lease()

    def add(self, *keys: str) -> None:
        """Pins artifacts, whether they exist or not; those found afterwards are safe to rely on.

        Raises:
          RuntimeError: if the pin is gone: this process was stopped for so long that `gc` took it
            for dead.
        """
        requested = {validate_key(key): None for key in keys}
        self._requested.update(requested)
        # A change of pins takes a lease of the store, some milliseconds on a bucket. Threads that
        # come while one is at it only leave their keys, and the next holder of the lock pins all of
        # them:
        #
        #   thread 1   pins a ..........
        #   thread 2   leaves b, waits    pins b and c
        #   thread 3   leaves c, waits                 finds nothing new to do
        with self._lock:  # The first thread pins for all that wait.
            batch, self._requested = self._requested | requested, {}
            new_keys = [key for key in batch if key not in self._pinned]
            if not new_keys:
                return
            with hold_lease(self._files, GC_LEASE):
                for start in range(0, len(new_keys), _MAX_KEYS):
                    if len(self._leases[-1].keys) >= _MAX_KEYS:
                        self._acquire_pin_lease()
                    self._leases[-1].renew(new_keys[start : start + _MAX_KEYS])
                # Checked after the renewal, under the lease that gc would need to delete anything:
                # so if the pin is held here, what is found from now on stays.
                if any(lease.lost for lease in self._leases):
                    raise RuntimeError("this run's pin was lost; start the run again.")
            self._pinned.update(new_keys)

    def release(self) -> None:
        """Gives up the pin and all of its leases."""
        for lease in self._leases:
            lease.release()

    def _acquire_pin_lease(self) -> None:
        # The random part is for the several leases of a run, and for those of its earlier tries.
        lease = acquire_lease(
            self._files, f"{PINS}/{self.run}.{uuid.uuid4().hex[:8]}.json", ttl=PIN_TTL
        )
        assert lease is not None  # Nobody else has that name.
        self._leases.append(lease)


@contextlib.contextmanager
def pin_run(files: StoreBackend, run: str) -> Iterator[Pin]:
    """Holds the pin of a run.

    Args:
      files: the store's files.
      run: the run's id; names the files.

    Raises:
      ValueError: if `run` cannot be a file's name.
    """
    if not _RUN.fullmatch(run):
        raise ValueError(f"run must be letters, digits, '.', '-' or '_', got {run!r}.")
    pin = Pin(files, run)
    try:
        yield pin
    finally:
        pin.release()


def list_pins(files: StoreBackend) -> list[LeaseView]:
    """Returns the pins of all runs, live or not."""
    return list_leases(files, PINS)


def run_of_pin(pin: LeaseView) -> str:
    """Returns the id of the run that holds, or held, a pin."""
    return pin.key.rpartition(".")[0]


def living_runs(files: StoreBackend) -> set[str]:
    """Returns the runs that may be alive; one of another machine until its pin has lapsed."""
    return {run_of_pin(pin) for pin in list_pins(files) if pin.is_live()}
