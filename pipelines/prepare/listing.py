"""Lists the items of a source into the work folder, and cuts the lists into pieces of shards."""

import array
import heapq
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json.decoder import scanstring  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from pipelines.prepare.job import PrepareJob, WorkFolder, parse_receipt
from pipelines.records.dataset import shard_of
from pipelines.records.hashing import stable_hash
from pipelines.records.lines import sorted_lines
from pipelines.records.schema import Reject
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia, is_unicode, printable_name
from pipelines.sources.reading.item import Item, with_licence
from pipelines.sources.reading.slicing import slice_bounds

PIECE = 2000
"""Most images in a piece of a shard: half a minute's work, since no runner splits an element."""

_CLIP = 40
"""Images that take as long as one clip; a clip seldom takes three times that."""

_VIDEO = '"video": true'
"""Marks the line of a clip; inside a text its quotes would have backslashes."""

_DIGITS = 5
"""Digits of the shard number that precedes a line while lines are sorted."""

_EXCERPT = 80
"""Longest excerpt of a text that is not Unicode [characters]."""

_LISTS, _CANDIDATES, _BOUNDS = "lists", "found", "found/bounds.json"
"""Folders and a file of the work folder; see `job`."""


class ListTotals(NamedTuple):
    """Totals of a list: items, inputs that could not even be listed, names of the dataset's parts.

    These are what an item's `part` names; `job.part` is another thing: a slice of the split.
    """

    num_items: int = 0
    num_rejects: int = 0
    parts: frozenset[str] = frozenset()

    def __add__(self, other: "ListTotals") -> "ListTotals":  # type: ignore[override]
        return ListTotals(
            self.num_items + other.num_items,
            self.num_rejects + other.num_rejects,
            self.parts | other.parts,
        )


def list_units(work_folder: WorkFolder, number: int, units: Sequence[str]) -> ListTotals:
    """Writes the items of some units to list `number`; memory does not grow with them.

    If only a part of the split is taken, the items are candidates, of which `narrow_list` makes the
    list.
    """
    folder = _LISTS if work_folder.job.part is None else _CANDIDATES
    # A receipt means that this list was written before, by a worker whose result was lost or by an
    # earlier run: the work is skipped.
    totals = list_totals(work_folder, number, folder)
    if totals is not None:
        return totals
    with (
        work_folder.files.atomic_write(f"unpacked/{number:05d}") as unpacked,
        unpacked.open("wb") as unpacked_file,
    ):
        corpus = work_folder.corpus(UnpackedMedia(unpacked_file, f"unpacked/{number:05d}"))
        items = items_of_units(work_folder.job, corpus, units)
        receipt = _write_list(work_folder, f"{folder}/{number:05d}", map(line_of_item, items))
    work_folder.note_omissions(f"{folder}/{number:05d}", corpus)
    work_folder.files.put(f"{folder}/{number:05d}.json", json.dumps(receipt).encode())
    return _totals_of_receipt(receipt)


def narrow_list(work_folder: WorkFolder, number: int, num_lists: int) -> ListTotals:
    """Makes a list from its candidates that belong to the part, once all are listed."""
    totals = list_totals(work_folder, number)
    if totals is not None:
        return totals
    # The part is the ids whose hashes lie between two bounds, so each list can be narrowed alone.
    #
    #   hashes of all candidates, sorted:  03 1f 2c 58 77 9a d0     part [:3] ─▶ bounds 03, 2c
    first, last = _part_bounds(work_folder, num_lists)
    candidates, name = (
        parse_receipt(work_folder.receipt(f"{_CANDIDATES}/{number:05d}.json")),
        f"{number:05d}",
    )

    def lines_in_part() -> Iterator[tuple[Item | Reject, str]]:
        for shard in range(work_folder.job.config.num_shards):
            for line in _lines_of_shard(work_folder, number, shard, _CANDIDATES):
                if first <= stable_hash(item_id(line)) <= last:
                    yield Item.from_json(line), line
        for line in (
            work_folder.lines(f"{_CANDIDATES}/{name}.rejects") if candidates["num_rejects"] else ()
        ):
            if first <= stable_hash(item_id(line)) <= last:
                yield Reject(**json.loads(line)), line

    # Written like any list, so that later steps need not know of the part.
    receipt = _write_list(work_folder, f"{_LISTS}/{name}", lines_in_part())
    work_folder.files.put(f"{_LISTS}/{name}.json", json.dumps(receipt).encode())
    return _totals_of_receipt(receipt)


