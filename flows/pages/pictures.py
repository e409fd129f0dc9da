"""Finds records of prepared datasets by id, and the boxes and masks that their texts name."""

import dataclasses
import functools
import html
import re
from collections.abc import Callable, Iterator

from markupsafe import Markup

from infra.store.store import Store
from pipelines.records.boxes import OBJECT, color_of
from pipelines.records.codes import numbers, parse_box
from pipelines.records.dataset import Dataset, Part, PartInfo, shard_of
from pipelines.records.schema import MASK_MARKER, Record

_CODES = re.compile(r"(<(?:loc|seg)\d+>)+")


class Records:
    """Records of a store's datasets, which are opened once; safe to share between threads.

    Args:
      store: the store of the datasets.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dataset: Callable[[str], Dataset] = functools.lru_cache(maxsize=64)(
            self._open_dataset_by_key
        )
        self.find = functools.lru_cache(maxsize=256)(self._find_dataset_record)

    def _open_dataset_by_key(self, key: str) -> Dataset:
        return Dataset(self._store.get_cached(key).uri)

    def _find_dataset_record(self, key: str, record: str) -> Record | None:
        """Returns a record of a dataset by id; None if there is none, or its files are gone."""
        try:
            # Lazily, part by part: the search ends in the first part that has the record.
            dataset = self._dataset(key)
            found = (
                _in_part(dataset.parts[name], info, record)
                for name, info in dataset.info.parts.items()
            )
            return next((one for one in found if one is not None), None)
        except FileNotFoundError:
            return None

    def samples(self, key: str, limit: int) -> list[Record]:
        """Returns some records of a dataset, spread over its parts; none if its files are gone."""
        try:
            parts = [part for _, part in sorted(self._dataset(key).parts.items()) if len(part)]
        except FileNotFoundError:
            return []
        # What is left is shared out among the parts that are left, so that small parts pass on
        # their share; within a part the records are spread evenly.
        found: list[Record] = []
        for number, part in enumerate(parts):
            share = min((limit - len(found)) // (len(parts) - number), len(part))
            found += [part[i * len(part) // share] for i in range(share)]
        return found


def _in_part(part: Part, info: PartInfo, record: str) -> Record | None:
    """Returns a record of a part by bisection in each shard; None if no shard has it.

    Only the records within one shard are sorted by id. The shard that the id belongs to by
    `shard_of` is searched first.
    """
    likely = shard_of(record, len(info.shards)) if info.shards else 0
    starts = [sum(info.num_records[:shard]) for shard in range(len(info.shards))]
    for shard in sorted(range(len(info.shards)), key=lambda number: number != likely):
        first, end = starts[shard], starts[shard] + info.num_records[shard]
        while first < end:
            middle = (first + end) // 2
            found = part[middle]
            if found.id == record:
                return found
            first, end = (middle + 1, end) if found.id < record else (first, middle)
    return None


def mime_type(data: bytes) -> str:
    """Returns the MIME type of a record's image, which is JPEG or PNG."""
    return "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureBox:
    """A box on a picture.

    Attributes:
      number: its number in the texts, from 1.
      color: color of its frame, `rgb(…)`.
      x, y, width, height: upper left corner and size, in thousandths of the picture.
    """

    number: int
    color: str
    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskOverlay:
    """A mask on a picture.

    Attributes:
      box: the box that it fills; None if it is as large as the picture.
      color: number of its color.
      key: key of the codec that decodes it, or of its record's dataset.
      codes: numbers of its 16 tokens, joined by "-"; "" if it is a record's mask.
      n: its position among the record's masks, from 0.
    """

    box: PictureBox | None
    color: int
    key: str
    codes: str = ""
    n: int = 0


class PictureBoxes:
    """The boxes of several texts about one picture, numbered; equal boxes share a number.

    Attributes:
      veils: masks of those texts, each once.

    Args:
      data: key of the dataset of the picture's record.
    """

    def __init__(self, data: str) -> None:
        self._data = data
        self._numbers: dict[str, int] = {}
        self._num_markers = 0
        self.veils: dict[MaskOverlay, None] = {}

    def text(self, text: str, codec: str = "") -> Markup:
        """Returns a text, escaped, with "[1]" or "[1 mask]" in place of an object's codes.

        Args:
          text: text of a record, or a model's answer.
          codec: key of that model's mask codec; without one its masks are not shown.
        """
        # Two objects, of which the first has a mask that the model wrote:
        #
        #   <loc0100><loc0200><loc0500><loc0600><seg003>… cat ; <loc0300>… dog
        #   [1 mask] cat ; [2] dog
        #
        # The same box in another text gets the same number, and so the same color on the picture.
        parts: list[str] = []
        end = 0
        for one in OBJECT.finditer(text):
            parts.append(html.escape(text[end : one.start()]))
            number = self._numbers.setdefault(one[1], len(self._numbers) + 1)
            end = one.end()
            masked, color = bool(one[2]), number - 1
            # A record names its own masks by a marker, in order; a model writes its masks as codes.
            if text.startswith(MASK_MARKER, end):
                masked, end = True, end + len(MASK_MARKER)
                veil = MaskOverlay(box=None, color=color, key=self._data, n=self._num_markers)
                self.veils[veil] = None
                self._num_markers += 1
            elif one[2] and codec and (box := _parse_picture_box(one[1], number)):
                codes = "-".join(map(str, numbers(one[2])))
                self.veils[MaskOverlay(box=box, color=color, key=codec, codes=codes)] = None
            parts.append(f'<b class="box{(number - 1) % 5}">[{number}{" mask" * masked}]</b>')
        # Codes that form no object, as a model may write them, are only said to be there.
        rest = _CODES.sub("[codes]", text[end:])
        parts.append(html.escape(rest))
        return Markup("".join(parts))

    def __iter__(self) -> Iterator[PictureBox]:
        boxes = (_parse_picture_box(tokens, number) for tokens, number in self._numbers.items())
        yield from (box for box in boxes if box)


def _parse_picture_box(tokens: str, number: int) -> PictureBox | None:
    """Returns the box of four location tokens; None if its area is empty."""
    top, left, bottom, right = (1000 * side for side in parse_box(tokens))
    if bottom <= top or right <= left:
        return None
    color, width, height = f"rgb{color_of(number - 1)}", right - left, bottom - top
    return PictureBox(number=number, color=color, x=left, y=top, width=width, height=height)
