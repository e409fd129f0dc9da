"""Writes shards of records piece by piece, then joins them; both are Beam steps in `steps`."""

import collections
import contextlib
import hashlib
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

import pipelines.records.example as example
from infra.store.backend import StoreBackend
from infra.store.disk import Disk
from infra.store.manifest import File
from pipelines.prepare.job import PartShard, ShardReport, WorkFolder, file_of_shard
from pipelines.prepare.listing import items_of_units, line_of_item, piece_list_name
from pipelines.records.licence import LICENCES_ENDING, NO_LICENCE, LicenceRuns
from pipelines.records.schema import Record, Reject
from pipelines.records.shapes import part_names, part_with_images
from pipelines.records.tfrecord import INDEX_ENDING, Frames
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.transforms.decode import DecodeMedia
from pipelines.transforms.inputs import InputDigest
from pipelines.transforms.make_records import MakeRecords
from pipelines.video.client import VideoChild


def write_piece(work_folder: WorkFolder, shard: int, piece: int, video: VideoChild) -> ShardReport:
    """Writes the records of a piece's list; returns its report, or that of an earlier try."""
    name = piece_name(shard, piece)
    if receipt := work_folder.receipt(f"{name}.json"):
        return ShardReport.from_json(receipt)
    # item ─▶ its encoded pictures, fetched ahead ─▶ pixels ─▶ record. The digest sees each item on
    # its way, so that a later run can tell whether this shard would come out the same.
    media_reader = MediaReader(work_folder.data_root, work_folder.files)
    items = map(Item.from_json, work_folder.lines(piece_list_name(shard, piece)))
    inputs = InputDigest(media_reader)
    record_maker = MakeRecords(DecodeMedia(media_reader, work_folder.job.decode, video), inputs)
    results = record_maker(media_reader.expected(items))
    return _write_records(work_folder, name, record_maker, results, inputs)


def write_archives(
    work_folder: WorkFolder, shard: int, piece: int, units: Sequence[str], video: VideoChild
) -> ShardReport:
    """Does as `write_piece` for the records of some archives, read once and in order."""
    name = piece_name(shard, piece)
    if receipt := work_folder.receipt(f"{name}.json"):
        return ShardReport.from_json(receipt)
    # What has to be unpacked goes into a folder of this worker and is read back at once; no other
    # worker needs it, so it never reaches the work folder.
    with (
        tempfile.TemporaryDirectory(prefix="parcel-") as folder,
        (Path(folder) / "unpacked").open("wb", buffering=0) as unpacked,
    ):
        media_reader = MediaReader(work_folder.data_root, Disk(Path(folder), durable=False))
        record_maker = MakeRecords(DecodeMedia(media_reader, work_folder.job.decode, video))
        corpus = work_folder.corpus(UnpackedMedia(unpacked, "unpacked"))
        items = items_of_units(work_folder.job, corpus, units)
        return _write_records(
            work_folder,
            name,
            record_maker,
            _make_records(record_maker, (line_of_item(entry)[0] for entry in items)),
            corpus=corpus,
        )


def join_shard(
    work_folder: WorkFolder, shard: int, num_pieces: int, parts: Iterable[str]
) -> ShardReport:
    """Joins the pieces of a shard to one file per part; the file of an absent part is empty.

    Args:
      work_folder: the worker's access to the run.
      shard: number of the shard.
      num_pieces: number of its pieces.
      parts: `part_with_images` names of the parts in all shards.
    """
    receipt = f"shards/{shard:05d}.json"
    if earlier_report := work_folder.receipt(receipt):
        return ShardReport.from_json(earlier_report)
    # pieces/00003-00000.caption@1 ┐
    # pieces/00003-00001.caption@1 ┴▶ shards/caption-00003-of-00008.tfrecord
    # pieces/00003-00001.vqa@1     ─▶ shards/vqa-00003-of-00008.tfrecord
    pieces = [piece_name(shard, piece) for piece in range(num_pieces)]
    reports = [ShardReport.from_json(work_folder.files.read(f"{name}.json")) for name in pieces]
    is_taken = reports[0].is_taken  # A reused shard has one piece.
    shard_report = ShardReport(
        num_items=sum(report.num_items for report in reports),
        num_rejects=sum(report.num_rejects for report in reports),
        parts={
            dataset_part: _join_pieces(
                work_folder.files,
                f"shards/{work_folder.job.shard_name(dataset_part, shard)}",
                {
                    f"{name}.{part}": report.parts[part]
                    for name, report in zip(pieces, reports, strict=True)
                    if part in report.parts
                },
            )
            for part, dataset_part in part_names(parts).items()
        },
        # A reused shard keeps the digest of its inputs, which are the same.
        inputs=reports[0].inputs
        if is_taken
        else join_digests([report.inputs for report in reports]),
        is_taken=is_taken,
        num_composed=sum(report.num_composed for report in reports),
        decoders=add_counts(report.decoders for report in reports),
    )
    # One file for the rejects of all parts: what part they would have been of is not known.
    if shard_report.num_rejects:
        with _open_text(work_folder.files, f"shards/{shard:05d}.rejects") as out:
            for name, report in zip(pieces, reports, strict=True):
                if report.num_rejects:
                    out.writelines(work_folder.lines(f"{name}.rejects"))
    work_folder.files.put(receipt, shard_report.to_json())
    return shard_report


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sums of several counts, by name."""
    total: collections.Counter[str] = collections.Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def join_digests(digests: Sequence[str]) -> str:
    """Returns the digest of a shard's inputs from its pieces' digests; "" if one is unknown."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest() if all(digests) else ""


