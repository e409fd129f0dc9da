"""The pictures of a dataset: the records that show them, and their fingerprints."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from pipelines.hygiene.fingerprint import fingerprint
from pipelines.records.dataset import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordPictures:
    """The pictures that one record shows.

    Attributes:
      id: id of the record.
      source: file of its pixels; records of one file are not duplicates of each other.
      sha256: digest of that file [hex].
      rows: for each image, its row in `Pictures.prints`; -1 for a blank image.
    """

    id: str
    source: str
    sha256: str
    rows: tuple[int, ...]


@dataclasses.dataclass(kw_only=True)
class Pictures:
    """The distinct pictures of a dataset.

    Attributes:
      dataset: the dataset, from which pictures are read again.
      records: pictures of each record that has some, in the order of the dataset.
      prints: fingerprints of the distinct encoded images.
      owners: for each fingerprint, the first record that shows it, as an index into `records`.
      places: for each fingerprint, (part, position, image number) of its image in that record.
      num_blank: number of distinct blank images, which have no fingerprint.
    """

    dataset: Dataset
    records: list[RecordPictures] = dataclasses.field(default_factory=list)
    prints: list[np.ndarray] = dataclasses.field(default_factory=list)
    owners: list[int] = dataclasses.field(default_factory=list)
    places: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    num_blank: int = 0

    def image(self, row: int) -> bytes:
        """Returns the encoded image of a fingerprint."""
        part, position, number = self.places[row]
        return self.dataset.parts[part][position].images[number]


def read_pictures(dataset: Dataset, on_record: Callable[[], None] = lambda: None) -> Pictures:
    """Reads the pictures of a dataset; calls `on_record` after each record."""
    pictures = Pictures(dataset=dataset)
    # Three records, of which the first two show the same bytes:
    #
    #     records   a (x.jpg)  b (x.jpg)  c (y.jpg)      rows     0  0  1
    #     prints    x  y                                 owners   a  c
    row_of_digest: dict[bytes, int] = {}
    for part, position in _record_places(dataset):
        record = dataset.parts[part][position]
        on_record()
        if not record.images:
            continue
        rows = []
        for number, image in enumerate(record.images):
            digest = hashlib.blake2b(image, digest_size=16).digest()
            if digest not in row_of_digest:
                row_of_digest[digest] = _add_picture(pictures, image, (part, position, number))
            rows.append(row_of_digest[digest])
        pictures.records.append(
            RecordPictures(
                id=record.id,
                source=record.source,
                sha256=record.source_sha256,
                rows=tuple(rows),
            )
        )
    return pictures


def _record_places(dataset: Dataset) -> Iterator[tuple[str, int]]:
    for name, part in sorted(dataset.parts.items()):
        yield from ((name, position) for position in range(len(part)))


def _add_picture(pictures: Pictures, image: bytes, place: tuple[str, int, int]) -> int:
    print = fingerprint(image)
    if print is None:
        pictures.num_blank += 1
        return -1
    pictures.prints.append(print)
    # The record that shows it is not in the list yet: its index is the list's length.
    pictures.owners.append(len(pictures.records))
    pictures.places.append(place)
    return len(pictures.prints) - 1
