"""The history of a key: artifacts/<key>/history/<attempt>.json for every attempt ever begun."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from infra.processes.identity import ProcessIdentity
from infra.store.backend import StoreBackend
from infra.store.manifest import validate_key

ARTIFACTS, HISTORY = "artifacts", "history"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptNote:
    """An attempt, as its file in the history records it.

    Attributes:
      id: id of the attempt, which is the name of its folder.
      started: time of its start [ISO 8601, UTC].
      holder: the process that makes it.
      inputs: keys of the artifacts it reads.
      ended: time at which its holder left the step, with a commit or without [ISO 8601, UTC]; ""
        before, and for ever if the holder was killed.
      stopped: whether its holder was told to stop, and so did not fail.
      device_seconds: its cost, as last recorded: a killed attempt cost a little more.
    """

    id: str
    started: str
    holder: ProcessIdentity
    inputs: tuple[str, ...] = ()
    ended: str = ""
    stopped: bool = False
    device_seconds: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it is certain that no process writes to it any more."""
        return bool(self.ended) or self.holder.has_ended

    @property
    def manifest_entry(self) -> dict[str, str]:
        """Its entry in a manifest."""
        process = {"host": self.holder.host, "pid": str(self.holder.pid)}
        return {"id": self.id, "started": self.started, **process}


class AttemptRecord:
    """The record of an attempt under way, which its holder keeps up to date in the store.

    Args:
      files: files of the store.
      key: key that the attempt is made at.
      note: the attempt at its start; it is written at once.
      cost: returns the attempt's cost so far [device-seconds].
    """

    def __init__(
        self, files: StoreBackend, key: str, note: AttemptNote, cost: Callable[[], float]
    ) -> None:
        self._files, self._name, self._note, self._cost = (
            files,
            _history_name(key, note),
            note,
            cost,
        )
        files.create_if_absent(self._name, _note_bytes(note))

    def save_cost(self) -> None:
        """Records the cost so far, which is all that is known of it if the holder is killed."""
        self._swap_attempt_note()

    def end(self, ended: str, *, stopped: bool) -> None:
        """Records that the attempt is over; `ended` and `stopped` as in `AttemptNote`."""
        self._swap_attempt_note(ended=ended, stopped=stopped)

    def _swap_attempt_note(self, **changes: Any) -> None:
        # Swapped and not put: if gc deleted the history meanwhile, it does not come back.
        note = dataclasses.replace(self._note, device_seconds=round(self._cost(), 3), **changes)
        if self._files.compare_and_swap(self._name, _note_bytes(self._note), _note_bytes(note)):
            self._note = note


def list_attempts(files: StoreBackend, key: str) -> list[AttemptNote]:
    """Returns every attempt in the history of a key that can be read, oldest first."""
    return read_history(files, key)[0]


def read_history(files: StoreBackend, key: str) -> tuple[list[AttemptNote], list[str]]:
    """Returns the attempts in the history of a key, oldest first, and the files that are none."""
    folder = f"{ARTIFACTS}/{key}/{HISTORY}"
    notes: list[AttemptNote] = []
    unreadable: list[str] = []
    for name in files.listing(folder):
        try:
            note = _parse_note(files.read(f"{folder}/{name}"))
        except FileNotFoundError:
            continue  # gc deleted it meanwhile.
        if note is None:
            unreadable.append(f"{folder}/{name}")
        else:
            notes.append(note)
    return sorted(notes, key=lambda note: (note.started, note.id)), unreadable


def _history_name(key: str, note: AttemptNote) -> str:
    return f"{ARTIFACTS}/{key}/{HISTORY}/{note.id}.json"


def _note_bytes(note: AttemptNote) -> bytes:
    return (json.dumps(dataclasses.asdict(note)) + "\n").encode()


def _parse_note(text: bytes) -> AttemptNote | None:
    try:
        raw = json.loads(text)  # A power cut may leave half of the text.
        holder = ProcessIdentity.read(raw.pop("holder"))
        inputs = tuple(map(validate_key, raw.pop("inputs")))
        note = AttemptNote(holder=holder, inputs=inputs, **raw)
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError):
        return None
    # A dataclass takes any types; the checks keep numbers and nulls out of paths and comparisons.
    are_texts = all(isinstance(value, str) for value in (note.id, note.started, note.ended))
    is_cost = isinstance(note.device_seconds, int | float)
    return note if are_texts and is_cost and isinstance(note.stopped, bool) else None