def piece_name(shard: int, piece: int) -> str:
    """Returns the prefix of the names of a piece's files."""
    return f"pieces/{shard:05d}-{piece:05d}"


def _make_records(
    record_maker: MakeRecords, items: Iterable[Item | Reject]
) -> Iterator[tuple[Item | None, Record | Reject]]:
    """Yields each item with its record or reject, in the order found."""
    for item in items:
        if isinstance(item, Reject):
            yield None, item
        else:
            yield item, record_maker.record_of_unsorted(item)


def _write_records(
    work_folder: WorkFolder,
    name: str,
    record_maker: MakeRecords,
    results: Iterable[tuple[Item | None, Record | Reject]],
    inputs: InputDigest | None = None,
    corpus: Corpus | None = None,
) -> ShardReport:
    """Writes the records, the rejects and, last, the report of a piece.

    Args:
      work_folder: the worker's access to the run.
      name: prefix of the names of the piece's files.
      record_maker: what makes the results; it counts the records that show a background.
      results: each item with its record or reject.
      inputs: digest of the items; None computes none.
      corpus: corpus that the items are read from meanwhile; None if they were listed before.
    """
    num_items = num_rejects = 0
    # Files are opened at the first record that needs them: which parts a piece has shows only
    # while its items are decoded.
    frames: dict[str, Frames] = {}
    licences = collections.defaultdict[str, LicenceRuns](LicenceRuns)
    with contextlib.ExitStack() as stack:
        rejects: TextIO | None = None
        for item, result in results:
            num_items += 1
            if isinstance(result, Reject):
                if rejects is None:
                    rejects = stack.enter_context(_open_text(work_folder.files, f"{name}.rejects"))
                print(result.to_json(), file=rejects)
                num_rejects += 1
            else:
                assert item is not None
                # How many images a record has shows only now, and decides its part: caption@1,
                # caption@16.
                part = part_with_images(item.part, len(result.window()))
                if part not in frames:
                    out = stack.enter_context(_open_bytes(work_folder.files, f"{name}.{part}"))
                    frames[part] = Frames(out)
                frames[part].write(example.encode_example(result))
                licences[part].add(result.licence)
    # All files are closed by now: their sizes and digests are final.
    report = ShardReport(
        num_items=num_items,
        num_rejects=num_rejects,
        parts={
            part: _write_index(
                work_folder.files, f"{name}.{part}{INDEX_ENDING}", part_frames, licences[part]
            )
            for part, part_frames in frames.items()
        },
        inputs=inputs.hexdigest() if inputs else "",
        num_composed=record_maker.num_composed,
        decoders=dict(record_maker.decoders) if work_folder.job.config.decoder == "decord" else {},
    )
    if corpus is not None:
        work_folder.note_omissions(name, corpus)
    work_folder.files.put(f"{name}.json", report.to_json())
    return report


def _join_pieces(files: StoreBackend, name: str, pieces: dict[str, PartShard]) -> PartShard:
    """Stores the records of several pieces as one shard."""
    index = file_of_shard(name, INDEX_ENDING)
    # Most shards of small datasets have one piece: the same bytes under another name, a link.
    if len(pieces) == 1:
        ((source, part_shard),) = pieces.items()
        for ending, file in part_shard.files.items():
            files.link(f"{source}{ending}", file_of_shard(name, ending), file)
        return part_shard
    licences = LicenceRuns()
    with _open_bytes(files, name) as out:
        frames = Frames(out)
        for source, part_shard in pieces.items():
            # Read whole, since only then a bucket's checksum is verified; pieces are small enough.
            frames.extend(io.BytesIO(files.read(source)), files.read(f"{source}{INDEX_ENDING}"))
            if part_shard.licences is None:
                licences.add(NO_LICENCE, part_shard.num_records)
            else:
                text = files.read(f"{source}{LICENCES_ENDING}")
                licences.extend(LicenceRuns.from_json(text))
    return _write_index(files, index, frames, licences)


def _write_index(
    files: StoreBackend, name: str, frames: Frames, licences: LicenceRuns
) -> PartShard:
    """Stores the index, and any licences, of records that are already stored."""
    with _open_bytes(files, name) as out:
        out.write(frames.index)
    licences_file = None
    if licences.is_stated:
        text = licences.to_json()
        files.put(f"{name.removesuffix(INDEX_ENDING)}{LICENCES_ENDING}", text)
        licences_file = File(sha256=hashlib.sha256(text).hexdigest(), size=len(text))
    return PartShard(
        num_records=len(frames),
        data=File(sha256=frames.sha256, size=frames.size),
        index=File(sha256=hashlib.sha256(frames.index).hexdigest(), size=len(frames.index)),
        licences=licences_file,
    )


@contextlib.contextmanager
def _open_bytes(files: StoreBackend, name: str) -> Iterator[BinaryIO]:
    with files.atomic_write(name) as path, path.open("wb") as file:
        yield file


@contextlib.contextmanager
def _open_text(files: StoreBackend, name: str) -> Iterator[TextIO]:
    with files.atomic_write(name) as path, path.open("w", encoding="utf-8", newline="\n") as file:
        yield file
