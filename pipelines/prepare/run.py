"""Raw corpus -> TFRecord dataset; `python -m pipelines.prepare --help`."""

import collections
import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from infra.store.backend import StoreBackend
from infra.store.digest import value_sha256
from infra.store.manifest import File
from infra.store.stored_folder import open_backend
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.job import (
    OMITTED,
    EarlierDataset,
    PrepareJob,
    ShardReport,
    WorkFolder,
    count_receipts,
    file_of_shard,
    group_units,
    plan_job,
    resolve_folder,
)
from pipelines.prepare.licences import LicencesConfig, dropped_licence
from pipelines.prepare.listing import list_totals
from pipelines.prepare.reuse import REPORTS, format_reports, split_earlier_rejects
from pipelines.prepare.shards import add_counts
from pipelines.prepare.worker_pool import local_workers
from pipelines.records.dataset import DESCRIPTION, OMISSIONS, REJECTS, DatasetInfo, PartInfo
from pipelines.records.licence import (
    LICENCE_STAGE,
    NO_LICENCE,
    NONE_STATED,
    Licence,
    LicenceCount,
    LicenceRuns,
    licences_path,
    stated_counts,
)
from pipelines.records.lines import sorted_lines
from pipelines.records.schema import Omission
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import UnpackedMedia
from pipelines.sources.registry import source_spec

__all__ = ["PrepareConfig", "PreparedDataset", "RejectRateError", "make_dataset", "prepare_dataset"]

_ATTEMPTS = 3
"""Most runs of the pipeline; it runs again if it lost workers after making some progress."""

_WORK = ".work"
"""The work folder, inside the dataset's folder; it is removed once the dataset is complete."""

_REQUEST = "request.json"
_CODE = "code"
"""Files of the work folder: digests of the request and of the code that works there."""


class RejectRateError(RuntimeError):
    """More inputs were rejected than the config allows; `rejects.jsonl` says which and why."""


class PreparedDataset(NamedTuple):
    """A finished dataset: its description and its files.

    Attributes:
      info: content of `dataset.json`.
      files: name in the dataset -> (name in the work folder, digest and size).
      num_taken: number of shards reused from an earlier dataset.
      omissions: what looks like data in the source's folder, and was not read.
    """

    info: DatasetInfo
    files: dict[str, tuple[str, File]]
    num_taken: int
    omissions: list[Omission]


