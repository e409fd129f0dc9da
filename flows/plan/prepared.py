"""Counts the datasets of a study that a store already has, and estimates preparing the others."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flows.graph.explain import Explanation, explain_study
from flows.graph.reading import dataset_parts
from flows.plan.saved_estimates import SavedEstimate, SavedEstimates, why_not_sampled
from flows.steps.kind import Step
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.registry import full_config
from flows.steps.step_lookup import device_seconds
from flows.study.study import StudyConfig
from infra.errors import ConfigError
from infra.store.digest import canonical_json
from infra.store.redact import redact
from infra.store.store import Store

_HOUR = 3600.0
_MAX_NAMES = 3
"""Most datasets named in one line; the others are only counted."""
_LEAST = 0.0001
"""Numbers below this one are written "<0.0001", since they would need an exponent."""

_CURE = "parcel plan --sample 200 measures it"

Range = tuple[float, float]
"""Lower and upper end of an estimate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MissingDataset:
    """A dataset that is not prepared yet, with the estimated cost of preparing it.

    Attributes:
      name: name of the step that prepares it.
      measured: source of the estimates, for people to read; "" where there are none.
      cpu: model of the processor that the sample was measured on; "" without a sample.
      inputs: range of the number of inputs; None where unknown.
      records: range of the number of records; None where unknown.
      rejected: lower bound on the share of inputs that become no record, by the sample; 0 without
        a sample.
      num_bytes: range of the size of its files; None where unknown [bytes].
      core_hours: range of the processor time; None where unknown.
      hours: range of the wall time on the machine that prepares it: with every worker busy
        throughout, or as long as an earlier dataset of the same files took; None where unknown.
      workers: processes that its config gives it; None where the Beam runner has its own workers.
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
class PreparedData:
    """The prepared and the missing datasets of a study.

    Attributes:
      records: prepared dataset -> number of its records.
      missing: datasets that are not prepared yet.
      lines: lines for people, on hours of preparation, read requests and bytes in the store.
    """

    records: dict[str, int]
    missing: tuple[MissingDataset, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def expected(self) -> dict[str, float]:
        """Step of a missing dataset -> size of its files, where it can be estimated [bytes]."""
        return {row.name: sum(row.num_bytes) / 2 for row in self.missing if row.num_bytes}


def plan_data(
    config: StudyConfig,
    store: Store,
    *,
    count: int | None = None,
    on_sample: Callable[[str], None] = lambda name: None,
) -> PreparedData:
    """Looks up the data of a study, for its plan.

    Where the study's graph cannot be built, for lack of a file say, the result has only the reason.

    Args:
      config: the study.
      store: the store that has its datasets.
      count: inputs to prepare of each missing dataset, to measure it, unless a sample as large
        was kept before; None reads no data.
      on_sample: called with the name of a dataset's step before it is measured.

    Raises:
      ConfigError: if `count` is given and the graph cannot be built.
    """
    # A plan is also asked for before the data are there: then it has trainings alone, and says so.
    try:
        explanation = explain_study(config, store)
    except ConfigError as error:
        if count is not None:
            raise
        return PreparedData(records={}, lines=(f"storage and reading are not known: {error}",))
    data = plan_data_of(explanation, count=count, on_sample=on_sample)
    storage_lines = explanation.describe_storage(config.keep, data.expected)
    return dataclasses.replace(data, lines=(*data.lines, *storage_lines))


def plan_data_of(
    explanation: Explanation,
    *,
    count: int | None = None,
    on_sample: Callable[[str], None] = lambda name: None,
) -> PreparedData:
    """Looks up the data of a study that is already explained; see `plan_data`."""
    samples, unknown = SavedEstimates(explanation.store), dict[str, list[str]]()
    missing, rejecting = [], []
    for step in explanation.graph.steps:
        if step.kind != "dataset" or explanation.is_reused(step):
            continue
        # An earlier sample, or a new one if it was too small; else what a similar dataset took.
        saved_estimate, reason = samples.find(step), why_not_sampled(step, explanation)
        if (
            count is not None
            and not reason
            and (saved_estimate is None or saved_estimate.asked < count)
        ):
            on_sample(step.name)
            saved_estimate, reason = samples.measure(step, explanation, count)
        row = (
            _cost_by_sample(step, saved_estimate)
            if saved_estimate
            else _cost_by_similar(step, explanation)
        )
        missing.append(row)
        # A sample shows before hours of work that a dataset would fail in the end.
        if row.rejected > step.config.prepare.max_reject_rate:
            rejecting.append(
                f"{row.name} would fail: its {row.measured} shows that at least {row.rejected:.0%} "
                f"of its inputs are rejected, above max_reject_rate="
                f"{step.config.prepare.max_reject_rate:.0%}"
            )
        if not row.measured:
            unknown.setdefault(reason or _CURE, []).append(row.name)
    records = records_of(explanation)
    lines = (
        *_describe_prepared(explanation),
        *_describe_missing(missing, unknown),
        *rejecting,
    )
    return PreparedData(records=records, missing=tuple(missing), lines=lines)


def _cost_by_sample(step: Step, saved_estimate: SavedEstimate) -> MissingDataset:
    sample, local = saved_estimate.sample, _num_local_workers(step.config)
    low, high = sample.core_s
    return MissingDataset(
        name=step.name,
        measured=f"sample of {sample.num_sampled:,}",
        cpu=saved_estimate.cpu,
        inputs=sample.num_inputs,
        records=sample.num_records,
        # `num_inputs` also counts inputs that cannot be listed; no sample can contain those.
        rejected=max(1 - sample.num_records.high / max(sample.num_inputs.low, 1.0), 0.0),
        num_bytes=sample.num_bytes,
        core_hours=(low / _HOUR, high / _HOUR),
        hours=(low / _HOUR / local, high / _HOUR / local) if local else None,
        workers=local,
    )


def _cost_by_similar(step: Step, explanation: Explanation) -> MissingDataset:
    """Returns the cost of preparing a dataset, as the newest one of the same inputs took."""
    # The same files, read in the same way, but prepared with other settings: how many inputs there
    # are and how long they took is close to what this one will have and take.
    inputs_wanted, similar_artifacts = _inputs_of(_plain_config(step.config)), []
    raw = step.inputs["raw"]
    found = explanation.steps[raw].artifact if explanation.is_reused(raw) else None
    content = found.manifest.content if found else None
    for artifact in explanation.view.artifacts("dataset"):
        counts = artifact.manifest.counts
        # A dataset that took over shards was cheaper than preparing all of them.
        is_complete = "inputs" in counts and "reused_shards" not in counts
        is_same = content is not None and artifact.manifest.inputs["raw"].content == content
        if is_complete and is_same and _inputs_of(full_config(artifact.manifest)) == inputs_wanted:
            similar_artifacts.append(artifact)
    if not similar_artifacts:
        return MissingDataset(name=step.name, workers=_num_local_workers(step.config))
    newest = max(similar_artifacts, key=lambda artifact: artifact.manifest.started)
    counts, hours = newest.manifest.counts, device_seconds(newest) / _HOUR
    inputs, records = float(counts["inputs"]), float(counts["records"])
    return MissingDataset(
        name=step.name,
        measured=f"as {newest.key[:16]} took",
        inputs=(inputs, inputs),
        records=(records, records),
        hours=(hours, hours),
        workers=_num_local_workers(step.config),
    )


def _inputs_of(config: Any) -> tuple[Any, ...]:
    """Returns the part of a dataset's config, as plain values, that decides which inputs it has."""
    names = ("reader", "path", "split", "features")
    return *(config[name] for name in names), config["prepare"].get("limit")


