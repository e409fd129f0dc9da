"""Parts of a split, written as "val[-10240:]" or "train[:98%]".

TensorFlow Datasets slices in the order of a hash of its own keys, which other readers cannot know.
Here the order is that of a hash of the records' ids: random, the same on every machine, but
different from TensorFlow Datasets'.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pipelines.records.hashing import stable_hash
from pipelines.records.schema import Reject
from pipelines.sources.reading.item import Item

_SLICE = re.compile(r"(?P<split>[^\[\]]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


class Slice(NamedTuple):
    """Part of a split, with its bounds as written; "" is no bound."""

    split: str
    start: str = ""
    stop: str = ""


def parse_slice(text: str) -> Slice:
    """Parses the split and bounds in `text`.

    Raises:
      ValueError: if `text` is not a split or a slice of one.
    """
    match = _SLICE.fullmatch(text)
    if match is None:
        raise ValueError(f'split must look like "val", "val[:5%]" or "val[-100:]", got {text!r}.')
    return Slice(match["split"], match["start"] or "", match["stop"] or "")


def are_disjoint(first: Slice, second: Slice) -> bool:
    """Returns whether two parts of a split share no record, whatever its size.

    "[:98%]" and "[98%:]" share none, nor do "[:-100]" and "[-50:]". Parts whose bounds cannot be
    compared without the size, such as "[:98%]" and "[-50:]", are assumed to share records.
    """
    return _ends_before(first.stop, second.start) or _ends_before(second.stop, first.start)


def _ends_before(stop: str, start: str) -> bool:
    """Returns whether a part that ends at `stop` is before one that begins at `start`."""
    # Bounds can be compared if both are percents, or both numbers from the same end: "[:98%]" and
    # "[98%:]" meet at 98, "[:-100]" ends before "[-50:]" begins.
    if not stop or not start or stop.endswith("%") != start.endswith("%"):
        return False
    last, first = (int(bound.removesuffix("%")) for bound in (stop, start))
    return (last < 0) == (first < 0) and last <= first


def read_slice(part: Slice, read: Callable[[], Iterator[Item | Reject]]) -> Iterator[Item | Reject]:
    """Yields the part's items in reading order; it reads twice, and keeps only ids in memory."""
    if not part.start and not part.stop:
        yield from read()
        return
    # Two passes: the first learns where the bounds of the part lie, the second yields what is
    # between them. Memory holds the ids, never the items.
    order = sorted(_item_rank(item) for item in read())
    ranks_in_part = order[slice_bounds(part, len(order))]
    if not ranks_in_part:
        return
    first, last = ranks_in_part[0], ranks_in_part[-1]
    yield from (item for item in read() if first <= _item_rank(item) <= last)


def slice_bounds(part: Slice, total: int) -> slice:
    """Returns the slice of `total` records, sorted by the hashes of their ids, that is the part."""
    return slice(_bound_index(part.start, total), _bound_index(part.stop, total))


def _item_rank(item: Item | Reject) -> tuple[int, str]:
    return stable_hash(item.id), item.id


def _bound_index(text: str, total: int) -> int | None:
    if not text:
        return None
    return round(int(text[:-1]) * total / 100) if text.endswith("%") else int(text)
