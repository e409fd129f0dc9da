"""The history of a key: artifacts/<key>/history/<attempt>.json for every attempt ever begun."""

import dataclasses
import json

from infra.store.backend import StoreBackend
from infra.store.holder import Holder
from infra.store.manifest import checked_key

ARTIFACTS, HISTORY = "artifacts", "history"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun:
    """An attempt, as its file in the history records it.

    Attributes:
      id: id of the attempt, which is the name of its folder.
      started: time of its start [ISO 8601, UTC].
      holder: the process that makes it.
      inputs: keys of the artifacts it reads.
      ended: time at which its holder left the step, with a commit or without [ISO 8601, UTC]; ""
        before, and for ever if the holder was killed.
      stopped: whether its holder was told to stop, and so did not fail.
    """

    id: str
    started: str
    holder: Holder
    inputs: tuple[str, ...] = ()
    ended: str = ""
    stopped: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it is certain that no process writes to it any more."""
        return bool(self.ended) or self.holder.has_ended

    @property
    def shown(self) -> dict[str, str]:
        """Its entry in a manifest."""
        who = {"host": self.holder.host, "pid": str(self.holder.pid)}
        return {"id": self.id, "started": self.started, **who}


def note_begin(files: StoreBackend, key: str, begun: Begun) -> None:
    """Notes an attempt at a key, and so which process its folder belongs to."""
    files.create_if_absent(_name(key, begun), _text(begun))


def note_end(files: StoreBackend, key: str, begun: Begun, ended: str, *, stopped: bool) -> None:
    """Notes that an attempt is over; `stopped` as in `Begun`."""
    over = dataclasses.replace(begun, ended=ended, stopped=stopped)
    files.compare_and_swap(_name(key, begun), _text(begun), _text(over))


def attempts(files: StoreBackend, key: str) -> list[Begun]:
    """Returns every attempt in the history of a key that can be read, oldest first."""
    return read_history(files, key)[0]


def read_history(files: StoreBackend, key: str) -> tuple[list[Begun], list[str]]:
    """Returns the attempts in the history of a key, oldest first, and the files that are none."""
    folder = f"{ARTIFACTS}/{key}/{HISTORY}"
    found: list[Begun] = []
    unknown: list[str] = []
    for name in files.listing(folder):
        try:
            begun = _parse(files.read(f"{folder}/{name}"))
        except FileNotFoundError:
            continue  # gc deleted it meanwhile.
        if begun is None:
            unknown.append(f"{folder}/{name}")
        else:
            found.append(begun)
    return sorted(found, key=lambda begun: (begun.started, begun.id)), unknown


def _name(key: str, begun: Begun) -> str:
    return f"{ARTIFACTS}/{key}/{HISTORY}/{begun.id}.json"


def _text(begun: Begun) -> bytes:
    return (json.dumps(dataclasses.asdict(begun)) + "\n").encode()


def _parse(text: bytes) -> Begun | None:
    try:
        raw = json.loads(text)  # A power cut may leave half of the text.
        holder = Holder.read(raw.pop("holder"))
        inputs = tuple(map(checked_key, raw.pop("inputs")))
        begun = Begun(holder=holder, inputs=inputs, **raw)
    except (TypeError, KeyError, AttributeError, ValueError):
        return None
    is_text = all(isinstance(value, str) for value in (begun.id, begun.started, begun.ended))
    return begun if is_text and isinstance(begun.stopped, bool) else None
