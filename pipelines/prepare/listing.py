"""A source as shards of work: lists of its would-be records, spilled to the work folder."""

import heapq
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from json.decoder import scanstring  # pyright: ignore[reportAttributeAccessIssue]
from typing import NamedTuple

import google_crc32c

from pipelines.prepare.job import Desk, load
from pipelines.records.dataset import shard_of
from pipelines.records.hashing import stable_hash
from pipelines.records.lines import sorted_lines
from pipelines.records.schema import Reject
from pipelines.sources.corpus import Spool
from pipelines.sources.item import Item

PIECE = 2000
"""Most images in a piece of a shard: half a minute's work, since no runner splits an element."""

_CLIP = 40
"""A clip takes as long as so many images, and seldom three times that."""

_VIDEO = '"video": true'
"""In a line, of a clip; in a text its quotes would have backslashes."""

_DIGITS = 5
"""Of a shard's number at the head of a line, while lines are sorted."""


class Listed(NamedTuple):
    """What was listed: items, inputs that could not even be listed, names of parts."""

    num_items: int = 0
    num_rejects: int = 0
    parts: frozenset[str] = frozenset()

    def __add__(self, other: "Listed") -> "Listed":  # type: ignore[override]
        return Listed(
            self.num_items + other.num_items,
            self.num_rejects + other.num_rejects,
            self.parts | other.parts,
        )


def list_units(desk: Desk, number: int, units: Sequence[str]) -> Listed:
    """Lists the items of some units in the list of that number; memory does not grow with them."""
    done = listed(desk, number)
    if done is not None:
        return done
    name, num_shards = f"{number:05d}", desk.job.config.num_shards
    num_items, num_rejects, parts = 0, 0, set()
    ends, crcs = [0] * num_shards, [0] * num_shards

    with (
        tempfile.TemporaryDirectory(prefix="parcel-") as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder) as rejected,
        desk.files.writing(f"lists/{name}") as path,
        desk.files.writing(f"unpacked/{name}") as unpacked,
        path.open("wb") as out,
        unpacked.open("wb") as spooled,
    ):

        def lines() -> Iterator[str]:
            nonlocal num_items, num_rejects
            for one in found_in(desk, units, Spool(spooled, f"unpacked/{name}")):
                one, line = line_of(one)
                if isinstance(one, Reject):
                    rejected.write(line)
                    num_rejects += 1
                else:
                    num_items += 1
                    parts.add(one.part)
                    yield f"{shard_of(one.id, num_shards):0{_DIGITS}d}{line}"

        for line in sorted_lines(lines(), _shard_and_id, folder):
            shard, data = int(line[:_DIGITS]), line[_DIGITS:].encode()
            ends[shard] += out.write(data)
            crcs[shard] = google_crc32c.extend(crcs[shard], data)
        if num_rejects:
            rejected.seek(0)
            with desk.files.writing(f"lists/{name}.rejects") as path_of_rejects:
                path_of_rejects.write_text(rejected.read(), encoding="utf-8", newline="\n")
    receipt: dict[str, object] = {"num_items": num_items, "num_rejects": num_rejects}
    receipt["parts"] = sorted(parts)
    receipt |= {"ends": list(itertools.accumulate(ends)), "crc32c": crcs}
    desk.files.put(f"lists/{name}.json", json.dumps(receipt).encode())
    return Listed(num_items, num_rejects, frozenset(parts))


def listed(desk: Desk, number: int) -> Listed | None:
    """Returns what a finished list holds; None if it is not finished."""
    found = load(desk.receipt(f"lists/{number:05d}.json"))
    if found is None:
        return None
    return Listed(found["num_items"], found["num_rejects"], frozenset(found["parts"]))


def found_in(desk: Desk, units: Sequence[str], spool: Spool) -> Iterator[Item | Reject]:
    """Yields what some units hold, those of the smallest hashes if there is a limit."""
    job, corpus = desk.job, desk.corpus(spool)
    found = itertools.chain.from_iterable(
        job.spec.read_unit(corpus, job.split, unit) for unit in units
    )
    if job.config.limit is None:
        return found
    smallest = heapq.nsmallest(
        job.config.limit, found, key=lambda one: (stable_hash(one.id), one.id)
    )
    return iter(smallest)


def cut_shard(desk: Desk, shard: int, num_lists: int) -> int:
    """Writes the items of a shard in their order, in pieces; returns how many pieces."""
    receipt = f"todo/{shard:05d}.json"
    done = load(desk.receipt(receipt))
    if done is not None:
        return done
    lists = (_of_shard(desk, number, shard) for number in range(num_lists))
    number = 0
    with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
        # Not merged as they come: there may be more lists than files can be open, or than fit.
        lines = sorted_lines(itertools.chain.from_iterable(lists), _id_of, folder)
        for number, piece in enumerate(_pieces(lines)):
            with (
                desk.files.writing(work_file(shard, number)) as path,
                path.open("w", encoding="utf-8", newline="\n") as out,
            ):
                out.writelines(piece)
    desk.files.put(receipt, json.dumps(number + 1).encode())
    return number + 1


def work_file(shard: int, piece: int) -> str:
    """Returns the name of the list of a piece's items."""
    return f"todo/{shard:05d}-{piece:05d}"


def line_of(one: Item | Reject) -> tuple[Item | Reject, str]:
    """Returns what was found as a line, a reject if it cannot be: half a UTF-16 pair in JSON."""
    line = f"{one.to_json()}\n"
    try:
        line.encode()
        return one, line
    except UnicodeEncodeError:
        source = one.media[0].source if isinstance(one, Item) else one.source
        reason = "text is not Unicode" if isinstance(one, Item) else one.reason
        identity, reason, source = (
            field.encode("utf-8", "backslashreplace").decode() for field in (one.id, reason, source)
        )
        reject = Reject(id=identity, stage="read", reason=reason, source=source)
        return reject, f"{reject.to_json()}\n"


def _of_shard(desk: Desk, number: int, shard: int) -> Iterator[str]:
    """Yields the lines of a list that are of one shard."""
    receipt = load(desk.receipt(f"lists/{number:05d}.json"))
    ends = receipt["ends"]
    start = ends[shard - 1] if shard else 0
    return desk.section(f"lists/{number:05d}", start, ends[shard], receipt["crc32c"][shard])


def _pieces(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the lines in pieces, at least one; items of the same pixels stay together."""
    piece: list[str] = []
    weight = 0
    for _, same in itertools.groupby(lines, _pixels_of):
        if weight >= PIECE:
            yield piece
            piece, weight = [], 0
        for line in same:
            piece.append(line)
            weight += _CLIP if _VIDEO in line else 1
    yield piece


def _pixels_of(line: str) -> str:
    return _id_of(line).partition("#")[0]


def _id_of(line: str) -> str:
    """Returns the id of an item's line without parsing the rest: `{"id": "web/0/1#caption", …`."""
    return scanstring(line, 8)[0]


def _shard_and_id(line: str) -> tuple[str, str]:
    return line[:_DIGITS], scanstring(line, _DIGITS + 8)[0]
