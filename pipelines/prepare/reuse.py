"""Reuse of an earlier dataset's shards whose inputs have not changed."""

import dataclasses
import json
from collections.abc import Sequence

import pipelines.records.example as example
from infra.store.backend import StoreBackend
from infra.store.stored_folder import open_backend
from pipelines.prepare.job import PartShard, ShardReport, WorkFolder, file_of_shard
from pipelines.prepare.listing import piece_list_name
from pipelines.prepare.shards import join_digests, piece_name
from pipelines.records.dataset import REJECTS, shard_of
from pipelines.records.shapes import part_with_images, part_without_images
from pipelines.records.tfrecord import read_frames
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.transforms.inputs import InputDigest

REPORTS = "shards.json"
"""File beside a dataset's description: the `ShardReport` of every shard."""


def format_reports(reports: Sequence[ShardReport]) -> bytes:
    """Returns the text of `shards.json`, which does not depend on which shards were reused."""
    fields = [dataclasses.asdict(dataclasses.replace(report, is_taken=False)) for report in reports]
    for report in fields:
        if not report["num_composed"]:  # As in files that are older than transparency.
            del report["num_composed"]
        if not report["decoders"]:  # Of pictures, or where PyAV is asked for.
            del report["decoders"]
        for part_shard in report["parts"].values():
            if part_shard["licences"] is None:  # As in files that are older than licences.
                del part_shard["licences"]
    return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def split_earlier_rejects(work_folder: WorkFolder) -> None:
    """Writes the earlier dataset's rejects to one file per shard, for `reuse_shard`.

    They include inputs that could not be listed.
    """
    earlier = work_folder.job.earlier
    assert earlier is not None
    text = open_backend(earlier.store).read(f"{earlier.folder}/{REJECTS}").decode()
    by_shard: dict[int, list[str]] = {}
    for line in text.split("\n")[:-1]:
        shard = shard_of(json.loads(line)["id"], work_folder.job.config.num_shards)
        by_shard.setdefault(shard, []).append(f"{line}\n")
    for shard in range(work_folder.job.config.num_shards):
        work_folder.files.put(f"earlier/{shard:05d}", "".join(by_shard.get(shard, ())).encode())


def reuse_shard(work_folder: WorkFolder, shard: int, num_pieces: int) -> bool:
    """Links an earlier dataset's shard as the only piece of this shard, if the inputs are equal.

    To compare the inputs, the media of the items are read but not decoded.

    Args:
      work_folder: the worker's access to the run.
      shard: number of the shard.
      num_pieces: number of pieces that its items are listed in.

    Returns:
      Whether the shard was reused; its only piece is then written.
    """
    earlier, name = work_folder.job.earlier, piece_name(shard, 0)
    if earlier is None:
        return False
    if receipt := work_folder.receipt(f"{name}.json"):
        return ShardReport.from_json(receipt).is_taken
    # The shard's inputs then and now, as two digests of its items and of the bytes of their media.
    # Equal inputs, code and config give equal records, so the old files can stand for new ones.
    store = open_backend(earlier.store)
    old_report = _earlier_report(store.read(f"{earlier.folder}/{REPORTS}"), shard)
    ids: set[str] = set()
    if not old_report.inputs or old_report.inputs != _digest_inputs(
        work_folder, shard, num_pieces, ids
    ):
        return False
    # The earlier rejects of this shard include inputs that could not be listed, which are counted
    # with the lists. Those of its items belong to the piece.
    rejects = [
        line for line in work_folder.lines(f"earlier/{shard:05d}") if _reject_id(line) in ids
    ]
    if len(rejects) != old_report.num_rejects:  # An input that could not be listed had the same id.
        return False
    work = work_folder.job.work.removeprefix(f"{earlier.store}/")
    parts: dict[str, PartShard] = {}
    # In the old dataset a part may be called "caption" that is "caption@1" here, where the names
    # of parts are settled only when all shards are known (see `records.shapes`).
    for dataset_part, part_shard in old_report.parts.items():
        # A finished shard has a file for every part, empty or not; a piece only for those with
        # records.
        if not part_shard.num_records:
            continue
        shard_name = work_folder.job.shard_name(dataset_part, shard)
        try:
            part = _shape_of_part(store, f"{earlier.folder}/{shard_name}", dataset_part)
        except FileNotFoundError:  # `parcel gc` has deleted it meanwhile.
            return False
        parts[part] = part_shard
        links = {
            f"{name}.{part}{ending}": (file_of_shard(shard_name, ending), file)
            for ending, file in part_shard.files.items()
        }
        for piece, (source, file) in links.items():
            try:
                store.link(f"{earlier.folder}/{source}", f"{work}/{piece}", file)
            except FileNotFoundError:  # As above.
                return False
    if rejects:
        work_folder.files.put(f"{name}.rejects", "".join(rejects).encode())
    # Last, as every receipt: the files that it stands for are linked by now.
    report = dataclasses.replace(old_report, parts=parts, is_taken=True)
    work_folder.files.put(f"{name}.json", report.to_json())
    return True


def _shape_of_part(store: StoreBackend, shard: str, dataset_part: str) -> str:
    """Returns the full name of a part; all its records have as many images as the first."""
    with store.open(shard) as file:
        try:
            _, data = next(read_frames(file))
        except ValueError as error:
            raise ValueError(f"{store.uri}/{shard}: {error}; prepare it again.") from None
    return part_with_images(
        part_without_images(dataset_part), len(example.decode_example(data).window())
    )


def _earlier_report(text: bytes, shard: int) -> ShardReport:
    return ShardReport.from_json(json.dumps(json.loads(text)[shard]).encode())


def _digest_inputs(work_folder: WorkFolder, shard: int, num_pieces: int, ids: set[str]) -> str:
    """Returns the digest of a shard's inputs as they are now; adds its items' ids to `ids`."""
    read, digests = MediaReader(work_folder.data_root, work_folder.files), []
    for piece in range(num_pieces):
        inputs = InputDigest(read)
        items = map(Item.from_json, work_folder.lines(piece_list_name(shard, piece)))
        for item in read.expected(items):
            inputs.add(item)
            ids.add(item.id)
        digests.append(inputs.hexdigest())
    return join_digests(digests)


def _reject_id(line: str) -> str:
    return json.loads(line)["id"]
