"""What trackers are told of a training, and of a study: one run of theirs each.

Like OpenLineage events, it is a view of manifests and records: the same artifact gives the same
run. An artifact's run has the artifact's key as its id, so that a stage of several studies is one.
"""

import csv
import dataclasses
import datetime
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flows.lookup.config_leaves import config_leaves
from flows.lookup.runs import RunOutcome, run_outcome
from flows.pages.curves import log_of
from flows.report.json_file import read_json
from infra.store.digest import value_sha256
from infra.store.records import PRUNED
from infra.store.redact import redact
from infra.store.store import Artifact, Store
from model.files import METRICS, WATCH

_NO_IDENTITY = ("compute", "keep", "statements", "track")
"""Keys of a config that may differ between two runs of the same study."""


class Point(NamedTuple):
    """What a training logged at a step.

    Attributes:
      step: updates done.
      at: time of the step [Unix seconds].
      values: name -> value.
    """

    step: int
    at: float
    values: Mapping[str, float]


class Table(NamedTuple):
    """A table; every row has as many values as there are columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_csv(self) -> str:
        """Returns the table as CSV."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run as trackers show it; nothing in it is secret.

    Attributes:
      id: its id, the same whoever sends it: letters, digits and dashes.
      name: its name for people.
      type: "stage", any training, which never changes; or "study", which a later run may complete.
      began: time at which it began [Unix seconds].
      ended: time at which it ended [Unix seconds].
      outcome: how it ended.
      config: dotted key -> plain value.
      facts: name -> text by which it can be found.
      page: address of the run's page in Prefect's UI [URI]; "" if there is none.
      curves: what it logged, by step.
      scores: name -> number.
      tables: name -> table.
    """

    id: str
    name: str
    type: str
    began: float
    ended: float
    outcome: RunOutcome = "complete"
    config: Mapping[str, Any]
    facts: Mapping[str, str]
    page: str = ""
    curves: Sequence[Point] = ()
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)

    @property
    def note(self) -> str:
        """A line of Markdown with the link back."""
        return f"[The run's page]({self.page}) in Prefect's UI." if self.page else ""


def tracked_stage(artifact: Artifact, ui: str) -> TrackedRun:
    """Returns the run of a training, from its manifest and what it logged.

    Args:
      artifact: a checkpoint.
      ui: address of Prefect's UI [URI].
    """
    manifest = artifact.manifest
    began = datetime.datetime.fromisoformat(manifest.started).timestamp()
    environment = manifest.environment
    labels = {k: v for k, v in environment.get("labels", {}).items() if v not in (None, "")}
    facts = {
        "key": manifest.key,
        "code": manifest.code,
        "commit": environment.get("git", {}).get("commit", ""),
        **labels,
    }
    curves = [*_curves(artifact, began)]
    logged = {name for point in curves for name in point.values}
    return TrackedRun(
        id=manifest.key,
        name=manifest.name,
        type="stage",
        began=began,
        ended=began + manifest.seconds,
        config={**config_leaves(redact(manifest.config)), "seed": manifest.seed},
        facts=_texts(facts),
        page=_run_page(ui, environment.get("prefect", {}).get("flow_run_id", "")),
        curves=curves,
        # The last loss is a count, too; its curve has it.
        scores={k: v for k, v in _numbers(manifest.counts).items() if k not in logged},
    )


def tracked_study(
    store: Store, record: Mapping[str, Any], ui: str, stages: Mapping[str, str]
) -> TrackedRun:
    """Returns the run of a study, from its record: its scores with their intervals, and its table.

    Args:
      store: the store of the record.
      record: the record of a run that has ended.
      ui: address of Prefect's UI [URI].
      stages: key of each of its trainings -> the tracker's name of their run.
    """
    config = {k: v for k, v in redact(record["config"]).items() if k not in _NO_IDENTITY}
    names = {key: store.get_cached(key).manifest.name for key in stages}
    tables = {
        "stages": Table(
            ("stage", "key", "run"), [(names[key], key, run) for key, run in stages.items()]
        )
    }
    scores: dict[str, float] = {}
    if record["results"]:
        results = store.get(record["results"])
        head, *rows = csv.reader(
            io.StringIO((results.path / "results.csv").read_text(encoding="utf-8"))
        )
        tables["results"] = Table(head, rows)
        scores = dict(_scores((results.path / "results.json").read_text(encoding="utf-8")))
    return TrackedRun(
        id=f"study-{value_sha256(config)[:32]}",
        name=record["name"],
        type="study",
        began=datetime.datetime.fromisoformat(record["began"]).timestamp(),
        ended=datetime.datetime.fromisoformat(record["finished"]).timestamp(),
        outcome=run_outcome(record),
        config=config_leaves(config),
        facts=_texts(
            {
                "run": record["run"],
                "results": record["results"] or "",
                "outcome": run_outcome(record),
            }
        ),
        page=_run_page(ui, record["flow_run_id"]),
        scores=scores,
        tables=tables,
    )


def trainings_of(store: Store, record: Mapping[str, Any]) -> Iterator[Artifact]:
    """Yields the artifacts of a run that are trainings, in the order in which they began."""
    keys = [*record["artifacts"], *record.get(PRUNED, ())]
    found = (store.find(key) or store.find_pruned(key) for key in keys)
    artifacts = [artifact for artifact in found if artifact and is_training(artifact)]
    yield from sorted(artifacts, key=lambda each: each.manifest.started)


def is_training(artifact: Artifact) -> bool:
    """Returns whether an artifact was trained, and logged its training."""
    return METRICS in artifact.manifest.files


def _curves(artifact: Artifact, began: float) -> Iterator[Point]:
    # By step: what the training logged, and what was measured on held-out data at that step.
    points: dict[int, tuple[float, dict[str, float]]] = {}
    log = log_of(artifact)
    for row in log(METRICS):
        values = {k: v for k, v in row.items() if k not in ("step", "seconds", "jumps")}
        points[row["step"]] = began + row.get("seconds", 0.0), _numbers(config_leaves(values))
    for row in log(WATCH):
        at, values = points.setdefault(row["step"], (began, {}))
        subject = "/".join(str(row[name]) for name in ("task", "budget") if name in row)
        values |= {f"{name}/{subject}": row[name] for name in ("loss", "score") if name in row}
    for step, (at, values) in sorted(points.items()):
        yield Point(step, at, values)


def _scores(report: str) -> Iterator[tuple[str, float]]:
    """Yields chartqa/parcel/64/mean, low, high and retention of each cell and mean of a report."""
    read = read_json(report)
    cells = [(section.benchmark, cell) for section in read.sections for cell in section.cells]
    means = [
        ("@".join(str(part) for part in (m.name, m.resolution, m.backbone) if part), m)
        for m in read.aggregates
    ]
    for row, entry in [*cells, *means]:
        for name in ("mean", "low", "high", "retention"):
            value = getattr(entry, name)
            if value is not None:
                yield f"{row}/{entry.method}/{entry.budget}/{name}", value


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(redact(value)) for name, value in facts.items() if value != ""}


def _run_page(ui: str, flow_run_id: str) -> str:
    return f"{ui}/runs/flow-run/{flow_run_id}" if ui and flow_run_id else ""