def prepare_dataset(
    config: PrepareConfig,
    *,
    source: str | OwnSource,
    split: str,
    data_root: str,
    out: str,
    path: str | None = None,
    features: Mapping[str, str] | None = None,
    licence: Licence = NO_LICENCE,
    licences: LicencesConfig | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> DatasetInfo:
    """Writes the dataset of one split of one source into the empty folder `out`.

    The same inputs and config give the same bytes, whatever the runner and the workers. If `out`
    holds the unfinished work of the same request, it is continued. The source's files are then
    assumed to be unchanged; only a study checks them.

    Args:
      config: settings of the run.
      source: name of the corpus layout, or a source that the user wrote.
      split: the split, for example "train" or "train+val".
      data_root: folder or gs://bucket/prefix that holds the source's folder.
      out: absent or empty folder, or gs://bucket/prefix; `dataset.json` appears last.
      path: the source's folder below `data_root`; None takes the usual one.
      features: field -> feature of an Example; see `pipelines.sources.reading.corpus.FEATURES`.
      licence: licence of the source, for the records whose rows state none.
      licences: which licences are allowed; None allows all.
      on_progress: called with (items done, all items) once the latter is known.

    Raises:
      ValueError: if the source, the split or `out` is wrong.
      FileNotFoundError: if the corpus or an annotation file is missing, naming it.
      RejectRateError: if more than `config.max_reject_rate` of the inputs is rejected.
      RuntimeError: if inputs or workers were lost.
    """
    # A wrong source or split is refused before the output folder is touched.
    request: dict[str, Any] = {"source": source, "split": split}
    request |= {"data_root": data_root, "path": path, "features": features or {}}
    # Left out where nothing is stated: work that was begun before there were licences goes on.
    request |= {"licence": licence} if licence != Licence() else {}
    request |= {"licences": licences} if licences is not None else {}
    source_spec(source).parse(split)
    out = resolve_folder("out", out)
    files, work = open_backend(out), f"{out}/{_WORK}"
    _claim_out_folder(files, work, value_sha256([config, request]))
    try:
        dataset = make_dataset(config, **request, work=work, on_progress=on_progress)
    except (ValueError, FileNotFoundError):
        # Nothing was done, so the request itself was wrong; a corrected one may use this folder.
        if not any(count_receipts(open_backend(work)).values()):
            files.remove(_WORK)
        raise
    # The description comes last: its presence is what makes the folder a dataset.
    for name, (stored, file) in sorted(
        dataset.files.items(), key=lambda entry: entry[0] == DESCRIPTION
    ):
        files.link(f"{_WORK}/{stored}", name, file)
    files.remove(_WORK)
    return dataset.info


def make_dataset(
    config: PrepareConfig,
    *,
    source: str | OwnSource,
    split: str,
    data_root: str,
    work: str,
    path: str | None = None,
    features: Mapping[str, str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    earlier: EarlierDataset | None = None,
    code: str = "",
    licence: Licence = NO_LICENCE,
    licences: LicencesConfig | None = None,
) -> PreparedDataset:
    """Makes a dataset in a work folder, or continues one; its files stay there.

    Args:
      config: settings of the run.
      source: as in `prepare_dataset`.
      split: as in `prepare_dataset`.
      data_root: as in `prepare_dataset`.
      work: a folder or gs://bucket/prefix that only this request uses and all workers reach.
      path: as in `prepare_dataset`.
      features: as in `prepare_dataset`.
      on_progress: as in `prepare_dataset`.
      earlier: a dataset whose shards are reused if their inputs are unchanged.
      code: digest of the code of the step that asks; work in the folder that other code left is
        done again. "" takes that of the pipelines, which does not cover a user's own reader.
      licence: licence of the source, for the records whose rows state none.
      licences: which licences are allowed; None allows all.

    Raises:
      ValueError, FileNotFoundError, RejectRateError, RuntimeError: as in `prepare_dataset`.
    """
    # The stages of a run. Each finds out by receipts what an earlier attempt has done already:
    #
    #     plan ─▶ units in lists ─▶ Beam, until every shard has its receipt ─▶ balance, description
    job, units = plan_job(
        config,
        source=source,
        split=split,
        data_root=data_root,
        work=work,
        path=path,
        features=features,
        earlier=earlier,
        licence=licence,
        licences=licences,
    )
    work_folder = WorkFolder(job)
    # Before any receipt is believed: half a dataset by other code is no half of this one.
    _remove_work_of_other_code(work_folder, f"{code or job.code} {job.decoder}")
    if earlier and not job.by_archive:
        split_earlier_rejects(work_folder)
    # By archive nothing is listed: the archives themselves are the work.
    lists = [] if job.by_archive else list(enumerate(group_units(units)))
    _run_until_done(job, work_folder, lists, list(_assign_archives(job, units)), on_progress)
    return _finish_dataset(work_folder, f"{job.spec.name}/{split}", len(lists))


def _remove_work_of_other_code(work_folder: WorkFolder, code: str) -> None:
    """Removes work that other code or another decoder left: one of each makes all of a dataset."""
    if work_folder.receipt(_CODE) == code.encode():
        return
    if any(count_receipts(work_folder.files).values()):
        for folder in work_folder.files.folders(""):
            work_folder.files.remove(folder)
    work_folder.files.put(_CODE, code.encode())


def _claim_out_folder(files: StoreBackend, work: str, request: str) -> None:
    names = {*files.listing(""), *files.folders("")}
    if not names or _holds_request(files, request):
        open_backend(work).put(_REQUEST, request.encode())
        return
    leftover = ", which another request left unfinished" if _WORK in names else ""
    raise ValueError(
        f"out must be an empty or a new folder, got {files.uri}{leftover}; remove it, or choose "
        f"another."
    )


def _holds_request(files: StoreBackend, request: str) -> bool:
    try:
        return files.read(f"{_WORK}/{_REQUEST}") == request.encode()
    except FileNotFoundError:
        return False


def _assign_archives(job: PrepareJob, units: list[str]) -> Iterator[tuple[int, int, list[str]]]:
    """Yields (shard, piece, archives): a shard is a group of neighbours, a piece one archive."""
    num_shards = job.config.num_shards
    for shard in range(num_shards if job.by_archive else 0):
        # 10 archives and 3 shards: [0, 3), [3, 6), [6, 10). A group may be empty; one piece without
        # archives then lets the shard be joined all the same.
        neighbours = units[
            shard * len(units) // num_shards : (shard + 1) * len(units) // num_shards
        ]
        for piece, archive in enumerate(neighbours or [None]):
            yield shard, piece, [archive] if archive else []


def _run_until_done(
    job: PrepareJob,
    work_folder: WorkFolder,
    lists: list[tuple[int, list[str]]],
    archives: list[tuple[int, int, list[str]]],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Runs the pipeline until every shard is done, and again if workers were lost."""
    # With all shards finished there is nothing to do, and Beam is not even imported.
    if all(work_folder.receipt(_shard_receipt(shard)) for shard in range(job.config.num_shards)):
        return
    # All attempts share one deadline. Another attempt is worth it only if the last one left new
    # receipts: without any, it would fail again in the same way.
    deadline = time.monotonic() + job.config.timeout_s
    progress = _Progress(work_folder, len(lists), len(archives), on_progress)
    missing = [0]
    for attempt in range(1, _ATTEMPTS + 1):
        num_receipts = count_receipts(work_folder.files)
        try:
            # Its processes start while Beam is imported, which takes a second.
            with local_workers(job):
                from pipelines.prepare import graph

                seconds_left = deadline - time.monotonic()
                graph.run_pipeline(
                    job, lists, archives, timeout_s=seconds_left, on_poll=progress.report_progress
                )
        except RuntimeError:  # A worker that is cut off may have noted that as an error.
            if attempt == _ATTEMPTS or count_receipts(work_folder.files) == num_receipts:
                raise
        missing = [
            s for s in range(job.config.num_shards) if not work_folder.receipt(_shard_receipt(s))
        ]
        if not missing:
            # Once more: the last receipts may have come after the last poll.
            progress.report_progress()
            return
        if count_receipts(work_folder.files) == num_receipts:
            break
    raise RuntimeError(f"{job.config.runner} ended without finishing shards {missing}.")


def _shard_receipt(shard: int) -> str:
    return f"shards/{shard:05d}.json"


class _Progress:
    """Reports progress by counting the receipts that workers leave."""

    def __init__(
        self,
        work_folder: WorkFolder,
        num_lists: int,
        num_pieces: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._work_folder, self._on_progress = work_folder, on_progress
        self._num_lists, self._num_pieces = num_lists, num_pieces
        self._total: int | None = None
        self._num_done, self._counted_names = 0, set[str]()

    def report_progress(self) -> None:
        """Reports items done or, for a dataset sharded by archive, archives done."""
        if self._on_progress is None:
            return
        if self._total is None:
            self._total = self._find_total()
        if self._total is None:
            return
        # Each receipt is read once: a bucket may hold 10,000 of them, and this runs at every poll.
        names = self._work_folder.files.listing("pieces")
        for name in [n for n in names if n.endswith(".json") and n not in self._counted_names]:
            self._counted_names.add(name)
            if self._num_lists:
                report = ShardReport.from_json(self._work_folder.files.read(f"pieces/{name}"))
                self._num_done += report.num_items
            else:
                self._num_done += 1
        self._on_progress(self._num_done, self._total)

    def _find_total(self) -> int | None:
        if not self._num_lists:
            return self._num_pieces
        names = self._work_folder.files.listing("lists")
        if sum(name.endswith(".json") for name in names) < self._num_lists:
            return None
        totals = (list_totals(self._work_folder, number) for number in range(self._num_lists))
        return sum(total.num_items for total in totals if total is not None)


def _finish_dataset(work_folder: WorkFolder, name: str, num_lists: int) -> PreparedDataset:
    """Checks that no input was lost, then writes the rejects and, last, the description."""
    job, shards = work_folder.job, range(work_folder.job.config.num_shards)
    reports = [
        ShardReport.from_json(work_folder.files.read(_shard_receipt(shard))) for shard in shards
    ]
    lists = [
        totals for n in range(num_lists) if (totals := list_totals(work_folder, n)) is not None
    ]
    # The balance: every listed item must be a record or a reject of some shard. Beam has lost
    # elements without an error before, and this is where it would show.
    accounted = sum(report.num_items for report in reports)
    num_inputs, num_rejected = accounted, sum(report.num_rejects for report in reports)
    if num_lists:
        num_listed = sum(totals.num_items for totals in lists)
        if len(lists) != num_lists or accounted != num_listed:
            raise RuntimeError(
                f"{name} lost inputs: {num_listed} listed, {accounted} accounted for."
            )
        of_lists = sum(totals.num_rejects for totals in lists)
        num_inputs, num_rejected = num_inputs + of_lists, num_rejected + of_lists
    # Rejects come from two places: rows that no item could be made of (lists), and items whose
    # pixels or texts failed (shards).
    files = [f"lists/{n:05d}.rejects" for n, totals in enumerate(lists) if totals.num_rejects]
    files += [f"shards/{s:05d}.rejects" for s in shards if reports[s].num_rejects]
    rejects_file, dropped = _write_rejects(work_folder, files)
    files_of_dataset = {REJECTS: (REJECTS, rejects_file)}
    # Records that were dropped by wish are no fault of the data: they are in an account of their
    # own, and in neither side of the reject rate.
    num_dropped = dropped.total()
    if not num_dropped or num_dropped < num_inputs:
        _check_rejects(name, num_rejected - num_dropped, num_inputs - num_dropped, work_folder)
    parts: dict[str, PartInfo] = {}
    licence_counts: list[LicenceCount] = []
    for part in sorted({part for report in reports for part in report.parts}):
        names = tuple(job.shard_name(part, shard) for shard in shards)
        part_shards = [reports[shard].parts[part] for shard in shards]
        parts[part] = PartInfo(shards=names, num_records=tuple(f.num_records for f in part_shards))
        for shard, part_shard in zip(names, part_shards, strict=True):
            for ending, part_file in part_shard.files.items():
                file_name = file_of_shard(shard, ending)
                files_of_dataset[file_name] = f"shards/{file_name}", part_file
            if part_shard.licences is None:
                licence_counts.append(LicenceCount(records=part_shard.num_records))
            else:
                text = work_folder.files.read(f"shards/{licences_path(shard)}")
                licence_counts += LicenceRuns.from_json(text).counts
    licences = stated_counts(licence_counts)
    if job.licences is not None:
        job.licences.check_spelling(
            {licence: f"{num:,} records of {name}" for licence, num in dropped.items() if licence},
            [count.licence for count in licences],
            with_slips=False,  # Another dataset may well state what this one does not.
        )
    _check_dropped(name, dropped, num_inputs)
    # Its constructor checks inputs = records + rejects once more, for whoever reads the dataset.
    info = DatasetInfo(
        name=name,
        parts=parts,
        num_inputs=num_inputs,
        num_rejected=num_rejected,
        image_px=job.config.image_px,
        num_composed=sum(report.num_composed for report in reports),
        decoders=add_counts(report.decoders for report in reports),
        num_dropped=num_dropped,
        licences=licences,
    )
    texts: dict[str, bytes] = {
        REPORTS: format_reports(reports),
        DESCRIPTION: info.to_json().encode(),
    }
    omissions = _source_omissions(work_folder)
    if omissions:
        texts[OMISSIONS] = "".join(f"{omission.to_json()}\n" for omission in omissions).encode()
    for file, text in texts.items():
        work_folder.files.put(file, text)
        sha256 = hashlib.sha256(text).hexdigest()
        files_of_dataset[file] = file, File(sha256=sha256, size=len(text))
    num_taken = sum(report.is_taken for report in reports)
    return PreparedDataset(info, files_of_dataset, num_taken, omissions)


def _source_omissions(work_folder: WorkFolder) -> list[Omission]:
    """Returns the files and members of the source that look like data and were not read."""
    job, files = work_folder.job, work_folder.files
    found = set(job.spec.omissions_of(work_folder.corpus(UnpackedMedia()), job.split))
    # Noted by whoever read the source's files: as candidates for a part, for a list or for a piece.
    for folder in ("found", "lists", "pieces"):
        for name in files.listing(folder):
            if name.endswith(OMITTED):
                rows = map(json.loads, work_folder.lines(f"{folder}/{name}"))
                found.update(Omission(**row) for row in rows)
    return sorted(found)


def _write_rejects(
    work_folder: WorkFolder, files: list[str]
) -> tuple[File, "collections.Counter[str]"]:
    """Writes all rejects, sorted by id; counts the licences of those that were dropped."""
    lines = itertools.chain.from_iterable(map(work_folder.lines, files))
    digest, size, dropped = hashlib.sha256(), 0, collections.Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="parcel-") as folder,
        work_folder.files.atomic_write(REJECTS) as path,
        path.open("wb") as out,
    ):
        for line in sorted_lines(lines, _order_of_rejects, folder):
            data = line.encode()
            digest.update(data)
            size += out.write(data)
            # Quotes in a text have backslashes, so few lines need be parsed.
            if f'"stage": "{LICENCE_STAGE}"' in line:
                dropped[dropped_licence(json.loads(line)) or ""] += 1
    return File(sha256=digest.hexdigest(), size=size), dropped


def _order_of_rejects(line: str) -> tuple[str, str, str]:
    row = json.loads(line)
    return row["id"], row["stage"], row["reason"]


def _check_dropped(name: str, dropped: "collections.Counter[str]", num_inputs: int) -> None:
    if not num_inputs:
        raise RejectRateError(f"{name} has no inputs.")
    if dropped.total() == num_inputs:
        licences = ", ".join(
            f"{licence or NONE_STATED} ({num:,})" for licence, num in dropped.most_common(5)
        )
        raise RejectRateError(
            f"{name}: all {num_inputs:,} inputs were dropped, because licences.allow has none of "
            f"their licences: {licences}. Allow one of these, or leave the source out."
        )


def _check_rejects(name: str, num_rejected: int, num_inputs: int, work_folder: WorkFolder) -> None:
    fault = work_folder.job.config.reject_fault(num_rejected, num_inputs)
    if fault and not num_inputs:
        raise RejectRateError(f"{name} {fault}.")
    if fault:
        # The most frequent reason is nearly always the only one that matters.
        rows = map(json.loads, work_folder.lines(REJECTS))
        counts = collections.Counter(
            (row["stage"], row["reason"]) for row in rows if dropped_licence(row) is None
        )
        (stage, reason), times = counts.most_common(1)[0]
        raise RejectRateError(
            f"{name}: {fault}; most often ({times} times) at {stage}: {reason}. "
            f"All are in {work_folder.job.work}/{REJECTS}."
        )
