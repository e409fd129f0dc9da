"""A prepared dataset on disk: named parts of sharded records, and the rejects.

dataset.json                     parts, counts
caption-00000-of-00002.tfrecord  shards of the part "caption"
caption-00000-of-00002.idx       their offset indexes
caption-00000-of-00002.licences  their licences; absent if no record of the shard states one
rejects.jsonl                    one `Reject` a line, sorted by id
omissions.jsonl                  one `Omission` a line, sorted; absent if there are none
"""

import bisect
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import pipelines.records.example as example
from infra.store.digest import file_sha256, listing_sha256
from infra.store.manifest import validate_path
from infra.store.stored_folder import StoredFolder, open_stored_folder
from infra.typed_json import parse_typed, read_typed_lines
from pipelines.records.blocks import BLOCK_BYTES, MAX_BLOCK, block_cache
from pipelines.records.hashing import stable_hash
from pipelines.records.licence import (
    LICENCES_ENDING,
    LicenceCount,
    LicenceRuns,
    licences_path,
)
from pipelines.records.schema import Omission, Record, Reject
from pipelines.records.tfrecord import Shard

DESCRIPTION = "dataset.json"
REJECTS = "rejects.jsonl"
OMISSIONS = "omissions.jsonl"

_BLOCKS_AHEAD = 16
"""Blocks fetched ahead while records are read in order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartInfo:
    """One part: its shards in order, and the number of records in each."""

    shards: tuple[str, ...]
    num_records: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shards) != len(self.num_records) or any(num < 0 for num in self.num_records):
            raise ValueError(
                f"num_records must be a number for each of {len(self.shards)} shards, got "
                f"{self.num_records!r:.60}."
            )
        for shard in self.shards:  # Each becomes part of a path that is read.
            validate_path(shard)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Content of `dataset.json`. num_inputs = records + rejects, always.

    Attributes:
      name: the dataset's name, for example "mixture" or "chartqa/test".
      parts: part name -> shards; one part per task of a mixture, one for a benchmark split.
      num_inputs: raw examples read.
      num_rejected: raw examples rejected; they are in `rejects.jsonl`.
      image_px: side of every stored image [pixels].
      num_composed: records as prepared in which a background shows through transparent pixels.
      decoders: decoder -> records as prepared whose clips it decoded; empty unless decord is
        wanted.
      num_dropped: rejected examples whose licence is not among those that are allowed.
      licences: records per licence; empty if no record states one.
    """

    name: str
    parts: dict[str, PartInfo]
    num_inputs: int
    num_rejected: int
    image_px: int
    num_composed: int = 0
    decoders: dict[str, int] = dataclasses.field(default_factory=dict)
    num_dropped: int = 0
    licences: tuple[LicenceCount, ...] = ()

    def __post_init__(self) -> None:
        if self.num_records + self.num_rejected != self.num_inputs:
            raise ValueError(
                f"dataset {self.name!r} lost inputs: {self.num_inputs} read, {self.num_records} "
                f"written, {self.num_rejected} rejected."
            )

    @property
    def num_records(self) -> int:
        """Records over all parts."""
        return sum(sum(part.num_records) for part in self.parts.values())

    @property
    def licence_counts(self) -> tuple[LicenceCount, ...]:
        """Records per licence, those that state none included."""
        return self.licences or (LicenceCount(records=self.num_records),)

    def to_json(self) -> str:
        """Returns the text of `dataset.json`."""
        fields = dataclasses.asdict(self)
        for name in ("num_composed", "decoders", "num_dropped", "licences"):
            if not fields[name]:  # As in files that are older than it.
                del fields[name]
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"

    def write(self, directory: str | Path) -> None:
        """Writes `dataset.json`."""
        (Path(directory) / DESCRIPTION).write_text(self.to_json())


def read_info(folder: str | Path) -> DatasetInfo:
    """Reads the `dataset.json` of a folder."""
    path = Path(folder) / DESCRIPTION
    return parse_info(path.read_bytes(), str(path))


def parse_info(text: str | bytes, name: str = DESCRIPTION) -> DatasetInfo:
    """Returns the description in the text of a `dataset.json`.

    Raises:
      ValueError: if it is none; the message begins with `name`.
    """
    return parse_typed(DatasetInfo, text, name)


