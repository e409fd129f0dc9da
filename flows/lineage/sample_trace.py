"""`parcel lineage trace --sample`: finds the training steps and cells that used a sample.

The order of examples in training is a pure function of dataset, seed and step. So it is not logged:
the steps are computed from the loader's own order.
"""

import bisect
import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from flows.lineage.training_order import batch_config, changed_since, data_of_training
from flows.lookup.target import LookupTarget
from flows.report.cells import CellKey
from flows.report.text_lists import abbreviate_list
from flows.steps.registry import KINDS, kind_of
from infra.errors import ConfigError
from infra.store.lineage import walk_lineage
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store
from model.data.config import BatchConfig
from model.data.loader import Examples
from model.data.parts import names_of
from model.seeds import Seeds
from pipelines.records.dataset import Dataset

_MAX_SHOWN = 12
"""Largest number of steps, or cells, named in a line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplePlace:
    """The place of a record that is the sample, or is made from its picture.

    Attributes:
      dataset: manifest of the dataset that holds the record.
      part: part of the dataset.
      position: position of the record in that part, from 0.
      id: the record's id.
      source: file that the record was made from.
      source_sha256: digest of that file.
    """

    dataset: Manifest
    part: str
    position: int
    id: str
    source: str
    source_sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingUse:
    """A training that saw the sample.

    Attributes:
      training: the checkpoint's manifest.
      steps: updates whose batches held the sample, in order; listed twice if a batch held it twice.
      num_steps: number of updates of the training.
      pack: places for text of each example, on average, in which it was packed with others that a
        device computed at the same time; 0 where texts were not packed [tokens].
      changed: functions of the loader that have changed since the training. The steps are computed
        with the present code.
    """

    training: Manifest
    steps: tuple[int, ...]
    num_steps: int
    pack: int = 0
    changed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleTrace:
    """The records, trainings and cells that a sample had a part in.

    Attributes:
      places: places of its records; never empty.
      training_uses: trainings that saw it.
      cells: way in which a cell rests on the sample (see `Kind.sample`) -> cells, with their seed.
      num_cells: number of all cells, whether they rest on it or not.
      guesses: role of a guess that rests on it, such as "chance/chartqa" -> the way.
    """

    places: tuple[SamplePlace, ...]
    training_uses: tuple[TrainingUse, ...]
    cells: Mapping[str, tuple[str, ...]]
    num_cells: int
    guesses: Mapping[str, str]

    def lines(self) -> Iterator[str]:
        """Yields the lines that are printed."""
        # From the file, over the trainings, to the table:
        #
        #   web/17 is record 3 of train in prepare web dataset-9c… ← a.jpg sha256:5f1c…
        #   seen by stage1 vanilla checkpoint-59… 2 times in 900 steps: 17, 561
        #   4 of 24 cells are trained on it: …
        for place in self.places:
            yield (
                f"{place.id} is record {place.position} of {place.part} in {place.dataset.name} "
                f"{place.dataset.key} ← {place.source} sha256:{place.source_sha256}"
            )
        for use in self.training_uses:
            steps = abbreviate_list([str(step) for step in use.steps], _MAX_SHOWN)
            changed = abbreviate_list(use.changed, _MAX_SHOWN)
            since = f"; computed with the present code; {changed} changed since then"
            packed = (
                f"; texts packed where they fitted, {use.pack} places an example"
                if use.pack
                else ""
            )
            yield (
                f"seen by {use.training.name} {use.training.key} {len(use.steps)} times in "
                f"{use.num_steps} steps: {steps}{packed}{since if use.changed else ''}"
            )
        if not self.training_uses:
            yield "seen by no training"
        for way, cells in self.cells.items():
            names = abbreviate_list(cells, _MAX_SHOWN)
            yield f"{len(cells)} of {self.num_cells} cells are {way}: {names}"
        if not self.cells:
            yield f"none of {self.num_cells} cells rests on it"
        for role, way in self.guesses.items():
            yield f"{role} is {way}"


def trace_sample(store: Store, target: LookupTarget, sample: str) -> SampleTrace:
    """Searches the history of a table or a cell for everything that a sample had a part in.

    Args:
      store: the store of the artifacts.
      target: a table, or a cell of one.
      sample: id of a record; an id without its "#…" ending means all records of that picture.

    Raises:
      ConfigError: if no dataset in that history holds the sample.
    """
    # One walk through the history, down from each root; what two roots share is visited once.
    search = _SampleSearch(store, sample)
    visited_keys = set[str]()
    artifacts = [
        visit.artifact
        for root in target.artifacts
        for visit in walk_lineage(store, root.key, visited_keys=visited_keys)
        if not visit.is_again
    ]
    datasets = [a for a in artifacts if kind_of(a.manifest).holds == "dataset"]
    # Where the records lie comes first: a name that no dataset knows is a mistake, and an empty
    # answer would read as "the sample had no part".
    places = tuple(place for artifact in datasets for place in search.places(artifact.key))
    if not places:
        names = ", ".join(sorted(artifact.manifest.name for artifact in datasets))
        raise ConfigError(
            f"--sample must be the id of a record, got {sample!r}, which none of the datasets of "
            f"{target.name} holds: {names}."
        )
    trainings = [a.manifest for a in artifacts if kind_of(a.manifest).draws_batches]
    cells = _table_cells(target)
    # A cell may rest on the sample in several ways: trained on it, scored on it, or both.
    cells_by_way = collections.defaultdict[str, list[str]](list)
    for cell, key in cells.items():
        for way in search.ways(key):
            cells_by_way[way].append(cell)
    guesses: dict[str, str] = {}
    for role, entry in (
        item for a in target.artifacts for item in sorted(a.manifest.inputs.items())
    ):
        kind = kind_of(store.get_cached(entry.key).manifest)
        if kind.holds == "guesses" and search.ways(entry.key):
            guesses[role] = kind.sample
    ways = dict.fromkeys([*(kind.sample for kind in KINDS.values()), *cells_by_way])
    return SampleTrace(
        places=places,
        training_uses=tuple(
            sorted(
                (training_use for m in trainings if (training_use := search.training_use(m))),
                key=lambda training_use: training_use.training.started,
            )
        ),
        cells={way: tuple(cells_by_way[way]) for way in ways if way in cells_by_way},
        num_cells=len(cells),
        guesses=guesses,
    )


def _table_cells(target: LookupTarget) -> dict[str, str]:
    """Returns each cell's name, with its seed -> key of its scores."""
    if target.seeds:
        keys = [artifact.key for artifact in target.artifacts]
        name = target.name.removesuffix(f"/{target.seeds[0]}") if len(keys) == 1 else target.name
        return {f"{name}/{s}": key for s, key in zip(target.seeds, keys, strict=True)}
    inputs = [entry for a in target.artifacts for entry in sorted(a.manifest.inputs.items())]
    return {role: entry.key for role, entry in inputs if CellKey.of_role(role)}


