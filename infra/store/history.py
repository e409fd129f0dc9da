"""attempts.jsonl: every attempt ever begun at a key, and the end of those whose holder saw it."""

import dataclasses
import json
from pathlib import Path

from infra.store.holder import Holder

HISTORY = "attempts.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun:
    """An attempt; each change of it is one more line of the history.

    Attributes:
      id: names its folder.
      started: [ISO 8601, UTC].
      holder: the process that makes it.
      inputs: keys of the artifacts it reads.
      ended: when its holder left the step, with a commit or without [ISO 8601, UTC]; "" before,
        and for ever where the holder was killed.
    """

    id: str
    started: str
    holder: Holder
    inputs: tuple[str, ...] = ()
    ended: str = ""

    @property
    def is_over(self) -> bool:
        """Whether surely nobody writes to it any more."""
        return bool(self.ended) or self.holder.is_gone

    @property
    def shown(self) -> dict[str, str]:
        """Its entry in a manifest."""
        who = {"host": self.holder.host, "pid": str(self.holder.pid)}
        return {"id": self.id, "started": self.started, **who}


def note(folder: Path, begun: Begun) -> None:
    """Appends an attempt, or its end, to the history in an artifact's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / HISTORY).open("a") as history:
        history.write(json.dumps(dataclasses.asdict(begun)) + "\n")


def attempts(folder: Path) -> list[Begun]:
    """Returns every attempt that the history in an artifact's folder knows, oldest first."""
    try:
        lines = (folder / HISTORY).read_text().splitlines()
    except FileNotFoundError:
        return []
    # A later line of the same attempt tells its end.
    return list({begun.id: begun for line in lines if (begun := _parse(line))}.values())


def _parse(line: str) -> Begun | None:
    try:
        raw = json.loads(line)  # A writer killed mid-line leaves half of one.
        holder, inputs = Holder(**raw.pop("holder")), tuple(raw.pop("inputs"))
        return Begun(holder=holder, inputs=inputs, **raw)
    except (TypeError, KeyError, AttributeError, ValueError):
        return None
