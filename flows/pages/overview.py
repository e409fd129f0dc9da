"""What runs in a store, how runs ended, what comes next: for the start page and `parcel status`."""

import collections
import dataclasses
import datetime
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from flows.lookup.runs import RunOutcome, larger_run, record_name, run_outcome
from flows.report.durations import age_text
from infra.prefect import journal, progress
from infra.prefect.journal import JournalNode, JournalReader
from infra.prefect.progress import NodeProgress
from infra.prefect.server import service_errors
from infra.prefect.server_log import ServerErrors
from infra.store.lease import LeaseView
from infra.store.pins import list_pins, run_of_pin
from infra.store.records import RunRecords
from infra.store.store import Store, canonical_uri

DEFAULT_STORE = ".parcel"
"""Store of a command without --store."""

_UNTIL = re.compile(r"\S+ (?:run (?:.* )?--until[ =])?(prepare|train|transfer|evaluate)(?: |$)")
"""Matches a command that ends at a phase: `parcel run … --until train`, or `parcel train …`."""
_MAX_DIFFERENCES = 3
"""Most changes since the run before that are named; the others are counted."""
_MAX_VALUE = 40
"""Largest length of a value that is named [characters]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunningNode:
    """A node at work.

    Attributes:
      name: its name.
      seconds: time since it began, with any wait for a worker [s].
      progress: how far it is; None before its first progress.
      seconds_left: estimated time until it ends [s]; None if unknown.
    """

    name: str
    seconds: float
    progress: NodeProgress | None
    seconds_left: float | None

    @property
    def is_training(self) -> bool:
        """Whether what it makes is a training, which has a page while it goes on."""
        return bool(self.progress and self.progress.key.startswith("checkpoint-"))

    @property
    def count(self) -> str:
        """The units of its work, "540 of 900"; "" before the first is done."""
        if self.progress is None or not (self.progress.done and self.progress.total):
            return ""
        return f"{self.progress.done:,} of {self.progress.total:,}"

    @property
    def note(self) -> str:
        """What it says of itself: the loss, or that it compiles or waits."""
        if self.progress is None:
            return "waits for a worker or begins"
        return self.progress.note or ("" if self.count else "begins")

    @property
    def share(self) -> float:
        """Share of the work that is done [0-1]."""
        return self.progress.done / max(self.progress.total, 1) if self.progress else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunUnderWay:
    """A run that goes on.

    Attributes:
      study: name of its study; "" until it is planned, or if it runs on another machine.
      flow_run_id: its id.
      pin: its sign of life, with its process.
      keys: keys of the artifacts that it relies on.
      num_nodes: number of its nodes; 0 if it runs on another machine.
      outcomes: how many nodes ended, by outcome.
      running: the nodes at work.
      waiting: reason -> names of the nodes that wait for it.
    """

    study: str
    flow_run_id: str
    pin: LeaseView
    keys: Set[str] = frozenset()
    num_nodes: int = 0
    outcomes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    running: Sequence[RunningNode] = ()
    waiting: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name for people: its study, and the end of its id."""
        # Prefect's ids of the runs of one schedule all begin alike.
        return f"{self.study or 'run'} {self.flow_run_id.rpartition('-')[2]}"

    @property
    def run(self) -> str:
        """Full name of its record."""
        return record_name(self.study, self.flow_run_id)

    @property
    def num_ended(self) -> int:
        """Number of nodes that ended."""
        return sum(self.outcomes.values())

    @property
    def devices(self) -> Mapping[str, int]:
        """What its nodes compute on, in words -> how many of them do."""
        nodes = (node.progress.devices for node in self.running if node.progress)
        return collections.Counter(filter(None, nodes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run that ended.

    Attributes:
      run: full name of its record.
      record: its record.
      outcome: how it ended.
      ended: time of that.
      continued: whether a later run of the study ended, or is under way.
      command: command that continues it; "" if nothing is left to do.
    """

    run: str
    record: Mapping[str, Any]
    outcome: RunOutcome
    ended: datetime.datetime
    continued: bool
    command: str

    @property
    def study(self) -> str:
        """Name of its study."""
        return self.record["name"]

    @property
    def holes(self) -> Sequence[str]:
        """Names of the steps that were not run."""
        return self.record.get("holes", ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study: its newest run, and how many there are.

    Attributes:
      run: full name of the newest run with a table; "" if none has one.
      newest: record of the newest run.
      outcome: how that run ended, or that it goes on.
      num_runs: number of the study's runs.
      score: the headline of the newest table; "" if unknown.
      larger: full name of a run with a larger table, and what it has more of; None if there is
        none.
    """

    name: str
    run: str
    newest: Mapping[str, Any]
    outcome: RunOutcome
    num_runs: int
    score: str
    larger: tuple[str, str] | None = None

    @property
    def seeds(self) -> str:
        """Its numbers of seeds and pretrainings."""
        config = self.newest["config"]
        pretrainings = config.get("num_pretrain_seeds") or 1
        of_each = f"{pretrainings} × " if pretrainings > 1 else ""
        return f"{of_each}{config['num_seeds']}" if "num_seeds" in config else ""

    @property
    def differences(self) -> str:
        """What differs from the run before; "" if nothing does."""
        return differences_text(self.newest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Firing:
    """A schedule, with what it would run next.

    Attributes:
      name: its name, as `parcel schedule` takes it.
      study: name of the study.
      deployment: the deployment that it starts, "sweep/sweep".
      deployment_id: Prefect's id of that.
      rule: times at which it fires, "0 20 * * * Europe/Berlin".
      off: why it does not fire, or never will, with the cure; "" if it does.
      next: when it fires next, in its own time zone, "2026-11-27 20:00 Europe/Berlin"; "" if it
        is off.
      past: lines on its firings of two days that were late, missed or skipped.
      would_run: lines on its settings, and on what it would run if it fired now.
    """

    name: str
    study: str
    deployment: str
    deployment_id: str
    rule: str
    off: str = ""
    next: str = ""
    past: Sequence[str] = ()
    would_run: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What a Prefect server knows of a store's studies.

    Attributes:
      firings: its schedules, by name.
      can_start: whether it starts a run that is asked for: `parcel serve` runs.
      age: time since this was read, where it is being read anew; 0 if it is as it stands now [s].
    """

    firings: Sequence[Firing]
    can_start: bool
    age: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overview:
    """The facts of a store at one moment.

    Attributes:
      store: the store [URI].
      now: the moment.
      running: runs under way, the newest first.
      lost: runs whose process is gone and whose record does not say how they ended, with their
        sign of life.
      ended: runs that ended, the newest first.
      studies: the studies, that of the newest run first.
      unreadable: a line on each record of a run that is left out, since it cannot be read.
      server: what the server knows; None if there is none, or it has not answered yet.
      server_errors: errors of the store's server, if one runs here; None if there are none.
    """

    store: str
    now: datetime.datetime
    running: Sequence[RunUnderWay]
    lost: Sequence[RunUnderWay]
    ended: Sequence[EndedRun]
    studies: Sequence[StudySummary]
    unreadable: Sequence[str]
    server: ServerFacts | None
    server_errors: ServerErrors | None = None

    @property
    def since_yesterday(self) -> Sequence[EndedRun]:
        """The runs that ended since yesterday began, by this machine's clock."""
        day = self.now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        since = day - datetime.timedelta(days=1)
        return [run for run in self.ended if run.ended >= since]


class OverviewReader:
    """Reads the facts of a store; every call reads only what changed. Safe to share by threads.

    Args:
      store: the store.
      server: function that returns what its server knows.
    """

    def __init__(
        self, store: Store, server: Callable[[], ServerFacts | None] = lambda: None
    ) -> None:
        self._store, self._server = store, server
        self.records = RunRecords(store.files)
        self._journals: dict[str, JournalReader] = {}
        self._lock = threading.Lock()

    def read(self) -> Overview:
        """Returns the facts as they are now."""
        records = self.records.read()
        # A run that relies on many artifacts has several pins, each with a few hundred keys.
        pins: dict[str, list[LeaseView]] = collections.defaultdict(list)
        for pin in list_pins(self._store.volatile):
            pins[run_of_pin(pin)].append(pin)
        with self._lock:
            runs = [
                (any(pin.is_live() for pin in own), self._run_under_way(run, own))
                for run, own in pins.items()
            ]
            self._journals = {run: j for run, j in self._journals.items() if run in pins}
        runs.sort(key=lambda run: run[1].pin.lease.since, reverse=True)
        running = [run for is_live, run in runs if is_live]
        # The pins of a run that was ended by a signal stay until they are collected.
        ended = {r.get("flow_run_id") for r in records.values() if run_outcome(r) != "running"}
        return Overview(
            store=self._store.uri,
            now=datetime.datetime.now(datetime.UTC),
            running=running,
            lost=[run for is_live, run in runs if not is_live and run.flow_run_id not in ended],
            ended=_ended_runs(records, self._store.uri, {run.study for run in running}),
            studies=_study_summaries(records),
            unreadable=self.records.unreadable,
            server=self._server(),
            server_errors=service_errors(self._store.state),
        )

    def _run_under_way(self, run: str, pins: Sequence[LeaseView]) -> RunUnderWay:
        # Pins are in the store, for all machines; a journal is on the disk of its own.
        state = self._store.state
        pin = max(pins, key=lambda pin: pin.renewed)
        keys = frozenset(key for pin in pins for key in pin.lease.keys)
        path = journal.folder(state) / f"{run}.jsonl"
        reader = self._journals.setdefault(run, JournalReader(path))
        try:
            record = reader.read()
        except FileNotFoundError:
            record = None
        if record is None:
            return RunUnderWay(study="", flow_run_id=run, pin=pin, keys=keys)
        nodes, now = record.nodes, datetime.datetime.now(datetime.UTC)
        at_work = progress.read_progress(state, run)
        return RunUnderWay(
            study=record.study,
            flow_run_id=run,
            pin=pin,
            keys=keys,
            num_nodes=len(nodes),
            outcomes=collections.Counter(n.outcome for n in nodes.values() if n.outcome),
            running=[
                _running_node(node, at_work.get(node.name), now)
                for node in nodes.values()
                if node.started and not node.outcome
            ],
            waiting=_waiting_nodes(nodes),
        )


def _running_node(
    node: JournalNode, progress: NodeProgress | None, now: datetime.datetime
) -> RunningNode:
    assert node.started is not None
    left = None
    if progress is not None and progress.seconds_left is not None:
        left = max(progress.seconds_left - (now.timestamp() - progress.written), 0.0)
    seconds = max((now - node.started).total_seconds(), 0.0)
    return RunningNode(name=node.name, seconds=seconds, progress=progress, seconds_left=left)


def _waiting_nodes(nodes: Mapping[str, JournalNode]) -> Mapping[str, Sequence[str]]:
    """Returns reason -> the nodes that wait for it; a failed input is a reason, too."""
    nodes_by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for node in nodes.values():
        if node.started or node.outcome:
            continue
        # Of several reasons a failed input counts first: waiting for the others would not help.
        outcomes = {name: nodes[name].outcome for name in node.reads if name in nodes}
        open_ones = [name for name, outcome in outcomes.items() if outcome is None]
        if failed := [name for name, out in outcomes.items() if out in ("failed", "not run")]:
            # One that was not run says why itself, such as "since stage1 vanilla failed".
            cause = nodes[failed[0]]
            why = cause.detail if cause.outcome == "not run" else f"since {cause.name} failed"
            nodes_by_reason[f"cannot run, {why}"].append(node.name)
        elif open_ones:
            nodes_by_reason[f"waiting for {', '.join(open_ones[:3])}"].append(node.name)
        else:
            nodes_by_reason["ready, waiting for a worker"].append(node.name)
    return nodes_by_reason


def _ended_runs(
    records: Mapping[str, Mapping[str, Any]], store: str, running: set[str]
) -> list[EndedRun]:
    """Returns the runs that ended, the newest first."""
    ended = [(run, record) for run, record in records.items() if record["finished"]]
    ended.sort(key=lambda run: run[1]["finished"], reverse=True)
    seen, runs = set(running), []
    for run, record in ended:
        runs.append(
            EndedRun(
                run=run,
                record=record,
                outcome=run_outcome(record),
                ended=datetime.datetime.fromisoformat(record["finished"]).astimezone(),
                continued=record["name"] in seen,
                command=continuing_command(record, store),
            )
        )
        seen.add(record["name"])
    return runs


def _study_summaries(records: Mapping[str, Mapping[str, Any]]) -> list[StudySummary]:
    by_name: dict[str, list[tuple[str, Mapping[str, Any]]]] = collections.defaultdict(list)
    for run, record in records.items():
        by_name[record["name"]].append((run, record))
    studies = []
    for name, runs in by_name.items():
        runs.sort(key=lambda run: when(run[1]), reverse=True)
        tables = [(run, record) for run, record in runs if record["results"]]
        run, with_table = tables[0] if tables else ("", {})
        studies.append(
            StudySummary(
                name=name,
                run=run,
                newest=runs[0][1],
                outcome=run_outcome(runs[0][1]),
                num_runs=len(runs),
                score=str(with_table.get("headline", {}).get("score", "")),
                larger=larger_run([record for _, record in tables]) if tables else None,
            )
        )
    return sorted(studies, key=lambda study: when(study.newest), reverse=True)


def server_errors_text(errors: ServerErrors) -> str:
    """Returns the errors of a server in one line: how many, the newest, and the file with all."""
    what = "1 error" if errors.count == 1 else f"{errors.count:,} errors"
    return (
        f"{what} since {errors.since:%Y-%m-%d %H:%M} UTC, the newest {age_text(errors.age)} ago: "
        f"{errors.message} (all in {errors.file})"
    )


def when(record: Mapping[str, Any]) -> str:
    """Returns when a run ended, or else began; runs are listed by it."""
    return record["finished"] or record.get("began", "")


def run_seconds(record: Mapping[str, Any]) -> float | None:
    """Returns how long a run took [s]; None if it goes on, or its record does not say."""
    if not (record["finished"] and record.get("began")):
        return None
    began, ended = (datetime.datetime.fromisoformat(record[at]) for at in ("began", "finished"))
    return (ended - began).total_seconds()


def differences_text(record: Mapping[str, Any]) -> str:
    """Returns the changes of a run's config since the run before it, in one line."""
    differences = record.get("differs") or {}
    named = [
        f"{path}: {_config_value_text(was)} → {_config_value_text(now)}"
        for path, (was, now) in list(differences.items())[:_MAX_DIFFERENCES]
    ]
    rest = len(differences) - len(named)
    return "; ".join(named) + (f"; and {rest} more" if rest else "")


def _config_value_text(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def continuing_command(record: Mapping[str, Any], store: str) -> str:
    """Returns the command that continues a run; "" if nothing is left to do.

    Args:
      record: the run's record.
      store: its store [URI].
    """
    if run_outcome(record) in ("complete", "running"):
        return ""
    form = continuing_form(record)
    parts = ["parcel", "run", record["name"], *(["--failed"] if form["failed"] else [])]
    if form["until"] != "report":
        parts += ["--until", form["until"]]
    if store != canonical_uri(DEFAULT_STORE):
        parts += ["--store", store]
    return shlex.join(parts)


def continuing_form(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the form `study/study` that continue a run.

    Args:
      record: the run's record.
    """
    # A command of a phase is repeated up to it; what a form or a sweep began goes on as a run.
    until = _UNTIL.match(record.get("given", ""))
    failed = run_outcome(record) in ("failed", "with holes")
    is_retry = failed and bool(record["failed"] or record.get("given_up"))
    return {"study": record["name"], "until": until[1] if until else "report", "failed": is_retry}
