"""Checks a corpus before it is prepared, by the functions that prepare it.

    rows ─▶ items, sorted by id ─▶ some pictures and clips, or all ─▶ records and rejects, counted

Items are listed, decoded and rendered as Beam's workers do, but nothing is written. So a check of
everything has the rejects of preparing, with the same reasons; a check of a sample has them for
what it opened, and for all rows, duplicate ids and missing files.
"""

import collections
import contextlib
import dataclasses
import heapq
import itertools
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from infra.store.disk import Disk
from infra.store.raw_path import raw_path
from pipelines.images.header import read_header
from pipelines.images.square import ImageSpec
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.job import PrepareJob
from pipelines.prepare.listing import item_id, items_of_units, line_of_item, pixels_key
from pipelines.records.hashing import stable_hash
from pipelines.records.holdings import Holdings, PartHoldings, RejectGroups, group_omissions
from pipelines.records.lines import sorted_lines
from pipelines.records.schema import Reject
from pipelines.sources.corpus import UnpackedMedia
from pipelines.sources.item import Item, Media
from pipelines.sources.media_reader import MediaReader
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import source_spec
from pipelines.transforms.decode import DecodeMedia
from pipelines.transforms.make_records import MakeRecords, duplicate_reject
from pipelines.video.client import SampledFrames, VideoChild, VideoLimits
from pipelines.video.sampling import FrameSampling

PICTURES, CLIPS = 200, 20
"""Pictures and clips that are opened unless all are: some seconds' work."""

_DUPLICATES = 20
"""Most duplicate ids that are named."""

_RECENT = 16
"""Pictures remembered as counted; the items of one picture follow each other."""

_STORE = "unpacked"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DuplicateId:
    """An id that several inputs have: the first becomes a record, the others are rejects.

    Attributes:
      id: the id.
      places: each input's number in the order of reading, from 1, with its file.
    """

    id: str
    places: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """Smallest, median and largest of some numbers."""

    least: float
    median: float
    most: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureFacts:
    """Facts in the headers of the pictures that were opened and have one.

    Attributes:
      modes: Pillow's mode, such as "RGB", "CMYK" or "P" -> pictures.
      num_alpha: pictures with an alpha channel or a transparent colour.
      num_16_bit: pictures with samples of more than 8 bits.
      width: widths as stored [pixels].
      height: heights as stored [pixels].
    """

    modes: dict[str, int]
    num_alpha: int
    num_16_bit: int
    width: Spread
    height: Spread


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusCheck(Holdings):
    """What preparing a corpus would see. What was not opened counts as records.

    Attributes:
      num_pictures: pictures that items name; items of other pixels count the same file again.
      num_opened_pictures: those of them that were decoded, or whose decoding was tried.
      num_clips: clips that items name.
      num_opened_clips: those of them that were decoded, or whose decoding was tried.
      duplicates: the first of the ids that several inputs have.
      num_duplicates: number of such ids.
      pictures: facts of the pictures that were opened; None if there are none.
      clip_seconds: lengths of the clips that were decoded; None if there are none [s].
      expected_rejects: rejects of the whole corpus, estimated from the sample if there is one.
      failure: why preparing would fail, as the end of a sentence; "" if it would not.
    """

    num_pictures: int
    num_opened_pictures: int
    num_clips: int
    num_opened_clips: int
    duplicates: tuple[DuplicateId, ...]
    num_duplicates: int
    pictures: PictureFacts | None
    clip_seconds: Spread | None
    expected_rejects: float
    failure: str

    @property
    def is_sample(self) -> bool:
        """Whether some pictures or clips were not opened."""
        num_opened = self.num_opened_pictures + self.num_opened_clips
        return num_opened < self.num_pictures + self.num_clips


