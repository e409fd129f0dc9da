"""A prepared dataset on disk: named parts of sharded records, and what was rejected.

dataset.json                     parts, counts
caption-00000-of-00002.tfrecord  shards of the part "caption"
caption-00000-of-00002.idx       their offset indexes
rejects.jsonl                    one `Reject` a line, sorted by id
"""

import bisect
import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.records import example
from pipelines.records.hashing import stable_hash
from pipelines.records.schema import Record, Reject
from pipelines.records.tfrecord import Shard

DESCRIPTION = "dataset.json"
REJECTS = "rejects.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartInfo:
    """One part: its shards in order, and how many records each holds."""

    shards: tuple[str, ...]
    num_records: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What `dataset.json` holds. num_inputs = records + rejects, always.

    Attributes:
      name: such as "mixture" or "chartqa/test".
      parts: part name -> shards; one part per task of a mixture, one for a benchmark split.
      num_inputs: raw examples read.
      num_rejected: of them, how many are in `rejects.jsonl`.
      image_px: side of every stored image [pixels].
    """

    name: str
    parts: dict[str, PartInfo]
    num_inputs: int
    num_rejected: int
    image_px: int

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

    def write(self, directory: str | Path) -> None:
        """Writes `dataset.json`."""
        text = json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)
        (Path(directory) / DESCRIPTION).write_text(text + "\n")


class Part(Sequence[Record]):
    """The records of one part, by position: shard after shard, sorted by id within each."""

    def __init__(self, directory: Path, info: PartInfo) -> None:
        self._shards = [Shard(directory / name) for name in info.shards]
        for shard, expected in zip(self._shards, info.num_records, strict=True):
            if len(shard) != expected:
                raise ValueError(f"{shard.path} holds {len(shard)} records, expected {expected}.")
        self._ends = list(itertools.accumulate(info.num_records))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, position: int) -> Record:  # type: ignore[override]
        if not 0 <= position < len(self):
            raise IndexError(f"position must be in 0..{len(self) - 1}, got {position}.")
        shard = bisect.bisect_right(self._ends, position)
        start = self._ends[shard - 1] if shard else 0
        return example.decode(self._shards[shard][position - start])


class Dataset:
    """A prepared dataset, opened for reading."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        raw = json.loads((self.directory / DESCRIPTION).read_text())
        parts = {
            name: PartInfo(shards=tuple(p["shards"]), num_records=tuple(p["num_records"]))
            for name, p in raw.pop("parts").items()
        }
        self.info = DatasetInfo(parts=parts, **raw)
        self.parts = {name: Part(self.directory, info) for name, info in parts.items()}

    def records(self) -> Iterator[Record]:
        """Yields every record, part after part."""
        for name in sorted(self.parts):
            yield from self.parts[name]

    def rejects(self) -> Iterator[Reject]:
        """Yields what was rejected, by id."""
        with (self.directory / REJECTS).open() as lines:
            for line in lines:
                yield Reject(**json.loads(line))


def shard_of(record_id: str, num_shards: int) -> int:
    """Returns the shard a record belongs to: a hash of its id, the same on every machine.

    What follows a "#" does not count: the records made of one image or clip ("x#detect", "x#ocr")
    get the same shard number, so that whoever prepares them decodes it once.
    """
    pixels = record_id.partition("#")[0]
    return stable_hash(pixels) % num_shards
