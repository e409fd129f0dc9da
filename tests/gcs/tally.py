"""Counts of what a server was asked for."""

import collections
import threading


class Tally:
    """Requests and bytes by verb, and by object; bytes are those of bodies, without headers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verbs: dict[str, collections.Counter[str]] = {}
        self._objects: collections.Counter[tuple[str, str]] = collections.Counter()

    def add(
        self, verb: str, status: int | None, bytes_in: int = 0, bytes_out: int = 0, name: str = ""
    ) -> None:
        """Counts a request; one that was reset has no status.

        Args:
          name: of the object; "" where there is none.
        """
        with self._lock:
            counts = self._verbs.setdefault(verb, collections.Counter())
            counts["requests"] += 1
            counts["bytes_in"] += bytes_in
            counts["bytes_out"] += bytes_out
            counts[f"status_{status or 'reset'}"] += 1
            self._objects[name, "in"] += bytes_in
            self._objects[name, "out"] += bytes_out

    def clear(self) -> None:
        with self._lock:
            self._verbs.clear()
            self._objects.clear()

    def read(self) -> dict[str, dict[str, int]]:
        """Returns by verb: requests, bytes_in, bytes_out, and status_200 and so on."""
        with self._lock:
            return {verb: dict(counts) for verb, counts in sorted(self._verbs.items())}

    def moved(self) -> dict[tuple[str, str], int]:
        """Returns bytes by object and way, "in" and "out"; "" has what names no object."""
        with self._lock:
            return dict(self._objects)