def _part_bounds(work_folder: WorkFolder, num_lists: int) -> tuple[int, int]:
    """Returns the smallest and the largest hash of the ids in the part.

    The first worker that needs them computes them and stores the result for the others. It takes
    eight bytes of memory for each candidate of the corpus, and as many to sort them.
    """
    assert work_folder.job.part is not None
    bounds = parse_receipt(work_folder.receipt(_BOUNDS))
    if bounds is None:
        names = (f"{_CANDIDATES}/{number:05d}.ranks" for number in range(num_lists))
        ranks = np.concatenate(
            [np.frombuffer(work_folder.files.read(name), "<u8") for name in names]
        )
        ranks.sort()
        ranks_in_part = ranks[slice_bounds(work_folder.job.part, len(ranks))]
        bounds = [int(ranks_in_part[0]), int(ranks_in_part[-1])] if len(ranks_in_part) else [1, 0]
        work_folder.files.put(_BOUNDS, json.dumps(bounds).encode())
    first, last = bounds
    return first, last


def _write_list(
    work_folder: WorkFolder, path: str, entries: Iterable[tuple[Item | Reject, str]]
) -> dict[str, Any]:
    """Writes a list of items and, beside it, the rejects; returns the list's receipt."""
    # Layout of a list of 2 shards; `ends` and the checksums let a worker read one shard's items
    # from a bucket by a single range:
    #
    #   {"id": "a#1", …}  ┐
    #   {"id": "d#1", …}  ┘ shard 0: bytes 0 .. ends[0]
    #   {"id": "b#1", …}    shard 1: bytes ends[0] .. ends[1]
    num_shards = work_folder.job.config.num_shards
    num_items, num_rejects, parts = 0, 0, set()
    ends, crcs = [0] * num_shards, [0] * num_shards
    ranks = array.array("Q") if path.startswith(_CANDIDATES) else None
    with (
        tempfile.TemporaryDirectory(prefix="parcel-") as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder) as rejected,
        work_folder.files.atomic_write(path) as local,
        local.open("wb") as out,
    ):

        def lines() -> Iterator[str]:
            nonlocal num_items, num_rejects
            for entry, line in entries:
                # Only where a part of the split is taken: the bounds of the part are two of these
                # numbers.
                if ranks is not None:
                    ranks.append(stable_hash(entry.id))
                if isinstance(entry, Reject):
                    rejected.write(line)
                    num_rejects += 1
                else:
                    num_items += 1
                    parts.add(entry.part)
                    # The shard in front of the line makes one sort do for both, shard and id; it is
                    # cut off below.
                    yield f"{shard_of(entry.id, num_shards):0{_DIGITS}d}{line}"

        # Sorted by shard first, so that a shard's items are one byte range with one checksum.
        for line in sorted_lines(lines(), _shard_and_item_id, folder):
            shard, data = int(line[:_DIGITS]), line[_DIGITS:].encode()
            ends[shard] += out.write(data)
            crcs[shard] = google_crc32c.extend(crcs[shard], data)
        if num_rejects:
            rejected.seek(0)
            with work_folder.files.atomic_write(f"{path}.rejects") as path_of_rejects:
                path_of_rejects.write_text(rejected.read(), encoding="utf-8", newline="\n")
    if ranks is not None:
        work_folder.files.put(f"{path}.ranks", np.asarray(ranks, "<u8").tobytes())
    receipt: dict[str, Any] = {"num_items": num_items, "num_rejects": num_rejects}
    receipt["parts"] = sorted(parts)
    return receipt | {"ends": list(itertools.accumulate(ends)), "crc32c": crcs}


def list_totals(work_folder: WorkFolder, number: int, folder: str = _LISTS) -> ListTotals | None:
    """Returns the totals of a finished list; None if it is not finished."""
    receipt = parse_receipt(work_folder.receipt(f"{folder}/{number:05d}.json"))
    return None if receipt is None else _totals_of_receipt(receipt)


def _totals_of_receipt(receipt: Mapping[str, Any]) -> ListTotals:
    return ListTotals(receipt["num_items"], receipt["num_rejects"], frozenset(receipt["parts"]))