def _plain_config(config: Any) -> Any:
    """Returns a config in the form in which manifests hold it."""
    return redact(json.loads(canonical_json(config)))


def _num_local_workers(spec: DatasetSpec) -> int | None:
    """Returns the number of local processes that prepare a dataset; None for a remote runner."""
    apart = any("environment_type" in option for option in spec.prepare.runner_options)
    is_local = spec.prepare.runner == "FnApiRunner" and not apart
    return spec.prepare.num_workers if is_local else None


def records_of(explanation: Explanation) -> dict[str, int]:
    """Returns prepared dataset -> number of its records."""
    return {
        name: sum(part.num_records for part in dataset_parts(artifact).values())
        for name, step in explanation.graph.datasets.items()
        if explanation.is_reused(step) and (artifact := explanation.steps[step].artifact)
    }


def _describe_prepared(explanation: Explanation) -> Iterator[str]:
    datasets = [step for step in explanation.graph.steps if step.kind == "dataset"]
    artifacts = [
        artifact
        for step in datasets
        if (artifact := explanation.steps[step].artifact) and explanation.is_reused(step)
    ]
    #   data: 3 of 5 datasets are prepared, 41,200 records in 0.4 hours of a machine
    progress = f"data: {len(artifacts)} of {len(datasets)} datasets are prepared"
    if not artifacts:
        yield progress
        return
    hours = sum(map(device_seconds, artifacts)) / _HOUR
    parts = [part for artifact in artifacts for part in dataset_parts(artifact).values()]
    total = sum(part.num_records for part in parts)
    yield f"{progress}, {total:,} records in {hours:.2g} hours of a machine"


def _describe_missing(
    rows: Sequence[MissingDataset], unknown: dict[str, list[str]]
) -> Iterator[str]:
    """Yields a line on the sampled datasets, and one per reason why others have no estimate."""
    measured = [row for row in rows if row.core_hours is not None]
    if measured:
        core_hours = _sum_ranges([row.core_hours for row in measured])
        cpus = " and ".join(sorted({row.cpu for row in measured if row.cpu}))
        yield (
            f"preparing the {len(measured)} that were sampled takes {core_hours} core-hours of "
            f"{cpus or 'this machine'}"
        )
    for reason, names in unknown.items():
        shown = ", ".join(names[:_MAX_NAMES]) + (" …" if len(names) > _MAX_NAMES else "")
        yield f"what preparing {len(names)} takes is not known ({shown}): {reason}"


def _sum_ranges(ranges: Sequence[Range | None]) -> str:
    stated_ranges = [each for each in ranges if each is not None]
    return estimate_text([sum(ends) for ends in zip(*stated_ranges, strict=True)])


def estimate_text(ends: Sequence[float]) -> str:
    """Returns a range as text, as "1,230-1,410"; one number if both ends read the same."""
    first, last = map(_number_text, ends)
    return first if first == last else f"{first}-{last}"


def _number_text(value: float) -> str:
    if 0 < value < _LEAST:
        return f"<{_LEAST:g}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