def check_corpus(
    data_root: str | os.PathLike[str],
    source: str | OwnSource,
    split: str,
    *,
    path: str = "",
    features: Mapping[str, str] | None = None,
    config: PrepareConfig | None = None,
    open_all: bool = False,
) -> CorpusCheck:
    """Returns what preparing a corpus would make of it, and whether it would fail.

    All rows are read. Without `open_all`, the `PICTURES` pictures and `CLIPS` clips whose ids have
    the smallest hashes are opened: always the same ones, from all over the corpus.

    Args:
      data_root: folder or gs://bucket/prefix that holds the source's folder.
      source: name of the corpus layout, or a source that the user wrote.
      split: the split, for example "train" or "train+val".
      path: the source's folder below `data_root`; "" takes the usual one.
      features: field -> feature of an Example; see `pipelines.sources.corpus.FEATURES`.
      config: settings with which it will be prepared; None takes the defaults.
      open_all: whether every picture and clip is opened. Pictures of packed archives and of tables
        are then copied to a temporary folder, as preparing copies them.

    Raises:
      ValueError: if the source, the split or an annotation file is wrong.
      FileNotFoundError: if the corpus or an annotation file is missing, naming it.
    """
    spec = source_spec(source)
    job = PrepareJob(
        # A random crop costs no input: the whole picture is taken where it would.
        config=(config or PrepareConfig()).unaugmented(),
        source=source,
        split=split,
        data_root=os.fspath(data_root),
        path=path or spec.folder,
        features=features or {},
        work="",
        code="of this process",  # No worker has to agree on it, and its digest takes seconds.
    )
    spec.parse(split)
    with (
        tempfile.TemporaryDirectory(prefix="parcel-") as folder,
        contextlib.closing(_LengthNotingChild(job.config.video_limits())) as video,
    ):
        return _Check(job, Path(folder), video, open_all=open_all).run()