class Part(Sequence[Record]):
    """The records of one part, by position: shard after shard.

    From a place that is not on this machine, records are read in blocks. Safe to share between
    threads.

    Attributes:
      num_bytes: size of all its shards [bytes].
    """

    def __init__(self, place: StoredFolder, name: str, info: PartInfo) -> None:
        self._place, self._name = place, name
        self._shards = [Shard(shard, place) for shard in info.shards]
        for shard, expected in zip(self._shards, info.num_records, strict=True):
            if len(shard) != expected:
                raise ValueError(f"{shard.path} holds {len(shard)} records, expected {expected}.")
        # Shards of 3, 0 and 2 records have the ends [3, 3, 5]: position 3 is record 0 of shard 2.
        self._ends = list(itertools.accumulate(info.num_records))
        self.num_bytes = sum(shard.num_bytes(0, len(shard)) for shard in self._shards)
        self.read_by(block_len(self.num_bytes, len(self)), 0)

    def read_by(self, block: int, start: int) -> None:
        """Sets the length of the blocks and where they begin.

        Args:
          block: length of each block [records].
          start: position of this part's first record in the sequence that is cut into blocks.
        """
        self._block, self._start = block, start

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, position: int) -> Record:  # type: ignore[override]
        if not 0 <= position < len(self):
            raise IndexError(f"position must be in 0..{len(self) - 1}, got {position}.")
        if self._place.is_local:
            ((shard, start, stop),) = self._pieces(position, position + 1)
            (data,) = shard.read(start, stop)
        else:
            start, stop = self._block_of(position)
            data = self._fetch_record_block(start, stop).result()[position - start]
        try:
            return example.decode_example(data)
        except ValueError as error:
            ((shard, start, _),) = self._pieces(position, position + 1)
            raise ValueError(f"record {start} of {shard.path}: {error}") from None

    def __iter__(self) -> Iterator[Record]:
        return self._records_between(0, len(self), _BLOCKS_AHEAD)

    def shards(self) -> Iterator[Iterator[Record]]:
        """Yields an iterator over each shard's records; several may be read in parallel."""
        for start, stop in itertools.pairwise([0, *self._ends]):
            yield self._records_between(start, stop, 1)

    def _records_between(self, start: int, stop: int, ahead: int) -> Iterator[Record]:
        """Yields records start..stop-1, with `ahead` blocks fetched while one is read."""
        for position in range(start, stop):
            # At the first record of each block, the blocks after it are requested.
            if position in (start, self._block_of(position)[0]):
                for block in range(ahead + 1):
                    self.expect(min(position + block * self._block, stop - 1))
            yield self[position]

    def expect(self, position: int) -> None:
        """Starts to fetch the block of a record that is needed soon; does not wait."""
        if not self._place.is_local:
            self._fetch_record_block(*self._block_of(position))

    def _block_of(self, position: int) -> tuple[int, int]:
        """Returns the first record of a record's block, and the last one + 1."""
        # Blocks are cut from the sequence that is read, in which this part begins at `_start`. With
        # blocks of 4 and a start of 6, the part's positions fall into blocks as 0 1 | 2 3 4 5 | 6 …
        start = position - (self._start + position) % self._block
        return max(start, 0), min(start + self._block, len(self))

    def _fetch_record_block(self, start: int, stop: int) -> Future[list[bytes]]:
        pieces = list(self._pieces(start, stop))

        def read() -> list[bytes]:
            return [data for shard, *records in pieces for data in shard.read(*records)]

        size = sum(shard.num_bytes(first, last) for shard, first, last in pieces)
        return block_cache().get((self._place.uri, self._name, start, stop), size, read)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Shard, int, int]]:
        """Yields (shard, first record, last record + 1) of neighbours, which may span shards."""
        # `bisect_right` skips empty shards, whose end is that of the shard before.
        number = bisect.bisect_right(self._ends, start)
        while start < stop:
            end = self._ends[number]
            first = self._ends[number - 1] if number else 0
            if end > start:
                yield self._shards[number], start - first, min(stop, end) - first
                start = end
            number += 1


def block_len(num_bytes: int, num_records: int) -> int:
    """Returns the number of records in a block, from the size of all records."""
    mean = num_bytes / max(num_records, 1)
    return max(1, min(MAX_BLOCK, round(BLOCK_BYTES / max(mean, 1))))


class Dataset:
    """A prepared dataset, opened for reading.

    Args:
      directory: a folder, or a place in a bucket (see `infra.store.stored_folder`).
    """

    def __init__(self, directory: str | Path) -> None:
        self.place = open_stored_folder(directory)
        self.info = read_info(self.place.local_folder(DESCRIPTION))
        parts = self.info.parts.items()
        self.parts = {name: Part(self.place, name, info) for name, info in parts}

    def records(self) -> Iterator[Record]:
        """Yields every record, part after part."""
        for name in sorted(self.parts):
            yield from self.parts[name]

    def licences(self, part: str) -> Iterator[tuple[str, int]]:
        """Yields (licence, number of neighbours that have it) over a part, in its order.

        No record is read; the licence is "" where none is stated.
        """
        info = self.info.parts[part]
        if not self.info.licences:
            yield "", sum(info.num_records)
            return
        folder = self.place.local_folder(LICENCES_ENDING)
        for shard, num in zip(info.shards, info.num_records, strict=True):
            path = folder / licences_path(shard)
            if path.is_file():
                yield from LicenceRuns.from_json(path.read_bytes(), str(path)).names()
            else:
                yield "", num

    def rejects(self) -> Iterator[Reject]:
        """Yields the rejects, by id."""
        yield from read_typed_lines(Reject, self.place.local_folder(REJECTS) / REJECTS)

    def omissions(self) -> Iterator[Omission]:
        """Yields the files and members of the source that look like data and were not read."""
        folder = self.place.local_folder((DESCRIPTION, OMISSIONS))
        if (folder / OMISSIONS).is_file():
            yield from read_typed_lines(Omission, folder / OMISSIONS)


def records_sha256(files: Mapping[str, str]) -> str:
    """Returns the digest of a dataset's content: of its files but the list of what was not read.

    Args:
      files: path of each file -> its sha256 [hex].
    """
    return listing_sha256({path: sha256 for path, sha256 in files.items() if path != OMISSIONS})


def digest_records(folder: Path) -> str:
    """Returns `records_sha256` of the files in a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return records_sha256(
        {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}
    )


def shard_of(record_id: str, num_shards: int) -> int:
    """Returns the shard of a record: a hash of its id, the same on every machine.

    The part of the id after a "#" does not count: records made of one image or clip ("x#detect",
    "x#ocr") get the same shard, so that the worker that prepares them decodes it once.
    """
    pixels = record_id.partition("#")[0]
    return stable_hash(pixels) % num_shards
