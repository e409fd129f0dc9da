"""The history of a store: what was begun, read, committed and acknowledged; and its checker.

As in Jepsen, the checker is a pure function of the history: what it looks at was observed from
outside, change by change, and not what the processes say of themselves.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from tests.certificate.shim import Change

Kind = Literal["begun", "ended", "committed", "set aside", "removed", "acknowledged"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One event of a store's history.

    Attributes:
      kind: what happened: an attempt was begun or ended, an artifact committed, set aside as
        damaged or removed, a step acknowledged to people.
      key: key of the artifact; of an acknowledgement, the step's name.
      attempt: id of the attempt.
      name: name of the step, of a commit.
      content: digest of what was committed.
      inputs: key -> content of what it was made from; of an attempt, the contents are unknown ("").
      process: pid of who did it, or of the holder.
    """

    kind: Kind
    key: str
    attempt: str = ""
    name: str = ""
    content: str = ""
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    process: int = 0


def events_of(changes: Iterable[Change]) -> list[Event]:
    """Returns the events that changes of a store's records stand for."""
    events: list[Event] = []
    ended: set[str] = set()
    for change in changes:
        folder, _, rest = change.name.partition("/")
        if folder not in ("manifests", "aside") and "/history/" not in rest:
            continue
        record = json.loads(change.data) if change.data is not None else {}
        if folder == "manifests":
            key = rest.partition("/")[2].removesuffix(".json")
            if change.data is None:
                events.append(Event(kind="removed", key=key, process=change.pid))
                continue
            events.append(
                Event(
                    kind="committed",
                    key=key,
                    attempt=record["folder"].rpartition("/")[2],
                    name=record["name"],
                    content=record["content"],
                    inputs={each["key"]: each["content"] for each in record["inputs"].values()},
                    process=change.pid,
                )
            )
        elif folder == "aside" and record:
            events.append(Event(kind="set aside", key=record["key"], process=change.pid))
        elif folder == "artifacts" and record:
            key, attempt = rest.split("/")[0], record["id"]
            common = {"key": key, "attempt": attempt, "process": record["holder"]["pid"]}
            if not any(e.kind == "begun" and e.attempt == attempt for e in events):
                inputs = dict.fromkeys(record["inputs"], "")
                events.append(Event(kind="begun", inputs=inputs, **common))
            if record["ended"] and attempt not in ended:
                ended.add(attempt)
                events.append(Event(kind="ended", **common))
    return events


def violations(history: Iterable[Event], damaged: Collection[str] = ()) -> list[str]:
    """Returns what of a history may not happen, one line each.

    - An artifact is committed once; after that, it is set aside as damaged before another is.
    - What is committed is an attempt at that key which was begun and had not ended.
    - It was made from what was committed at that time, which was read no earlier than committed.
    - Nothing is begun that was committed already.
    - Nothing that was committed goes away, and nothing is acknowledged that was not committed.
    - Whatever is committed again has the same content.

    Args:
      history: the events in order.
      damaged: keys of artifacts that were damaged on purpose, which may be made again.
    """
    wrong: list[str] = []
    begun: dict[str, Event] = {}
    ended: set[str] = set()
    committed: dict[str, Event] = {}  # By key; what is there now.
    contents: dict[str, str] = {}  # By key; of all that was ever there.
    names: set[str] = set()
    aside: set[str] = set()
    for event in history:
        key, attempt = event.key, event.attempt
        there = committed.get(key)
        match event.kind:
            case "begun":
                if there and key not in damaged:
                    wrong.append(f"{key}: {attempt} was begun after {there.attempt} was committed")
                missing = sorted(set(event.inputs) - set(contents))
                if missing:
                    wrong.append(f"{key}: {attempt} reads {missing}, which nobody had committed")
                begun[attempt] = event
            case "ended":
                if attempt not in begun:
                    wrong.append(f"{key}: {attempt} ended and was never begun")
                ended.add(attempt)
            case "committed":
                if there and there.attempt != attempt and key not in aside:
                    wrong.append(f"{key} was committed twice: {there.attempt} and {attempt}")
                if attempt not in begun or begun[attempt].key != key:
                    wrong.append(f"{key}: {attempt} was committed and never begun")
                elif attempt in ended:
                    wrong.append(f"{key}: {attempt} was committed after it had ended")
                # What it read may be gone by now, and it is not made from itself.
                for read, content in event.inputs.items():
                    if read not in contents:
                        wrong.append(f"{key}: made from {read}, which nobody had committed")
                    elif contents[read] != content:
                        wrong.append(f"{key}: made from other content of {read} than is committed")
                if contents.setdefault(key, event.content) != event.content:
                    wrong.append(f"{key}: {attempt} has other content than was committed before")
                committed[key] = event
                names.add(event.name)
                aside.discard(key)
            case "set aside":
                if key not in damaged:
                    wrong.append(f"{key} was set aside, and nobody had damaged it")
                aside.add(key)
            case "removed":
                wrong.append(f"{key} was committed and is gone")
                committed.pop(key, None)
            case "acknowledged":
                if key not in names:
                    wrong.append(f"{key} was said to be made, and nobody had committed it")
    return wrong