class _Check:
    """One check. Its methods run in the order in which they stand."""

    def __init__(
        self, job: PrepareJob, folder: Path, video: "_LengthNotingChild", *, open_all: bool
    ) -> None:
        self._job, self._folder, self._video, self._open_all = job, folder, video, open_all
        self._root = raw_path(job.data_root)
        self._reader = _HeaderNotingReader(self._root, Disk(folder, durable=False))
        self._drawn = {
            False: _DrawnPixels(None if open_all else PICTURES),
            True: _DrawnPixels(None if open_all else CLIPS),
        }
        self._rejects = RejectGroups()
        self._parts: dict[str, PartHoldings] = {}
        self._duplicates: list[DuplicateId] = []
        self._num_inputs = self._num_rejects = self._num_duplicates = 0
        # By whether they are clips: all media, those opened; items not opened; items opened because
        # they were drawn, and those of them that were rejected.
        self._media, self._opened = collections.Counter[bool](), collections.Counter[bool]()
        self._unopened = collections.Counter[bool]()
        self._drawn_items = collections.Counter[bool]()
        self._drawn_rejects = collections.Counter[bool]()
        self._drawn_ids: set[str] = set()
        self._places: dict[int, dict[str, Any]] = {}

    def run(self) -> CorpusCheck:
        """Returns the result."""
        job, spec = self._job, self._job.spec
        with (self._folder / _STORE).open("wb", buffering=0) as file:
            unpacked = _NumberedMedia(file, None if self._open_all else ())
            corpus = job.corpus(self._root, unpacked)
            lines = sorted_lines(
                self._lines(items_of_units(job, corpus, [""])), item_id, str(self._folder)
            )
            # The first line comes when all are listed: only then is known what is drawn.
            first = next(lines, None)
            if wanted := self._drawn[False].numbers | self._drawn[True].numbers:
                self._unpack_drawn(_NumberedMedia(file, wanted))
            omissions = {*corpus.omissions(), *spec.omissions_of(corpus, job.split)}
            entries = itertools.chain(() if first is None else (first,), lines)
            make_records = MakeRecords(DecodeMedia(self._reader, job.decode, self._video))
            for item, result in make_records(self._reader.expected(self._to_open(entries))):
                self._note_result(item, result)
        expected = self._num_rejects + sum(self._expected_unseen(kind) for kind in (False, True))
        return CorpusCheck(
            name=f"{spec.name}/{job.split}",
            parts={name: self._parts[name] for name in sorted(self._parts)},
            rejects=self._rejects.holdings(),
            omissions=group_omissions(omissions),
            num_composed=make_records.num_composed,
            num_pictures=self._media[False],
            num_opened_pictures=self._opened[False],
            num_clips=self._media[True],
            num_opened_clips=self._opened[True],
            duplicates=tuple(self._duplicates),
            num_duplicates=self._num_duplicates,
            pictures=self._reader.facts(),
            clip_seconds=_spread(self._video.lengths),
            expected_rejects=expected,
            failure=job.config.reject_fault(expected, self._num_inputs),
        )

    def _lines(self, entries: Iterable[Item | Reject]) -> Iterator[str]:
        """Yields the line of each item, with its number in reading order after a tab."""
        for number, entry in enumerate(entries, start=1):
            self._num_inputs += 1
            entry, line = line_of_item(entry)
            if isinstance(entry, Reject):
                self._note_reject(entry)
                continue
            self._drawn[_is_clip(entry)].add(pixels_key(line), entry.media)
            yield f"{line[:-1]}\t{number}\n"  # JSON has no tabs.

    def _unpack_drawn(self, unpacked: "_NumberedMedia") -> None:
        """Reads everything again, to store the drawn ones of the pictures that must be unpacked."""
        corpus = self._job.corpus(self._root, unpacked)
        for _ in items_of_units(self._job, corpus, [""]):
            pass
        self._places = unpacked.places

    def _to_open(self, lines: Iterable[str]) -> Iterator[Item]:
        """Yields the items that are opened, and counts the others."""
        for key, group in itertools.groupby(lines, pixels_key):
            media: set[Media] = set()
            is_opened = is_clip = False
            # Of one id there may be several.
            for identity, same in itertools.groupby(group, item_id):
                listed = [self._item(line) for line in same]
                is_clip, is_double = _is_clip(listed[0][1]), len(listed) > 1
                is_drawn = key in self._drawn[is_clip]
                media.update(m for _, item in listed for m in item.media)
                if is_double:
                    self._note_duplicate(identity, listed)
                is_absent = any(not self._reader.has(m) for _, i in listed for m in i.media)
                if is_drawn and not is_double and not is_absent:
                    self._drawn_items[is_clip] += 1
                    self._drawn_ids.add(identity)
                # A picture that must be unpacked is only there if it was drawn.
                is_packed = self._places and any(m.store for _, i in listed for m in i.media)
                if is_double and not is_drawn and is_packed:
                    self._note_record(listed[0][1])
                    for _, item in listed[1:]:
                        self._note_reject(duplicate_reject(item))
                elif is_drawn or is_double or is_absent:
                    is_opened = True
                    yield from (item for _, item in listed)
                else:
                    self._unopened[is_clip] += 1
                    self._note_record(listed[0][1])
            self._media[is_clip] += len(media)
            self._opened[is_clip] += len(media) * is_opened

    def _item(self, line: str) -> tuple[int, Item]:
        text, _, number = line.rpartition("\t")
        item = Item.from_json(text)
        if not self._places:
            return int(number), item
        media = tuple(
            dataclasses.replace(m, **self._places.get(m.offset, {})) if m.store else m
            for m in item.media
        )
        return int(number), dataclasses.replace(item, media=media)

    def _note_duplicate(self, identity: str, listed: list[tuple[int, Item]]) -> None:
        self._num_duplicates += 1
        if len(self._duplicates) < _DUPLICATES:
            places = (f"input {number} ({item.media[0].source})" for number, item in listed)
            self._duplicates.append(DuplicateId(id=identity, places=tuple(places)))

    def _note_result(self, item: Item, result: object) -> None:
        if isinstance(result, Reject):
            self._note_reject(result)
            self._drawn_rejects[_is_clip(item)] += item.id in self._drawn_ids
        else:
            self._note_record(item)
        self._drawn_ids.discard(item.id)

    def _note_reject(self, reject: Reject) -> None:
        self._num_rejects += 1
        self._rejects.add(reject)

    def _note_record(self, item: Item) -> None:
        part = self._parts.setdefault(item.part, PartHoldings())
        part.add(images=len(item.media), suffixes=len(item.suffixes), lang=item.lang)

    def _expected_unseen(self, is_clip: bool) -> float:
        """Returns the expected rejects among the items that were not opened."""
        num = self._drawn_items[is_clip]
        return self._unopened[is_clip] * self._drawn_rejects[is_clip] / num if num else 0.0


def _is_clip(item: Item) -> bool:
    return any(media.video for media in item.media)


