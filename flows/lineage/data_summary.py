"""`parcel lineage summary`: counts what checkpoints really saw, by source and licence.

The order of examples in training is a pure function of dataset, seed and step, so it is counted and
not logged: these are the records of the batches that were trained on, not the weights of a mixture.
No record is read; licences come from the files beside the shards.
"""

import collections
import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int

from flows.lineage.training_order import batch_config, changed_since, data_of_training
from flows.lookup.target import LookupTarget
from flows.report.data_tables import align_table
from flows.report.text_lists import abbreviate_list
from flows.steps.labels import labels_of
from flows.steps.registry import kind_of
from infra.errors import ConfigError
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store
from model.data.loader import Examples
from model.data.parts import names_of
from model.seeds import Seeds
from pipelines.records.dataset import Dataset
from pipelines.records.licence import NONE_STATED

SEEN_HEAD = ("source", "licence", "holder", "address", "examples", "records")

_MAX_SHOWN = 12
"""Largest number of functions named in a line."""


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class SeenData:
    """The records of one source and one licence that were in batches.

    Attributes:
      source: name of the dataset, such as "mixture/web".
      dataset: its key.
      licence: their licence; "" if none is stated.
      holder: their holder, "several" if they differ in it, "" if not stated.
      address: their address, likewise.
      examples: number of examples in the batches; a record counts each time.
      records: number of different records in them.
    """

    source: str
    dataset: str
    licence: str
    holder: str
    address: str
    examples: int
    records: int

    def cells(self) -> tuple[str, ...]:
        """Returns the texts under `SEEN_HEAD`."""
        counts = f"{self.examples:,}", f"{self.records:,}"
        return self.source, self.licence or NONE_STATED, self.holder, self.address, *counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What one training saw.

    Attributes:
      name: name of the training, such as "stage1 vanilla".
      key: key of its checkpoint.
      steps: number of its updates.
      seen: by source and licence.
      changed: functions of the loader that have changed since; the order is that of today's.
    """

    name: str
    key: str
    steps: int
    seen: tuple[SeenData, ...]
    changed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSummary:
    """What some checkpoints saw, in all trainings that they rest on.

    Attributes:
      name: name that was asked for.
      trainings: the trainings, each after those that it began with.
      seen: over all trainings; a record that several saw is one record.
    """

    name: str
    trainings: tuple[TrainingData, ...]
    seen: tuple[SeenData, ...]

    def lines(self) -> Iterator[str]:
        """Yields the lines that are printed."""
        # Per training, and for all of them:
        #
        #   stage1 vanilla checkpoint-59…: 900 steps, 14,400 examples of 2,700 records
        #   source       licence    holder  address  examples  records
        #   mixture/web  CC-BY-4.0                   14,400    2,700
        for training in self.trainings:
            title = f"{training.name} {training.key}"
            yield f"{title}: {training.steps:,} steps, {_describe_seen_data(training.seen)}"
            if training.changed:
                changed = abbreviate_list(training.changed, _MAX_SHOWN)
                yield f"computed with the present code; {changed} changed since then"
            yield from align_table([SEEN_HEAD, *(row.cells() for row in training.seen)])
            yield ""
        yield f"{self.name}: {len(self.trainings)} trainings, {_describe_seen_data(self.seen)}"
        yield from align_table([SEEN_HEAD, *(row.cells() for row in self.seen)])

    def to_json(self) -> str:
        """Returns all counts as JSON; a licence of "" is none stated."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)


def _describe_seen_data(seen: Iterable[SeenData]) -> str:
    rows = list(seen)
    examples, records = sum(row.examples for row in rows), sum(row.records for row in rows)
    return f"{examples:,} examples of {records:,} records"


def summarise_data(store: Store, target: LookupTarget) -> DataSummary:
    """Counts the examples of every training that some artifacts rest on.

    Args:
      store: the store of the artifacts.
      target: a table, a cell of one, a checkpoint, or anything that is made from checkpoints.

    Raises:
      ConfigError: if they rest on no training, or the files of a dataset are gone.
    """
    view = store.snapshot()
    trainings = list(_trainings_behind_artifacts(view, target.artifacts))
    if not trainings:
        raise ConfigError(
            f"STEP|CHECKPOINT must rest on a training, got {target.name}: "
            f"{', '.join(sorted({a.manifest.kind for a in target.artifacts}))}. Name a checkpoint, "
            f"or what is made from one."
        )
    counter = _DataCounter(view)
    counted = tuple(map(counter.count, trainings))
    return DataSummary(name=target.name, trainings=counted, seen=counter.totals())


def _trainings_behind_artifacts(store: Store, artifacts: Sequence[Artifact]) -> Iterator[Manifest]:
    """Yields every training that taught something to the artifacts, after those it began with."""
    visited = set[str]()

    def walk(key: str) -> Iterator[Manifest]:
        if key in visited:
            return
        visited.add(key)
        manifest = store.get_cached(key).manifest
        kind = kind_of(manifest)
        for role, entry in sorted(manifest.inputs.items()):
            if not kind.leaves_out(role):
                yield from walk(entry.key)
        if kind.draws_batches:
            yield manifest

    for artifact in artifacts:
        yield from walk(artifact.key)


