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
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from infra.credentials import redact_text
from infra.processes.identity import NOBODY, ProcessIdentity
from infra.store.pins import living_runs
from infra.store.store import Store
from infra.typed_json import parse_json, typed

NodeOutcome = Literal["made", "reused", "failed", "not run"]
Ending = Literal["completed", "failed", "cancelled", "crashed"]

_FIELDS: Mapping[str, Any] = {
    "what": str,
    "at": str,
    "flow_run_id": str,
    "process": dict,
    "study": str,
    "reads": dict[str, list[str]],
    "names": list[str],
    "name": str,
    "task_run_id": str | None,
    "outcome": NodeOutcome,
    "detail": str,
    "ending": Ending,
    "message": str,
}
"""Field of a line -> its type. A line of a later version may have others."""


@dataclasses.dataclass(kw_only=True)
class JournalNode:
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
    outcome: NodeOutcome | None = None
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
      process: process that ran it; `NOBODY` if the line that names it is damaged.
      nodes: its nodes by name, in the order in which they were planned or began.
      ending: outcome of the run; None if it is under way, or was killed.
      message: reason for that ending.
      study: name of the study; "" until it is planned.
      damaged: number and fault of each line that cannot be read, which counts as not written.
    """

    flow_run_id: str
    process: ProcessIdentity
    nodes: dict[str, JournalNode]
    ending: Ending | None = None
    message: str = ""
    study: str = ""
    damaged: list[str] = dataclasses.field(default_factory=list)


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
        self._write_journal_line(
            "run",
            flow_run_id=flow_run_id,
            process=dataclasses.asdict(ProcessIdentity.of_this_process()),
        )

    def plan(self, study: str, reads: Mapping[str, Sequence[str]]) -> None:
        """Notes every node of the run, so that a node that is never reached has a row, too.

        Args:
          study: name of the study.
          reads: node -> the nodes whose artifacts it reads.
        """
        self._write_journal_line("plan", study=study, reads=reads)

    def started(self, name: str, task_run_id: str | None = None) -> None:
        """Notes that a node began, or began again, and the id of its row."""
        self._write_journal_line("started", name=name, task_run_id=task_run_id)

    def ended(self, name: str, outcome: NodeOutcome, detail: str = "") -> None:
        """Notes how a node ended; a reused one may never have started."""
        self._write_journal_line("ended", name=name, outcome=outcome, detail=redact_text(detail))

    def reused(self, details: Mapping[str, str]) -> None:
        """Notes that nodes were reused, all in one write: name -> detail."""
        self._write_all(
            "ended",
            [
                {"name": n, "outcome": "reused", "detail": redact_text(d)}
                for n, d in details.items()
            ],
        )

    def close(self, ending: Ending, message: str = "") -> None:
        """Notes how the run ended; only the first call counts."""
        self._write_journal_line("closed", ending=ending, message=redact_text(message))

    def _write_journal_line(self, what: str, **values: Any) -> None:
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


def unsettled(store: Store) -> Iterator[tuple[Path, RunRecord | OSError | None]]:
    """Yields the journals that are not settled yet, each with the run that it records.

    None if not even a first line was written; the error if the file cannot be read.
    """
    for path in sorted(folder(store.state).glob("*.jsonl")):
        try:
            yield path, read_journal(path)
        except FileNotFoundError:  # Another process has settled it.
            pass
        except OSError as error:
            yield path, error


def is_over(record: RunRecord, store: Store) -> bool:
    """Returns whether the process of a run is gone.

    Of one that cannot be seen, on another machine or hidden, the run's lease tells: its pin, which
    it takes before its journal begins.
    """
    state = record.process.state
    return state == "ended" or (
        state == "unknown" and record.flow_run_id not in living_runs(store.volatile)
    )


def has_unsettled(store: Store) -> bool:
    """Returns whether a store has a journal of a run whose process is gone, and rows may hang."""
    return any(
        record is None or (isinstance(record, RunRecord) and is_over(record, store))
        for _, record in unsettled(store)
    )


def read_journal(path: Path) -> RunRecord | None:
    """Reads a journal; returns None if not even its first line was written."""
    return JournalReader(path).read()


class JournalReader:
    """Reads a journal that grows: every call reads only the lines that are new.

    Args:
      path: path of the journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._num_lines = 0
        self._record: RunRecord | None = None

    def read(self) -> RunRecord | None:
        """Returns the run as the journal has it now; None if not even its first line was written.

        A damaged line does not hide the others: it is named in the record.

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
            self._num_lines += 1
            if self._record is None:
                # Until the first line tells more: a journal has the name of its run.
                self._record = RunRecord(flow_run_id=self._path.stem, process=NOBODY, nodes={})
            try:
                self._add_journal_line(self._record, text_line)
            except (KeyError, TypeError, ValueError) as error:
                # A disk was full, or somebody edited it. Or half of a line of a killed writer,
                # with the next one behind it.
                reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
                self._record.damaged.append(f"line {self._num_lines}: {reason}")
        return self._record

    def _add_journal_line(self, record: RunRecord, text_line: bytes) -> None:
        """Adds a line to a record, which stays as it is if the line cannot be read.

        Raises:
          KeyError, TypeError, ValueError: if it cannot be read.
        """
        values = typed(dict, parse_json(text_line, "it"))
        line = {f: typed(hint, values[f], f) for f, hint in _FIELDS.items() if f in values}
        at = datetime.datetime.fromisoformat(line["at"])
        if at.tzinfo is None:
            raise ValueError(f"at must be a time with its zone, got {line['at']!r}.")
        if row := line.get("task_run_id"):
            uuid.UUID(row)
        nodes = record.nodes
        match line["what"]:
            case "run":
                process = ProcessIdentity.read(line["process"])
                record.flow_run_id, record.process = line["flow_run_id"], process
            case "plan":
                record.study = line.get("study", "")
                # A journal of 0.2.0 has names only.
                planned = line.get("reads") or dict.fromkeys(line.get("names", ()), ())
                record.nodes |= {n: JournalNode(name=n, reads=tuple(r)) for n, r in planned.items()}
            case "started" | "submitted":  # "submitted": in older journals.
                node = nodes.setdefault(line["name"], JournalNode(name=line["name"]))
                node.task_run_id = line.get("task_run_id") or node.task_run_id
                node.started = node.started or at
                node.outcome, node.ended = None, None
            case "ended":
                outcome, detail = line["outcome"], line["detail"]
                node = nodes.setdefault(line["name"], JournalNode(name=line["name"]))
                node.outcome, node.detail, node.ended = outcome, detail, at
            case "closed" if record.ending is None:
                record.ending, record.message = line["ending"], line["message"]


def settled(path: Path) -> None:
    """Moves a journal to the folder of settled ones, if no other process has moved it."""
    ended = path.parents[1] / "ended"
    ended.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(ended / path.name)
    for ending in (".json", ".partial"):  # Nothing of it runs any more.
        path.with_suffix(ending).unlink(missing_ok=True)
