"""Counts what a store already has of a study's data, and estimates what is still to prepare."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flows.steps.kind import Step
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.lookup import device_seconds
from flows.study.config import StudyConfig
from flows.study.explain import Explanation
from flows.study.given import raw_files
from flows.study.graph import datasets_of, graph_of
from flows.study.load import ConfigError
from flows.study.reading import parts_of
from flows.study.sampled import Kept, Samples, reason_against
from infra.store.digest import canonical_json
from infra.store.redact import redact
from infra.store.store import Store

_HOUR = 3600.0
_NAMED = 3
"""Datasets that a line names; the others are counted."""
_LEAST = 0.0001
"""Smaller numbers are written as "<0.0001": they would need an exponent."""
_AS_IT_IS = ("reused", "accepted")
"""Verdicts on what a run takes as it is."""

_CURE = "parcel plan --sample 200 measures it"

Range = tuple[float, float]
"""From and to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToPrepare:
    """A dataset that is not prepared, and what is known of preparing it.

    Attributes:
      name: of the step that prepares it.
      measured: where this is known from, for people; "" where nothing is known.
      cpu: model of the processor that a sample was measured on; "" without one.
      inputs: from and to; None where not known.
      records: from and to; None where not known.
      rejected: least share of its inputs that becomes no records, by a sample; 0 without one.
      num_bytes: that its files will have, from and to; None where not known [bytes].
      core_hours: of processors, from and to; None where not known.
      hours: of the machine that will prepare it, from and to: with all its workers busy all the
        time, or as long as a dataset of the same files took; None where not known.
      workers: threads that its config gives it; None where a runner has its own workers.
    """

    name: str
    measured: str = ""
    cpu: str = ""
    inputs: Range | None = None
    records: Range | None = None
    rejected: float = 0.0
    num_bytes: Range | None = None
    core_hours: Range | None = None
    hours: Range | None = None
    workers: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """What is known of a study's data.

    Attributes:
      records: dataset -> number of its records, of those that are prepared.
      missing: datasets that are not prepared.
      lines: on hours of preparing, requests for reading and bytes in the store, for people.
    """

    records: dict[str, int]
    missing: tuple[ToPrepare, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def expected(self) -> dict[str, float]:
        """Name of a missing dataset's step -> bytes that it will leave, where they are known."""
        return {row.name: sum(row.num_bytes) / 2 for row in self.missing if row.num_bytes}


def prepared(
    config: StudyConfig,
    store: Store,
    *,
    count: int | None = None,
    on_sample: Callable[[str], None] = lambda name: None,
) -> Prepared:
    """Looks a study's data up for a plan; finds little where its files are not here.

    Args:
      config: the study.
      store: where its datasets would be.
      count: inputs that are prepared of each missing dataset, to measure it, unless as many were
        before; None reads no data.
      on_sample: called with the name of a dataset's step before it is measured.

    Raises:
      ConfigError: if a sample is asked for, and raw data are not here.
    """
    try:
        graph = graph_of(config, known=raw_files(store))
    except ConfigError as error:
        if count is not None:
            raise
        return Prepared(records={}, lines=(f"storage and reading are not known: {error}",))
    explanation = Explanation(store.at_once(), graph)
    found = prepared_of(config, store, explanation, count=count, on_sample=on_sample)
    told = explanation.told_of_store(config.keep, found.expected)
    return dataclasses.replace(found, lines=(*found.lines, *told))


def prepared_of(
    config: StudyConfig,
    store: Store,
    explanation: Explanation,
    *,
    count: int | None = None,
    on_sample: Callable[[str], None] = lambda name: None,
) -> Prepared:
    """Looks up the data of a study whose steps are judged; see `prepared`."""
    samples, unknown = Samples(store), dict[str, list[str]]()
    missing, rejecting = [], []
    for step in explanation.graph.steps:
        if step.kind != "dataset" or _is_there(explanation, step):
            continue
        kept, reason = samples.find(step), reason_against(step, explanation)
        if count is not None and not reason and (kept is None or kept.asked < count):
            on_sample(step.name)
            kept, reason = samples.measure(step, explanation, count)
        row = _of_sample(step, kept) if kept else _of_others(step, explanation, store)
        missing.append(row)
        if row.rejected > step.config.prepare.max_reject_rate:
            rejecting.append(
                f"{row.name} would fail: by its {row.measured} at least {row.rejected:.0%} of its "
                f"inputs are rejected, max_reject_rate is {step.config.prepare.max_reject_rate:.0%}"
            )
        if not row.measured:
            unknown.setdefault(reason or _CURE, []).append(row.name)
    records = records_of(config, explanation)
    lines = (*_preparing(explanation, records), *_missing(missing, unknown), *rejecting)
    return Prepared(records=records, missing=tuple(missing), lines=lines)


def _of_sample(step: Step, kept: Kept) -> ToPrepare:
    found, local = kept.sample, _workers(step.config)
    low, high = found.core_s
    return ToPrepare(
        name=step.name,
        measured=f"sample of {found.num_sampled:,}",
        cpu=kept.cpu,
        inputs=found.num_inputs,
        records=found.num_records,
        # With those that cannot even be listed, of which no sample is drawn.
        rejected=max(1 - found.num_records.high / max(found.num_inputs.low, 1.0), 0.0),
        num_bytes=found.num_bytes,
        core_hours=(low / _HOUR, high / _HOUR),
        hours=(low / _HOUR / local, high / _HOUR / local) if local else None,
        workers=local,
    )


def _of_others(step: Step, explanation: Explanation, store: Store) -> ToPrepare:
    """Returns the cost of the newest dataset of the same inputs, if there is any."""
    wanted, alike = _inputs_of(_plain(step.config)), []
    raw = explanation.steps[step.inputs["raw"]]
    content = raw.artifact.manifest.content if raw.artifact and raw.state in _AS_IT_IS else None
    for artifact in store.artifacts("dataset"):
        counts = artifact.manifest.counts
        # Shards that were taken over cost nothing: such a dataset tells of no other.
        whole = "inputs" in counts and "reused_shards" not in counts
        same = content is not None and artifact.manifest.inputs["raw"].content == content
        if whole and same and _inputs_of(artifact.manifest.config) == wanted:
            alike.append(artifact)
    if not alike:
        return ToPrepare(name=step.name, workers=_workers(step.config))
    newest = max(alike, key=lambda artifact: artifact.manifest.started)
    counts, hours = newest.manifest.counts, device_seconds(newest) / _HOUR
    inputs, records = float(counts["inputs"]), float(counts["records"])
    return ToPrepare(
        name=step.name,
        measured=f"as {newest.key[:16]} took",
        inputs=(inputs, inputs),
        records=(records, records),
        hours=(hours, hours),
        workers=_workers(step.config),
    )


def _inputs_of(config: Any) -> tuple[Any, ...]:
    """Returns the part of a dataset's config, as plain values, that says what is read."""
    names = ("reader", "path", "split", "features")
    return *(config[name] for name in names), config["prepare"].get("limit")


def _plain(config: Any) -> Any:
    """Returns a config as manifests have it."""
    return redact(json.loads(canonical_json(config)))


def _workers(spec: DatasetSpec) -> int | None:
    """Returns the threads that prepare a dataset here; None where workers are elsewhere."""
    apart = any("environment_type" in option for option in spec.prepare.runner_options)
    is_local = spec.prepare.runner == "FnApiRunner" and not apart
    return spec.prepare.num_workers if is_local else None


def _is_there(explanation: Explanation, step: Step) -> bool:
    """Returns whether a dataset is prepared, and need not be again."""
    return explanation.steps[step].state in _AS_IT_IS


def records_of(config: StudyConfig, explanation: Explanation) -> dict[str, int]:
    """Returns dataset -> number of its records, of those that are prepared."""
    made = [
        (step.config, verdict.artifact)
        for step, verdict in explanation.steps.items()
        if verdict.artifact and _is_there(explanation, step)
    ]
    return {
        name: sum(part.num_records for part in parts_of(artifact).values())
        for view in config.resolutions
        for name, spec in datasets_of(view).items()
        for found, artifact in made
        if found == spec
    }


def _preparing(explanation: Explanation, records: dict[str, int]) -> Iterator[str]:
    datasets = [step for step in explanation.graph.steps if step.kind == "dataset"]
    there = [
        artifact
        for step in datasets
        if (artifact := explanation.steps[step].artifact) and _is_there(explanation, step)
    ]
    told = f"data: {len(there)} of {len(datasets)} datasets are prepared"
    if not there:
        yield told
        return
    hours = sum(map(device_seconds, there)) / _HOUR
    total = sum(records.values())
    yield f"{told}, {total:,} records in {hours:.2g} hours of a machine"


def _missing(rows: Sequence[ToPrepare], unknown: dict[str, list[str]]) -> Iterator[str]:
    """Yields a line on the datasets that were measured, and one per reason on the others."""
    measured = [row for row in rows if row.core_hours is not None]
    if measured:
        told = _added([row.core_hours for row in measured])
        cpus = " and ".join(sorted({row.cpu for row in measured if row.cpu}))
        yield (
            f"preparing the {len(measured)} that were sampled takes {told} core-hours of "
            f"{cpus or 'this machine'}"
        )
    for reason, names in unknown.items():
        named = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        yield f"what preparing {len(names)} takes is not known ({named}): {reason}"


def _added(ranges: Sequence[Range | None]) -> str:
    known = [each for each in ranges if each is not None]
    return ranged([sum(ends) for ends in zip(*known, strict=True)])


def ranged(ends: Sequence[float]) -> str:
    """Returns a range with three digits that count, as "1,230-1,410"; one number if both agree."""
    first, last = map(_figure, ends)
    return first if first == last else f"{first}-{last}"


def _figure(value: float) -> str:
    if 0 < value < _LEAST:
        return f"<{_LEAST:g}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