class _DataCounter:
    """Counts the examples of trainings, and which records any of them saw.

    Args:
      store: the store of the trainings and their datasets.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._datasets: dict[str, _LicencedDataset] = {}
        self._examples = collections.Counter[tuple[str, int]]()

    def count(self, training: Manifest) -> TrainingData:
        """Returns the examples and records of a training, by source and licence."""
        data, steps = data_of_training(training), int(training.counts["steps"])
        seen: list[SeenData] = []
        try:
            datasets = [self._licenced_dataset(key) for key in data]
            places = [self._store.get_cached(key).uri for key in data]
            examples = Examples(places, batch_config(training), Seeds.of(training.seed or 0))
        except FileNotFoundError as error:
            raise ConfigError(
                f"the data of {training.name} {training.key} cannot be counted, because files are "
                f"gone: {error.filename or error}; `parcel lineage replay KEY --into DIR` makes a "
                f"dataset again."
            ) from None
        visits = dict(examples.visit_counts(steps))
        # The records of a part of the mixture are those of the datasets that have it, in turn.
        starts = collections.Counter[str]()
        names = names_of([dataset.opened for dataset in datasets])
        for dataset, name_of_part in zip(datasets, names, strict=True):
            counts = np.zeros(len(dataset.licences), np.int64)
            records = np.zeros(len(dataset.licences), np.int64)
            for part, name in name_of_part.items():
                start = starts[name]
                starts[name] = stop = start + len(dataset.opened.parts[part])
                if name in visits:
                    part_examples, part_records = dataset.add(part, visits[name][start:stop])
                    counts, records = counts + part_examples, records + part_records
            for number, num in enumerate(counts.tolist()):
                self._examples[dataset.key, number] += num
            seen += dataset.rows(counts, records)
        return TrainingData(
            name=training.name,
            key=training.key,
            steps=steps,
            seen=tuple(sorted(seen)),
            changed=changed_since(self._store, training.source),
        )

    def totals(self) -> tuple[SeenData, ...]:
        """Returns the same over all trainings counted so far; a record of several counts once."""
        rows: list[SeenData] = []
        for dataset in self._datasets.values():
            numbers = range(len(dataset.licences))
            counts = np.array([self._examples[dataset.key, number] for number in numbers])
            rows += dataset.rows(counts, dataset.records_seen())
        return tuple(sorted(rows))

    def _licenced_dataset(self, key: str) -> "_LicencedDataset":
        if key not in self._datasets:
            self._datasets[key] = _LicencedDataset(self._store.get_cached(key))
        return self._datasets[key]


class _LicencedDataset:
    """A dataset with the licences of its records, and which of them were seen.

    Attributes:
      key: key of the dataset.
      opened: the dataset.
      licences: licence -> its number.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.key, self.opened = artifact.key, Dataset(artifact.uri)
        labels = labels_of(artifact.manifest)
        self._source = labels.subject or labels.name
        self._counts = {count.licence: count for count in self.opened.info.licence_counts}
        self.licences = {licence: number for number, licence in enumerate(self._counts)}
        self._numbers: dict[str, Int[np.ndarray, " N"]] = {}
        self._seen: dict[str, np.ndarray] = {}

    def add(
        self, part: str, visits: Int[np.ndarray, " N"]
    ) -> tuple[Int[np.ndarray, " L"], Int[np.ndarray, " L"]]:
        """Notes the visits to the records of a part; returns examples and records per licence."""
        numbers = self._numbers_of(part)
        seen = visits > 0
        self._seen[part] = seen | self._seen[part] if part in self._seen else seen
        examples = np.bincount(numbers, visits, minlength=len(self.licences))
        return np.rint(examples).astype(np.int64), self._count_by_licence(numbers[seen])

    def records_seen(self) -> Int[np.ndarray, " L"]:
        """Returns how many different records were seen so far, per licence."""
        counts = np.zeros(len(self.licences), np.int64)
        for part, seen in self._seen.items():
            counts = counts + self._count_by_licence(self._numbers_of(part)[seen])
        return counts

    def rows(
        self, examples: Int[np.ndarray, " L"], records: Int[np.ndarray, " L"]
    ) -> Iterator[SeenData]:
        """Yields a row for each licence of which anything was seen."""
        for licence, number in self.licences.items():
            if examples[number]:
                yield SeenData(
                    source=self._source,
                    dataset=self.key,
                    licence=licence,
                    holder=self._counts[licence].holder,
                    address=self._counts[licence].address,
                    examples=int(examples[number]),
                    records=int(records[number]),
                )

    def _count_by_licence(self, numbers: Int[np.ndarray, " N"]) -> Int[np.ndarray, " L"]:
        return np.bincount(numbers, minlength=len(self.licences))

    def _numbers_of(self, part: str) -> Int[np.ndarray, " N"]:
        if part not in self._numbers:
            runs = [(self.licences[name], num) for name, num in self.opened.licences(part)]
            numbers, nums = np.array(runs, np.int64).reshape(-1, 2).T
            self._numbers[part] = np.repeat(numbers.astype(np.int32), nums)
        return self._numbers[part]