def items_of_units(
    job: PrepareJob, corpus: Corpus, units: Sequence[str]
) -> Iterator[Item | Reject]:
    """Yields the items of some units; with a `limit`, those whose ids have the smallest hashes."""
    items = itertools.chain.from_iterable(
        job.spec.read_unit(corpus, job.split, unit) for unit in units
    )
    if job.licence.is_stated:
        items = (with_licence(item, job.licence) for item in items)
    if job.licences is not None:
        items = job.licences.checked(items)
    if job.config.limit is None or job.part is not None:
        return items
    # A limit without a part: `plan_job` makes a single list then, so the smallest hashes of this
    # list are those of the dataset.
    smallest = heapq.nsmallest(
        job.config.limit, items, key=lambda item: (stable_hash(item.id), item.id)
    )
    return iter(smallest)


def cut_shard(work_folder: WorkFolder, shard: int, num_lists: int) -> int:
    """Writes the items of a shard, sorted by id, in pieces; returns the number of pieces."""
    receipt = f"todo/{shard:05d}.json"
    num_pieces = parse_receipt(work_folder.receipt(receipt))
    if num_pieces is not None:
        return num_pieces
    # Lines go to the shard's pieces in the order of their ids, which the records keep. A shard is
    # cut because a runner cannot split an element: one piece is what one worker does at a time.
    lists = (_lines_of_shard(work_folder, number, shard) for number in range(num_lists))
    number = 0
    with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
        # Sorted again, not merged: merging needs all lists open at once, which may be too many.
        lines = sorted_lines(itertools.chain.from_iterable(lists), item_id, folder)
        for number, piece in enumerate(_cut_into_pieces(lines)):
            with (
                work_folder.files.atomic_write(piece_list_name(shard, number)) as path,
                path.open("w", encoding="utf-8", newline="\n") as out,
            ):
                out.writelines(piece)
    work_folder.files.put(receipt, json.dumps(number + 1).encode())
    return number + 1


def piece_list_name(shard: int, piece: int) -> str:
    """Returns the name of the work file that lists a piece's items."""
    return f"todo/{shard:05d}-{piece:05d}"


def line_of_item(entry: Item | Reject) -> tuple[Item | Reject, str]:
    """Returns an item or reject with its line of JSON.

    An item whose text cannot be encoded (half a UTF-16 pair in JSON) becomes a reject.
    """
    # Half a surrogate pair passes through JSON but not through UTF-8. The line is written as UTF-8,
    # so it would bring down the whole list; as a reject it costs one record.
    line = f"{entry.to_json()}\n"
    try:
        line.encode()
        return entry, line
    except UnicodeEncodeError:
        reason = _reason_not_unicode(entry) if isinstance(entry, Item) else entry.reason
        identity, reason, source = (
            field.encode("utf-8", "backslashreplace").decode()
            for field in (entry.id, reason, entry.source)
        )
        reject = Reject(id=identity, stage="read", reason=reason, source=source)
        return reject, f"{reject.to_json()}\n"


def _reason_not_unicode(item: Item) -> str:
    """Returns which texts of an item cannot be encoded."""
    texts = {
        name: json.dumps(value, ensure_ascii=False)
        for name, value in json.loads(item.to_json()).items()
    }
    wrong = [name for name, text in texts.items() if not is_unicode(text)]
    names = ", ".join(wrong)
    return f"not Unicode in {names}: {printable_name(texts[wrong[0]])[:_EXCERPT]}"


def _lines_of_shard(
    work_folder: WorkFolder, number: int, shard: int, folder: str = _LISTS
) -> Iterator[str]:
    """Yields the lines of a list that belong to one shard."""
    receipt = parse_receipt(work_folder.receipt(f"{folder}/{number:05d}.json"))
    ends = receipt["ends"]
    start = ends[shard - 1] if shard else 0
    return work_folder.section(
        f"{folder}/{number:05d}", start, ends[shard], receipt["crc32c"][shard]
    )


def _cut_into_pieces(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the lines in pieces, at least one piece; items of the same pixels stay together."""
    piece: list[str] = []
    weight = 0
    for _, group in itertools.groupby(lines, pixels_key):
        # Cut only between groups: items of one picture in two pieces would decode it twice.
        if weight >= PIECE:
            yield piece
            piece, weight = [], 0
        for line in group:
            piece.append(line)
            weight += _CLIP if _VIDEO in line else 1
    yield piece


def pixels_key(line: str) -> str:
    """Returns the part of an item's id before "#"; items that share it share their pixels."""
    return item_id(line).partition("#")[0]


def item_id(line: str) -> str:
    """Returns the id of an item's line without parsing the rest: `{"id": "web/0/1#caption", …`."""
    return scanstring(line, 8)[0]


def _shard_and_item_id(line: str) -> tuple[str, str]:
    return line[:_DIGITS], scanstring(line, _DIGITS + 8)[0]
