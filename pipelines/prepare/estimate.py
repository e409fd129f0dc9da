"""Estimates of the size and cost of preparing a dataset, measured on a sample of it.

    up to eight units ─▶ list ─▶ cut ─▶ draw pictures ─▶ write them in groups ─▶ scale

The sample is listed, cut and written in a separate work folder by the functions that Beam's workers
call (`graph`), so the measured work is a worker's work. If there are few units, all are listed, and
the number of inputs is exact; otherwise the results of a few drawn units are scaled to all units by
their bytes. The sample is a pure function of the raw files and `SAMPLE_SEED`.
"""

import contextlib
import dataclasses
import functools
import heapq
import itertools
import math
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from scipy import special

from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.job import PrepareJob, WorkFolder, group_units, plan_job
from pipelines.prepare.licences import LicencesConfig
from pipelines.prepare.listing import (
    ListTotals,
    cut_shard,
    item_id,
    list_units,
    piece_list_name,
    pixels_key,
)
from pipelines.prepare.shards import write_piece
from pipelines.records.hashing import stable_hash
from pipelines.records.licence import NO_LICENCE, Licence
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.slicing import slice_bounds
from pipelines.video.client import VideoChild

SAMPLE_SEED = 0
"""Seed of the drawn units and pictures."""

_GROUPS = 8
"""Groups in which the sample is written; their variance gives the interval of the estimates."""

_CONFIDENCE = 0.95


