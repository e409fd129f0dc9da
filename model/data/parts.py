"""Parts of prepared datasets by name, joined over datasets."""

import bisect
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence

from pipelines.records.dataset import Dataset, Part, block_len
from pipelines.records.schema import Record
from pipelines.records.shapes import part_names, part_with_images, part_without_images


class JoinedParts(Sequence[Record]):
    """The records of all parts of one name, one part after the other.

    Attributes:
      num_bytes: size of their shards [bytes].
      block: number of neighbours that are read together [records].
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.num_bytes = sum(part.num_bytes for part in parts)
        self._parts = parts
        self._starts = list(itertools.accumulate(map(len, parts), initial=0))
        self.block = block_len(self.num_bytes, len(self))
        # Blocks are counted over the joined parts, as in the order of visits, not within each part.
        for part, start in zip(parts, self._starts, strict=False):
            part.read_by(self.block, start)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, position: int) -> Record:  # type: ignore[override]
        part, place = self._find_record_part(position)
        return part[place]

    def __iter__(self) -> Iterator[Record]:
        return itertools.chain.from_iterable(self._parts)

    def expect(self, position: int) -> None:
        """Starts to fetch a record that will soon be needed; see `Part.expect`."""
        part, place = self._find_record_part(position)
        part.expect(place)

    def shards(self) -> Iterator[Iterator[Record]]:
        """Yields the records of each shard, in their order."""
        return itertools.chain.from_iterable(part.shards() for part in self._parts)

    def _find_record_part(self, position: int) -> tuple[Part, int]:
        number = bisect.bisect_right(self._starts, position) - 1
        return self._parts[number], position - self._starts[number]


def records_by_id(parts: Mapping[str, JoinedParts]) -> Iterator[Record]:
    """Yields the records of all parts in order of id; few are in memory, as shards are sorted.

    Raises:
      ValueError: if a shard is not sorted by id.
    """
    previous = ""
    shards = (shard for part in parts.values() for shard in part.shards())
    for record in heapq.merge(*shards, key=lambda record: record.id):
        if record.id < previous:
            raise ValueError(
                f"records must be sorted by id within a shard, got {record.id!r} after "
                f"{previous!r}; prepare the dataset again."
            )
        previous = record.id
        yield record


def open_parts(data: Sequence[str], image_px: int = 1) -> dict[str, JoinedParts]:
    """Returns the non-empty parts of datasets; those of the same name and shape are joined.

    Args:
      data: datasets, as in `StagePaths`.
      image_px: least side of the stored images [pixels].

    Raises:
      ValueError: if there are no records, or images are stored smaller than `image_px`: a model
        that is fed enlarged ones costs more and sees no more.
    """
    parts_of_names: dict[str, list[Part]] = {}
    # All are opened before any is named: parts of one name that differ in number of images get
    # names of their own, and any of the datasets may hold them.
    opened = []
    for directory in data:
        dataset = Dataset(directory)
        if dataset.info.image_px < image_px:
            raise ValueError(
                f"data must hold images of at least {image_px} px, the model's; {directory} has "
                f"{dataset.info.image_px} px. Prepare it with prepare.image_px={image_px}."
            )
        opened.append(dataset)
    for dataset, names in zip(opened, names_of(opened), strict=True):
        for part, name in names.items():
            parts_of_names.setdefault(name, []).append(dataset.parts[part])
    # Of two parts with 5 and 7 records, starts are 0 5 12: record 6 is record 1 of the second.
    if not parts_of_names:
        raise ValueError(f"data holds no records: {', '.join(data)}.")
    return {name: JoinedParts(parts) for name, parts in sorted(parts_of_names.items())}


def names_of(datasets: Sequence[Dataset]) -> list[dict[str, str]]:
    """Returns, for each dataset, its non-empty parts -> the name under which parts are joined.

    Parts of one name whose records differ in number of images get different names.
    """
    shapes = [
        {
            name: part_with_images(part_without_images(name), len(part[0].window()))
            for name, part in dataset.parts.items()
            if len(part)
        }
        for dataset in datasets
    ]
    name_of_shape = part_names(
        {shape for shape_of_part in shapes for shape in shape_of_part.values()}
    )
    return [
        {name: name_of_shape[shape] for name, shape in shape_of_part.items()}
        for shape_of_part in shapes
    ]