class _SampleSearch:
    """Looks for one sample in the histories of one store."""

    def __init__(self, store: Store, sample: str) -> None:
        self._store, self._sample = store, sample
        # Thousands of transfers read a handful of datasets, in one order per seed, so most lookups
        # repeat.
        self.places = functools.cache(self._sample_places_in_dataset)
        self._steps = functools.cache(self._steps_of)
        self._changed = functools.cache(self._changed_since)
        self.ways = functools.cache(self._ways_from_sample)

    def training_use(self, training: Manifest) -> TrainingUse | None:
        """Returns the steps at which a training saw the sample; None if it never did."""
        data = data_of_training(training)
        if not any(map(self.places, data)):
            return None
        num_steps = int(training.counts["steps"])
        steps = self._steps(data, batch_config(training), training.seed, num_steps)
        if not steps:
            return None
        return TrainingUse(
            training=training,
            steps=steps,
            num_steps=num_steps,
            pack=int(training.counts.get("pack", 0)),
            changed=self._changed(training.source),
        )

    def _ways_from_sample(self, key: str) -> frozenset[str]:
        """Returns the ways, as `Kind.sample`, in which an artifact rests on the sample."""
        manifest = self._store.get_cached(key).manifest
        kind = kind_of(manifest)
        if kind.holds == "dataset":
            return frozenset()
        # An artifact inherits every way of its inputs, down to the datasets, which bring none:
        #
        #   dataset ─▶ tokenizer ─▶ stage1 ─▶ transfer ─▶ predictions ─▶ scores
        #              {words in the tokenizer}  {words in the tokenizer, trained on} …
        above = [self.ways(entry.key) for entry in manifest.inputs.values()]
        # To read the dataset is enough for a tokenizer, not for a training, which may end before
        # its order of examples comes to the sample.
        if kind.draws_batches:
            reads = self.training_use(manifest) is not None
        else:
            inputs = manifest.inputs.items()
            reads = any(self.places(e.key) for role, e in inputs if not kind.leaves_out(role))
        return frozenset({kind.sample} if reads else ()).union(*above)

    def _sample_places_in_dataset(self, key: str) -> tuple[SamplePlace, ...]:
        """Returns the sample's places in a dataset; empty for other artifacts."""
        artifact = self._store.get_cached(key)
        if kind_of(artifact.manifest).holds != "dataset":
            return ()
        return tuple(_sample_places(artifact, self._sample))

    def _steps_of(
        self, data: Sequence[str], config: BatchConfig, seed: int | None, num_steps: int
    ) -> tuple[int, ...]:
        places = [self._store.get_cached(key).uri for key in data]
        examples = Examples(places, config, Seeds.of(seed or 0))
        steps: list[int] = []
        before: collections.Counter[str] = collections.Counter()
        datasets = [Dataset(place) for place in places]
        for key, dataset, names in zip(data, datasets, names_of(datasets), strict=True):
            # Parts with the same loader name are concatenated: `before` counts the records of
            # earlier datasets.
            for place in self.places(key):
                name = names[place.part]
                steps += examples.steps_of(name, before[name] + place.position, num_steps)
            before.update({name: len(dataset.parts[part]) for part, name in names.items()})
        return tuple(sorted(steps))

    def _changed_since(self, source: str) -> tuple[str, ...]:
        """Returns the functions of the loader that have changed since a kept source tree."""
        return changed_since(self._store, source)


def _sample_places(artifact: Artifact, sample: str) -> Iterator[SamplePlace]:
    """Yields the places of a dataset's records that are the sample, by bisection in each shard."""
    dataset = Dataset(artifact.uri)
    for name, part in sorted(dataset.parts.items()):
        ends = [0, *itertools.accumulate(dataset.info.parts[name].num_records)]
        for start, stop in itertools.pairwise(ends):
            # Ids are sorted in a shard, but "x#detect" and "x#ocr" need not be next to "x": hence
            # two ranges. "$" is the character after "#".
            for low, high in ((sample, f"{sample}\0"), (f"{sample}#", f"{sample}$")):
                first = bisect.bisect_left(range(stop), low, start, key=lambda i: part[i].id)
                last = bisect.bisect_left(range(stop), high, first, key=lambda i: part[i].id)
                for position in range(first, last):
                    record = part[position]
                    yield SamplePlace(
                        dataset=artifact.manifest,
                        part=name,
                        position=position,
                        id=record.id,
                        source=record.source,
                        source_sha256=record.source_sha256,
                    )