class EstimateInterval(NamedTuple):
    """The ends of a 95% interval; equal where a value is exact."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetEstimate:
    """Estimates for a whole dataset, made from a sample of it.

    Attributes:
      num_sampled: inputs that were prepared.
      num_rejected: sampled inputs that did not become records.
      num_inputs: inputs of the whole dataset, including those that cannot even be listed.
      num_records: records of the whole dataset.
      num_bytes: size of all shards and their indexes [bytes].
      core_s: processor time for listing all units, decoding and writing [s].
    """

    num_sampled: int
    num_rejected: int
    num_inputs: EstimateInterval
    num_records: EstimateInterval
    num_bytes: EstimateInterval
    core_s: EstimateInterval


class _PreparedGroup(NamedTuple):
    """Inputs that were prepared together."""

    num_inputs: int
    num_rejects: int
    num_bytes: int
    core_s: float


class _ListedUnit(NamedTuple):
    """A unit that was listed, and the group of its inputs that was prepared."""

    size: int
    listed: ListTotals
    list_s: float
    group: _PreparedGroup


def estimate_dataset(
    config: PrepareConfig,
    *,
    source: str | OwnSource,
    split: str,
    data_root: str,
    scratch: str,
    count: int,
    path: str | None = None,
    features: Mapping[str, str] | None = None,
    licence: Licence = NO_LICENCE,
    licences: LicencesConfig | None = None,
    max_units: int = 8,
) -> DatasetEstimate:
    """Prepares about `count` inputs of a dataset, and estimates the whole from them.

    Lists all units, or `max_units` if there are more. Augmentation, videos and rejects are included
    in the estimates; the start of Beam (some seconds) and joining shards are not.

    Args:
      config: settings with which the dataset will be prepared.
      source: name of the corpus layout, or a source that the user wrote.
      split: the split, for example "train" or "train+val".
      data_root: folder or gs://bucket/prefix that holds the source's folder.
      scratch: a folder on this machine with room for the files unpacked from the units.
      count: inputs to prepare; all inputs of a drawn picture are taken, so it may be a few more.
      path: the source's folder below `data_root`; None takes the usual one.
      features: field -> feature of an Example; see `pipelines.sources.reading.corpus.FEATURES`.
      licence: licence of the source, for the records whose rows state none.
      licences: which licences are allowed; None allows all.
      max_units: most units that are listed; listing an archive may take as long as reading it all.

    Raises:
      ValueError: if the source or the split does not exist, or an annotation file is wrong.
      FileNotFoundError: if the corpus or an annotation file is missing, naming it.
    """
    request: dict[str, Any] = {"source": source, "split": split, "data_root": data_root}
    request |= {"path": path, "features": features, "licence": licence, "licences": licences}
    with (
        tempfile.TemporaryDirectory(prefix="sample-", dir=scratch) as work,
        contextlib.closing(VideoChild(config.video_limits())) as video,
    ):
        # If there are few units, all are listed, and the number of inputs is exact. Of many, some
        # are drawn by the hashes of their names: the same raw files give the same estimate.
        job, units = plan_job(config, **request, work=work)
        if len(units) <= max_units:
            return _SampleWriter(job, count, video).estimate_from_all_units(units)
        in_drawn_order = sorted(units, key=lambda unit: stable_hash(f"{SAMPLE_SEED} {unit}"))
        drawn_units = in_drawn_order[:max_units]
        return _SampleWriter(job, count, video).estimate_from_drawn_units(units, drawn_units)


class _SampleWriter:
    """Prepares a sample of a run.

    Args:
      job: the run.
      count: inputs to prepare.
      video: decoder of clips, which the caller closes.
    """

    def __init__(self, job: PrepareJob, count: int, video: VideoChild) -> None:
        self._count, self._video = count, video
        self._part = job.part
        # One shard is enough: the number of shards does not change the cost. For a part of a
        # split, all candidates are listed, as in the real run. The sample is then drawn from all
        # candidates, which cost as much as those in the part.
        limit = job.config.limit if job.part is None else None
        config = dataclasses.replace(job.config, num_shards=1, limit=limit)
        self._job = dataclasses.replace(job, config=config, part=None, by_archive=False)

    def estimate_from_all_units(self, units: Sequence[str]) -> DatasetEstimate:
        """Measures a dataset whose units are all listed."""
        work_folder = WorkFolder(self._job)
        # Pictures are dealt to the groups like cards, so each group is a small sample of the same
        # kind; how much the groups differ says how far the estimate may be off.
        listed, num_pieces, list_s = self._list_and_cut_units(work_folder, units)
        drawn_pictures = self._draw_sample_pictures(work_folder, num_pieces, self._count)
        dealt = [drawn_pictures[start::_GROUPS] for start in range(_GROUPS)]
        groups = self._write_sample_pieces(
            work_folder, num_pieces, [pictures for pictures in dealt if pictures]
        )
        # Rows that no item could be made of are inputs as well.
        num_listed = listed.num_items + listed.num_rejects
        # The part has items and rejects in the same proportion as all that was listed.
        num_in_part = self._num_in_part(num_listed)
        num_items = listed.num_items * num_in_part / num_listed if num_listed else 0.0
        sizes = [group.num_inputs for group in groups]
        undrawn_share = 1 - sum(sizes) / listed.num_items if listed.num_items else 0.0

        def scaled(values: Sequence[float], plus: float = 0.0) -> EstimateInterval:
            interval = _scale_to_dataset(values, sizes, num_items, undrawn_share=undrawn_share)
            return EstimateInterval(interval.low + plus, interval.high + plus)

        # An estimate may not say more records than there are items.
        records = scaled([group.num_inputs - group.num_rejects for group in groups])
        return DatasetEstimate(
            num_sampled=sum(sizes),
            num_rejected=sum(group.num_rejects for group in groups),
            num_inputs=EstimateInterval(num_in_part, num_in_part),
            num_records=_widen_without_rejects(
                EstimateInterval(records.low, min(records.high, num_items)), groups, undrawn_share
            ),
            num_bytes=scaled([group.num_bytes for group in groups]),
            core_s=scaled([group.core_s for group in groups], list_s),
        )

    def estimate_from_drawn_units(
        self, units: Sequence[str], drawn_units: Sequence[str]
    ) -> DatasetEstimate:
        """Measures a dataset by its drawn units; the others are not listed."""
        # A sample in two stages: drawn units, and drawn pictures of each. A unit's values are
        # scaled to its own number of items first, then all units' by their bytes.
        count_per_unit = math.ceil(self._count / len(drawn_units))
        listed_units = [
            self._list_and_prepare_unit(number, unit, count_per_unit)
            for number, unit in enumerate(drawn_units)
        ]
        sizes = [unit.size for unit in listed_units]
        total_size = sum(map(self._unit_file_bytes, units))
        nums_listed = [unit.listed.num_items + unit.listed.num_rejects for unit in listed_units]
        inputs = _scale_to_dataset(nums_listed, sizes, total_size)
        # The share of all inputs that the requested part of the split takes; 1 for a whole split.
        share = self._num_in_part(sum(inputs) / 2) / (sum(inputs) / 2) if inputs.high else 0.0

        def of_units(prepared: Sequence[float], listing: bool = False) -> EstimateInterval:
            """Scales each group's value to its unit, and the units' values to all units."""
            values = [
                share * value * unit.listed.num_items / max(unit.group.num_inputs, 1)
                + listing * unit.list_s
                for value, unit in zip(prepared, listed_units, strict=True)
            ]
            return _scale_to_dataset(values, sizes, total_size)

        groups = [unit.group for unit in listed_units]
        records = of_units([group.num_inputs - group.num_rejects for group in groups])
        records_in_part = EstimateInterval(
            *(min(end, self._num_in_part(inputs.high)) for end in records)
        )
        return DatasetEstimate(
            num_sampled=sum(group.num_inputs for group in groups),
            num_rejected=sum(group.num_rejects for group in groups),
            num_inputs=EstimateInterval(*map(self._num_in_part, inputs)),
            num_records=_widen_without_rejects(records_in_part, groups),
            num_bytes=of_units([group.num_bytes for group in groups]),
            core_s=of_units([group.core_s for group in groups], listing=True),
        )

    def _list_and_prepare_unit(self, number: int, unit: str, count: int) -> _ListedUnit:
        """Lists a unit and prepares some of it; its unpacked files are deleted at the end."""
        with tempfile.TemporaryDirectory(prefix=f"{number}-", dir=self._job.work) as work:
            work_folder = WorkFolder(dataclasses.replace(self._job, work=work))
            listed, num_pieces, list_s = self._list_and_cut_units(work_folder, [unit])
            pictures = self._draw_sample_pictures(work_folder, num_pieces, count)
            (group,) = self._write_sample_pieces(work_folder, num_pieces, [pictures])
        return _ListedUnit(self._unit_file_bytes(unit), listed, list_s, group)

    def _list_and_cut_units(
        self, work_folder: WorkFolder, units: Sequence[str]
    ) -> tuple[ListTotals, int, float]:
        """Lists units and cuts their items; returns totals, pieces and processor time [s]."""
        began = self._core_s()
        lists = [
            list_units(work_folder, number, group)
            for number, group in enumerate(group_units(units))
        ]
        num_pieces = cut_shard(work_folder, 0, len(lists))
        totals = ListTotals()
        for totals_of_list in lists:
            totals = totals + totals_of_list
        return totals, num_pieces, self._core_s() - began

    def _draw_sample_pictures(
        self, work_folder: WorkFolder, num_pieces: int, count: int
    ) -> list[list[str]]:
        """Returns pictures in random order, each as the lines of the items that show it.

        Together they have at least `count` items, if there are so many, and at least two pictures.
        Memory holds no more than these.
        """
        # The sample is the pictures with the smallest hashes; the heap pops the largest hash first.
        heap: list[tuple[int, str, list[str]]] = []
        num = 0
        for piece in range(num_pieces):
            for pixels, group in itertools.groupby(
                work_folder.lines(piece_list_name(0, piece)), pixels_key
            ):
                lines = list(group)
                num += len(lines)
                heapq.heappush(heap, (-stable_hash(f"{SAMPLE_SEED} {pixels}"), pixels, lines))
                while len(heap) > 2 and num - len(heap[0][2]) >= count:
                    num -= len(heapq.heappop(heap)[2])
        return [lines for *_, lines in sorted(heap, reverse=True)]

    def _write_sample_pieces(
        self, work_folder: WorkFolder, num_pieces: int, groups: Sequence[Sequence[list[str]]]
    ) -> list[_PreparedGroup]:
        """Writes each group of pictures as a further piece of the shard, and measures it."""
        measured = []
        # One picture is written first and not counted: a worker loads its decoders only once.
        warm = [groups[0][:1]] if groups else []
        for number, pictures in enumerate([*warm, *groups], num_pieces):
            in_order = sorted(pictures, key=_first_id)
            lines = itertools.chain.from_iterable(in_order)
            work_folder.files.put(piece_list_name(0, number), "".join(lines).encode())
            began = self._core_s()
            report = write_piece(work_folder, 0, number, self._video)
            seconds = self._core_s() - began
            sizes = [file.size for part in report.parts.values() for file in part.files.values()]
            measured.append(
                _PreparedGroup(report.num_items, report.num_rejects, sum(sizes), seconds)
            )
        return measured[len(warm) :]

    def _core_s(self) -> float:
        """Returns the processor time of this process and its children [s]."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.process_time() + ended.ru_utime + ended.ru_stime
        if self._video.pid is not None:
            running = psutil.Process(self._video.pid).cpu_times()
            seconds += running.user + running.system
        return seconds

    def _unit_file_bytes(self, unit: str) -> int:
        """Returns a unit's bytes; 1 if its files are not known before reading."""
        files = self._job.spec.files_of_unit(self._corpus_of_job, unit)
        return sum(map(_file_size, files)) or 1

    def _num_in_part(self, num_inputs: float) -> float:
        """Returns the number of inputs that are taken if there are `num_inputs`."""
        if self._part is None:
            return num_inputs
        return len(range(round(num_inputs))[slice_bounds(self._part, round(num_inputs))])

    @functools.cached_property
    def _corpus_of_job(self) -> Corpus:
        """The source's folder, kept because it remembers the names in a bucket."""
        return WorkFolder(self._job).corpus(UnpackedMedia())


