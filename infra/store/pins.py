"""Pins: what a run under way relies on, so that `gc` beside it deletes none of it.

    with store.pinned(run_id) as pin:      # before anything of the run is looked up or kept
        pin.add(step.key)                  # before the hit is relied on ...
        hit = store.find(step.key)         # ... and what is found now stays until the end

`add` and the moment in which `gc` decides what goes exclude each other (both hold one lease), so
either `gc` sees the pin, or the run sees that the artifact is no longer there. A pin covers its
keys and everything they were made from. It is a lease: the pins of a process that is gone count
for nothing.

It is also the sign of life of the run itself: see `infra.prefect.watch`.
"""

import contextlib
import re
import threading
import uuid
from collections.abc import Iterator

from infra.store.files import Files
from infra.store.lease import Held, Holding, hold, holdings, take
from infra.store.manifest import checked_key

PINS = "pins"
DECIDING = "gc.json"
"""Lease of whoever changes pins, and of `gc` while it decides."""

TTL = 40.0
"""Of a pin: a run whose machine is gone is known to be dead within a minute [s]."""

_RUN = re.compile(r"\w[\w.-]*")


class Pin:
    """The artifacts that one run relies on; they only grow."""

    def __init__(self, files: Files, held: Held) -> None:
        self._files, self._held = files, held
        self._adding = threading.Lock()  # Threads of this run need not wait by polling.

    def add(self, *keys: str) -> None:
        """Pins artifacts, there or not; afterwards it is safe to rely on those that are found.

        Raises:
          RuntimeError: if the pin is gone: this process was stopped for so long that `gc` took it
            for dead.
        """
        with self._adding:
            if new := [checked_key(key) for key in keys if key not in self._held.keys]:
                with hold(self._files, DECIDING):
                    if not self._held.renew(new):
                        raise RuntimeError("this run's pin was lost; start the run again.")


@contextlib.contextmanager
def pin(files: Files, run: str) -> Iterator[Pin]:
    """Holds the pin of a run.

    Args:
      files: the store's.
      run: the run's id; names the file.

    Raises:
      ValueError: if `run` cannot be a file's name.
    """
    if not _RUN.fullmatch(run):
        raise ValueError(f"run must be letters, digits, '.', '-' or '_', got {run!r}.")
    name = f"{PINS}/{run}.{uuid.uuid4().hex[:8]}.json"  # A run tried again has one more.
    with hold(files, DECIDING):
        held = take(files, name, ttl=TTL)
    assert held is not None  # Nobody else has that name.
    try:
        yield Pin(files, held)
    finally:
        held.release()


def pins(files: Files) -> list[Holding]:
    """Returns the pins of all runs, live or not."""
    return holdings(files, PINS)
