"""The journal of a run: a file in the store, with which the UI's rows are made to agree.

<store>/runs/active/<flow run>.jsonl    a run under way, or one whose rows are not settled yet
        runs/ended/<flow run>.jsonl     one whose rows agree with it
        runs/active/<flow run>.json     how far its nodes are, written over and over (`progress`)

Prefect's rows pass through queues in the run's process and in its server, and are lost if either
dies. A line of the journal is written at once, and its first line names the run's process.
"""

import contextlib
import dataclasses
import datetime
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from infra.processes.identity import ProcessNote

Outcome = Literal["made", "reused", "failed", "not run"]
Ending = Literal["completed", "failed", "cancelled", "crashed"]


@dataclasses.dataclass(kw_only=True)
class Node:
    """State of one node of a run's graph.

    Attributes:
      name: name of the node, as people see it.
      outcome: outcome of the node; None if it has not ended.
      detail: text for people: the score, the reason of a failure.
      started, ended: times of its start and its end; None before.
      task_run_id: Prefect's id of its row; None if it has no row yet.
      reads: names of the nodes whose artifacts it reads.
      took: time of its work, without its wait for a place to run [s]; None if unknown.
    """

    name: str
    outcome: Outcome | None = None
    detail: str = ""
    started: datetime.datetime | None = None
    ended: datetime.datetime | None = None
    task_run_id: str | None = None
    reads: tuple[str, ...] = ()
    took: float | None = None

    @property
    def seconds(self) -> float:
        """Time from start to end [s]."""
        if self.started is None or self.ended is None:
            return 0.0
        return (self.ended - self.started).total_seconds()

    @property
    def summary(self) -> str:
        """How the node ended, in one line."""
        seconds = self.seconds if self.took is None else self.took
        took = f" in {seconds:.1f} s" if self.outcome == "made" else ""
        return f"{self.outcome}{took}{': ' if self.detail else ''}{self.detail}"


@dataclasses.dataclass(kw_only=True)
class RunRecord:
    """A run, as its journal records it.

    Attributes:
      flow_run_id: Prefect's id of it.
      process: process that ran it.
      nodes: its nodes by name, in the order in which they were planned or began.
      ending: outcome of the run; None if it is under way, or was killed.
      message: reason for that ending.
      study: name of the study; "" until it is planned.
    """

    flow_run_id: str
    process: ProcessNote
    nodes: dict[str, Node]
    ending: Ending | None = None
    message: str = ""
    study: str = ""


class Journal:
    """The journal of a run under way; safe to write to from several threads.

    Args:
      store: the store's folder on this machine.
      flow_run_id: id of the Prefect run; with "", no journal is written.
    """

    def __init__(self, store: Path, flow_run_id: str) -> None:
        self.flow_run_id = flow_run_id
        self.path = folder(store) / f"{flow_run_id}.jsonl"
        self._lock = threading.Lock()
        self._write(
            "run",
            flow_run_id=flow_run_id,
            process=dataclasses.asdict(ProcessNote.of_this_process()),
        )

    def plan(self, study: str, reads: Mapping[str, Sequence[str]]) -> None:
        """Notes every node of the run, so that a node that is never reached has a row, too.

        Args:
          study: name of the study.
          reads: node -> the nodes whose artifacts it reads.
        """
        self._write("plan", study=study, reads=reads)

    def started(self, name: str, task_run_id: str | None = None) -> None:
        """Notes that a node began, or began again, and the id of its row."""
        self._write("started", name=name, task_run_id=task_run_id)

    def ended(self, name: str, outcome: Outcome, detail: str = "") -> None:
        """Notes how a node ended; a re-used one may never have started."""
        self._write("ended", name=name, outcome=outcome, detail=detail)

    def reused(self, details: Mapping[str, str]) -> None:
        """Notes that nodes were re-used, all in one write: name -> detail."""
        self._write_all(
            "ended", [{"name": n, "outcome": "reused", "detail": d} for n, d in details.items()]
        )

    def close(self, ending: Ending, message: str = "") -> None:
        """Notes how the run ended; only the first call counts."""
        self._write("closed", ending=ending, message=message)

    def _write(self, what: str, **values: Any) -> None:
        self._write_all(what, [values])

    def _write_all(self, what: str, lines: Sequence[Mapping[str, Any]]) -> None:
        if not self.flow_run_id:
            return
        at = now().isoformat()
        text = "".join(json.dumps({"what": what, "at": at, **values}) + "\n" for values in lines)
        with self._lock, self.path.open("a") as file:
            file.write(text)


def now() -> datetime.datetime:
    """Returns the time by this machine's clock [UTC]."""
    return datetime.datetime.now(datetime.UTC)


def folder(store: Path) -> Path:
    """Returns the folder of the journals that are not settled yet."""
    path = store / "runs" / "active"
    path.mkdir(parents=True, exist_ok=True)
    return path


def has_unsettled(store: Path) -> bool:
    """Returns whether a store has a journal of a run whose process is gone, and rows may hang."""
    for path in folder(store).glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # Another process has settled it.
            record = read(path)
            if record is None or not record.process.is_alive():
                return True
    return False


def read(path: Path) -> RunRecord | None:
    """Reads a journal; returns None if not even its first line was written."""
    return JournalReader(path).read()


class JournalReader:
    """Reads a journal that grows: every call reads only the lines that are new.

    Args:
      path: path of the journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._record: RunRecord | None = None

    def read(self) -> RunRecord | None:
        """Returns the run as the journal has it now; None if not even its first line was written.

        Raises:
          FileNotFoundError: if the journal was moved, see `settled`.
        """
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        # What follows the last line break is a line under way, or half of one that a killed writer
        # left: it is read once it is whole.
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text_line in whole.splitlines():
            try:
                line = json.loads(text_line)
            except ValueError:
                continue  # Half of a line, with the next one behind it.
            self._add(line)
        return self._record

    def _add(self, line: Mapping[str, Any]) -> None:
        at = datetime.datetime.fromisoformat(line["at"])
        if line["what"] == "run":
            process = ProcessNote.read(line["process"])
            self._record = RunRecord(flow_run_id=line["flow_run_id"], process=process, nodes={})
        if self._record is None:
            return
        record, nodes = self._record, self._record.nodes
        match line["what"]:
            case "plan":
                record.study = line.get("study", "")
                # A journal of 0.2.0 has names only.
                planned = line.get("reads") or dict.fromkeys(line.get("names", ()), ())
                record.nodes |= {n: Node(name=n, reads=tuple(r)) for n, r in planned.items()}
            case "started" | "submitted":  # "submitted": in older journals.
                node = nodes.setdefault(line["name"], Node(name=line["name"]))
                node.task_run_id = line.get("task_run_id") or node.task_run_id
                node.started = node.started or at
                node.outcome, node.ended = None, None
            case "ended":
                node = nodes.setdefault(line["name"], Node(name=line["name"]))
                node.outcome, node.detail, node.ended = line["outcome"], line["detail"], at
            case "closed" if record.ending is None:
                record.ending, record.message = line["ending"], line["message"]


def settled(path: Path) -> None:
    """Moves a journal to the folder of settled ones, if no other process has moved it."""
    ended = path.parents[1] / "ended"
    ended.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(ended / path.name)
    path.with_suffix(".json").unlink(missing_ok=True)  # Nothing of it runs any more.