def _first_id(lines: Sequence[str]) -> str:
    return item_id(lines[0])


def _file_size(path: Any) -> int:
    """Returns the size of a raw file on disk or in a bucket."""
    return path.stat().st_size if isinstance(path, Path) else path.state().size


def _widen_without_rejects(
    records: EstimateInterval, groups: Sequence[_PreparedGroup], undrawn_share: float = 1.0
) -> EstimateInterval:
    """Widens the estimate of records if the sample has no rejects, which may be chance.

    If none of n inputs was rejected, up to 3 / n of all may be, at 95%: the rule of three.
    """
    num = sum(group.num_inputs for group in groups)
    if not num or any(group.num_rejects for group in groups):
        return records
    least = records.high * (1 - min(3 / num, 1.0) * max(undrawn_share, 0.0))
    return EstimateInterval(min(records.low, least), records.high)


def _scale_to_dataset(
    values: Sequence[float],
    sizes: Sequence[float],
    total_size: float,
    *,
    undrawn_share: float = 1.0,
) -> EstimateInterval:
    """Scales values of drawn groups to the whole, as a 95% interval.

    The ratio estimator of a cluster sample, with Student's t because there are few groups.
    Source: Cochran, Sampling Techniques, 3rd ed., eqs. 6.1 and 6.13.

    Args:
      values: value of each group.
      sizes: size of each group.
      total_size: size of the whole.
      undrawn_share: share of the whole that was not drawn; only this share adds uncertainty.
    """
    total = sum(sizes)
    if not total:
        return EstimateInterval(0.0, 0.0)
    # values 2, 3 of sizes 10, 14, whole 100: ratio 5/24, estimate 20.8. The spread of the values
    # around ratio * size gives its error.
    ratio, num = sum(values) / total, len(values)
    if num == 1:
        return EstimateInterval(total_size * ratio, total_size * ratio)
    squares = sum((v - ratio * s) ** 2 for v, s in zip(values, sizes, strict=True)) / (num - 1)
    error = total_size / (total / num) * math.sqrt(max(undrawn_share, 0.0) * squares / num)
    reach = float(special.stdtrit(num - 1, (1 + _CONFIDENCE) / 2)) * error
    return EstimateInterval(max(total_size * ratio - reach, 0.0), total_size * ratio + reach)