class _DrawnPixels:
    """The pixels that are opened: those whose keys have the smallest hashes.

    Attributes:
      size: most of them; None takes all.
    """

    def __init__(self, size: int | None) -> None:
        self.size = size
        self._hashes: list[tuple[int, str]] = []  # A heap, negated: the largest comes first.
        self._numbers: dict[str, set[int]] = {}

    def add(self, key: str, media: Iterable[Media]) -> None:
        """Draws a key if it is among the smallest so far, and notes its unpacked media."""
        if self.size is None:
            return
        if key not in self._numbers:
            entry = -stable_hash(key), key
            if len(self._hashes) < self.size:
                heapq.heappush(self._hashes, entry)
            elif entry > self._hashes[0]:
                del self._numbers[heapq.heapreplace(self._hashes, entry)[1]]
            else:
                return
            self._numbers[key] = set()
        self._numbers[key].update(m.offset for m in media if m.store)

    def __contains__(self, key: str) -> bool:
        return self.size is None or key in self._numbers

    @property
    def numbers(self) -> set[int]:
        """Numbers of the drawn media that must be unpacked."""
        return set().union(*self._numbers.values())


class _NumberedMedia(UnpackedMedia):
    """Numbers unpacked bytes in reading order, and stores those that are wanted.

    A sample of a large table needs few of its pictures, but which ones shows only when all rows
    have been read; the number of a picture, in place of its offset, finds it in a second reading.

    Attributes:
      places: number -> fields of the media that find the stored bytes.
    """

    def __init__(self, file: BinaryIO, wanted: Collection[int] | None) -> None:
        """Appends to a file.

        Args:
          file: file to append to.
          wanted: numbers of the bytes that are stored; None stores all, by their offsets.
        """
        super().__init__(file, _STORE)
        self._wanted, self._number = wanted, 0
        self.places: dict[int, dict[str, Any]] = {}

    def append(self, data: bytes) -> dict[str, object]:
        if self._wanted is None:
            return super().append(data)
        number, self._number = self._number, self._number + 1
        if number in self._wanted:
            self.places[number] = super().append(data)
        return {"store": _STORE, "offset": number, "size": len(data)}


class _HeaderNotingReader(MediaReader):
    """Reads media, and notes what the headers of pictures say."""

    def __init__(self, data_root: Path, unpacked: Disk) -> None:
        super().__init__(data_root, unpacked)
        self._recent: collections.deque[Media] = collections.deque(maxlen=_RECENT)
        self._modes = collections.Counter[str]()
        self._widths, self._heights = collections.Counter[float](), collections.Counter[float]()
        self._num_alpha = self._num_16_bit = 0

    def read(self, media: Media) -> bytes:
        data = super().read(media)
        header = None if media in self._recent else read_header(data)
        if header:
            self._recent.append(media)
            self._modes[header.mode] += 1
            self._widths[header.width] += 1
            self._heights[header.height] += 1
            self._num_alpha += header.has_alpha
            self._num_16_bit += header.bits > 8
        return data

    def facts(self) -> PictureFacts | None:
        """Returns the facts of all pictures read so far."""
        width, height = _spread(self._widths), _spread(self._heights)
        if width is None or height is None:
            return None
        return PictureFacts(
            modes=dict(self._modes.most_common()),
            num_alpha=self._num_alpha,
            num_16_bit=self._num_16_bit,
            width=width,
            height=height,
        )


class _LengthNotingChild(VideoChild):
    """Decodes clips, and notes their lengths.

    Attributes:
      lengths: length, to a tenth [s] -> clips.
    """

    def __init__(self, limits: VideoLimits) -> None:
        super().__init__(limits)
        self.lengths = collections.Counter[float]()

    def sample(self, path: str, sampling: FrameSampling, spec: ImageSpec) -> SampledFrames:
        clip = super().sample(path, sampling, spec)
        self.lengths[round(clip.duration, 1)] += 1
        return clip


def _spread(counts: Mapping[float, int]) -> Spread | None:
    """Returns the spread of values, each with its number; None if there are none."""
    if not counts:
        return None
    values, half = sorted(counts), sum(counts.values()) / 2
    ends = itertools.accumulate(counts[value] for value in values)
    median = next(value for value, end in zip(values, ends, strict=True) if end >= half)
    return Spread(least=values[0], median=median, most=values[-1])
