"""Checks a corpus before it is prepared, by the functions that prepare it.

    rows ─▶ items, sorted by id ─▶ some pictures and clips, or all ─▶ records and rejects, counted

Items are listed, decoded and rendered as Beam's workers do, but nothing is written. So a check of
everything has the rejects of preparing, with the same reasons; a check of a sample has them for
what it opened, and for all rows, duplicate ids and missing files. Many pictures and clips are
opened by processes beside this one, as in preparing.
"""

import collections
import contextlib
import dataclasses
import heapq
import itertools
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO

from infra.store.disk import Disk
from infra.store.raw_path import raw_path
from pipelines.prepare.check_media import MediaFacts, MediaOpener, OpenedItems, open_step
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.job import PrepareJob
from pipelines.prepare.licences import LicencesConfig, dropped_licence
from pipelines.prepare.listing import item_id, items_of_units, line_of_item, pixels_key
from pipelines.prepare.worker_pool import local_workers, pool_of, uses_processes
from pipelines.records.hashing import stable_hash
from pipelines.records.holdings import Holdings, PartHoldings, RejectGroups, group_omissions
from pipelines.records.licence import NO_LICENCE, Licence, LicenceCount
from pipelines.records.lines import sorted_lines
from pipelines.records.schema import Reject
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import UnpackedMedia
from pipelines.sources.reading.item import Item, Media
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.registry import source_spec
from pipelines.transforms.make_records import duplicate_reject

PICTURES, CLIPS = 200, 20
"""Pictures and clips that are opened unless all are: some seconds' work."""

_DUPLICATES = 20
"""Most duplicate ids that are named."""

_CLIP = 40
"""Pictures that take as long as one clip."""

_BATCH = 100
"""Pictures that are opened at a time."""

_MANY = 1000
"""Pictures whose opening is worth the start of processes."""

_REPORTED = 1000
"""Inputs between two reports of the progress of reading."""

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
      num_dropped: inputs that `licences.allow` drops; they are among the rejects.
      expected_rejects: rejects of the whole corpus, estimated from the sample if there is one;
        without those that are dropped.
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
    num_dropped: int
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
    licence: Licence = NO_LICENCE,
    licences: LicencesConfig | None = None,
    open_all: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> CorpusCheck:
    """Returns what preparing a corpus would make of it, and whether it would fail.

    All rows are read. Without `open_all`, the `PICTURES` pictures and `CLIPS` clips whose ids have
    the smallest hashes are opened: always the same ones, from all over the corpus.

    Args:
      data_root: folder or gs://bucket/prefix that holds the source's folder.
      source: name of the corpus layout, or a source that the user wrote.
      split: the split, for example "train" or "train+val".
      path: the source's folder below `data_root`; "" takes the usual one.
      features: field -> feature of an Example; see `pipelines.sources.reading.corpus.FEATURES`.
      config: settings with which it will be prepared; None takes the defaults. With several
        `num_workers`, so many processes open the media, if these are many.
      licence: licence of the source, for the records whose rows state none.
      licences: which licences will be allowed; None allows all.
      open_all: whether every picture and clip is opened. Pictures of packed archives and of tables
        are then copied to a temporary folder, as preparing copies them.
      on_progress: called with what was done so far, often.

    Raises:
      ValueError: if the source, the split or an annotation file is wrong, or an allowed licence is
        probably misspelt.
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
        licence=licence,
        licences=licences,
    )
    spec.parse(split)
    with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
        return _Check(job, Path(folder), on_progress, open_all=open_all).run()


class _Check:
    """One check. Its methods run in the order in which they stand."""

    def __init__(
        self, job: PrepareJob, folder: Path, on_progress: Callable[[str], None], *, open_all: bool
    ) -> None:
        self._job, self._folder, self._open_all = job, folder, open_all
        self._report = on_progress
        self._root = raw_path(job.data_root)
        self._unpacked = Disk(folder, durable=False)
        self._reader = MediaReader(self._root, self._unpacked)  # Only looks whether files exist.
        self._facts = MediaFacts()
        self._drawn = {
            False: _DrawnPixels(None if open_all else PICTURES),
            True: _DrawnPixels(None if open_all else CLIPS),
        }
        self._rejects = RejectGroups()
        self._parts: dict[str, PartHoldings] = {}
        self._duplicates: list[DuplicateId] = []
        self._num_inputs = self._num_rejects = self._num_duplicates = 0
        self._dropped = collections.Counter[str]()  # Licence -> inputs that it costs.
        self._licences = collections.Counter[str]()
        # By whether they are clips: all items; all media, those opened; items not opened; items
        # opened because they were drawn, and those of them that were rejected.
        self._items = collections.Counter[bool]()
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
                self._numbered_item_lines(items_of_units(job, corpus, [""])),
                item_id,
                str(self._folder),
            )
            # The first line comes when all are listed: only then is known what is drawn.
            first = next(lines, None)
            if wanted := self._drawn[False].numbers | self._drawn[True].numbers:
                self._unpack_drawn(_NumberedMedia(file, wanted))
            omissions = {*corpus.omissions(), *spec.omissions_of(corpus, job.split)}
            entries = itertools.chain(() if first is None else (first,), lines)
            for items, opened in self._opened_items(_batch_item_groups(self._to_open(entries))):
                self._facts.add(opened.facts)
                for item, reject in zip(items, opened.rejects, strict=True):
                    self._note_result(item, reject)
        unseen = sum(self._expected_unseen(kind) for kind in (False, True))
        expected = self._num_rejects - self._dropped.total() + unseen
        if job.licences is not None:
            job.licences.check_spelling(
                {name: f"{num:,} inputs" for name, num in self._dropped.items() if name},
                self._licences,
            )
        licences = [
            LicenceCount(licence=name, records=num) for name, num in sorted(self._licences.items())
        ]
        return CorpusCheck(
            name=f"{spec.name}/{job.split}",
            parts={name: self._parts[name] for name in sorted(self._parts)},
            rejects=self._rejects.holdings(),
            omissions=group_omissions(omissions),
            num_composed=self._facts.num_composed,
            licences=tuple(licences),
            num_pictures=self._media[False],
            num_opened_pictures=self._opened[False],
            num_clips=self._media[True],
            num_opened_clips=self._opened[True],
            duplicates=tuple(self._duplicates),
            num_duplicates=self._num_duplicates,
            pictures=_picture_facts(self._facts),
            clip_seconds=_spread_of_values(self._facts.clip_seconds),
            num_dropped=self._dropped.total(),
            expected_rejects=expected,
            failure=self._describe_prepare_failure(expected),
        )

    def _describe_prepare_failure(self, expected: float) -> str:
        """Returns why preparing would fail, as the end of a sentence; "" if it would not."""
        if self._num_inputs and self._dropped.total() == self._num_inputs:
            return f"all {self._num_inputs:,} inputs were dropped by licences.allow"
        num_inputs = self._num_inputs - self._dropped.total()
        return self._job.config.reject_fault(expected, num_inputs)

    def _opened_items(
        self, batches: Iterable[list[Item]]
    ) -> Iterator[tuple[list[Item], OpenedItems]]:
        """Yields batches of items with what became of them, in order."""
        job, wanted = self._job, 0
        for is_clip, num in self._items.items():
            limit = num if self._open_all else min(num, CLIPS if is_clip else PICTURES)
            wanted += limit * (_CLIP if is_clip else 1)
        num_opened = 0

        def report(items: Sequence[Item]) -> None:
            nonlocal num_opened
            num_opened += len(items)
            self._report(f"{num_opened:,} inputs opened, of {self._num_inputs:,} read")

        if wanted <= _MANY or not uses_processes(job.config):
            limits = job.config.video_limits()
            opener = MediaOpener(self._root, self._unpacked, job.decode, limits)
            with contextlib.closing(opener):
                for items in batches:
                    yield items, opener.open(items)
                    report(items)
            return
        # The processes read no rows, so they need no reader; one that the user wrote may be theirs
        # alone.
        of_media = dataclasses.replace(
            job, source="images", split="train", work=str(self._folder), code="", features={}
        )
        with local_workers(of_media):
            pool = pool_of(of_media.work)
            assert pool is not None
            waiting: collections.deque[tuple[list[Item], Future[list[Any]]]] = collections.deque()
            for items in batches:
                waiting.append((items, pool.submit(open_step, job.decode, items)))
                # A few wait, so that no process has to: memory does not grow with the corpus.
                if len(waiting) > 2 * job.config.num_workers:
                    yield waiting[0][0], waiting[0][1].result()[0]
                    report(waiting.popleft()[0])
            for items, opened in waiting:
                yield items, opened.result()[0]
                report(items)

    def _numbered_item_lines(self, entries: Iterable[Item | Reject]) -> Iterator[str]:
        """Yields the line of each item, with its number in reading order after a tab."""
        for number, entry in enumerate(entries, start=1):
            self._num_inputs += 1
            if number % _REPORTED == 0:
                self._report(f"{number:,} inputs read")
            entry, line = line_of_item(entry)
            if isinstance(entry, Reject):
                self._note_reject(entry)
                continue
            self._items[_is_clip(entry)] += 1
            self._drawn[_is_clip(entry)].add(pixels_key(line), entry.media)
            yield f"{line[:-1]}\t{number}\n"  # JSON has no tabs.

    def _unpack_drawn(self, unpacked: "_NumberedMedia") -> None:
        """Reads everything again, to store the drawn ones of the pictures that must be unpacked."""
        corpus = self._job.corpus(self._root, unpacked)
        for number, _ in enumerate(items_of_units(self._job, corpus, [""]), start=1):
            if number % _REPORTED == 0:
                self._report(f"{number:,} of {self._num_inputs:,} inputs read again")
        self._places = unpacked.places

    def _to_open(self, lines: Iterable[str]) -> Iterator[list[Item]]:
        """Yields the items that are opened, those of the same pixels together; counts others."""
        for key, group in itertools.groupby(lines, pixels_key):
            media: set[Media] = set()
            is_clip, to_open = False, []
            # Of one id there may be several.
            for identity, same in itertools.groupby(group, item_id):
                listed = [self._parse_item_line(line) for line in same]
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
                    to_open += (item for _, item in listed)
                else:
                    self._unopened[is_clip] += 1
                    self._note_record(listed[0][1])
            self._media[is_clip] += len(media)
            if to_open:
                self._opened[is_clip] += len(media)
                yield to_open

    def _parse_item_line(self, line: str) -> tuple[int, Item]:
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
            places = (f"input {number} ({item.source})" for number, item in listed)
            self._duplicates.append(DuplicateId(id=identity, places=tuple(places)))

    def _note_result(self, item: Item, reject: Reject | None) -> None:
        if reject is not None:
            self._note_reject(reject)
            self._drawn_rejects[_is_clip(item)] += item.id in self._drawn_ids
        else:
            self._note_record(item)
        self._drawn_ids.discard(item.id)

    def _note_reject(self, reject: Reject) -> None:
        self._num_rejects += 1
        if (licence := dropped_licence(vars(reject))) is not None:
            self._dropped[licence] += 1
        self._rejects.add(reject)

    def _note_record(self, item: Item) -> None:
        part = self._parts.setdefault(item.part, PartHoldings())
        part.add(images=len(item.media), suffixes=len(item.suffixes), lang=item.lang)
        self._licences[item.licence.licence] += 1

    def _expected_unseen(self, is_clip: bool) -> float:
        """Returns the expected rejects among the items that were not opened."""
        num = self._drawn_items[is_clip]
        return self._unopened[is_clip] * self._drawn_rejects[is_clip] / num if num else 0.0


def _batch_item_groups(groups: Iterable[list[Item]]) -> Iterator[list[Item]]:
    """Yields the items of several groups together: as much as takes some seconds at most."""
    batch: list[Item] = []
    weight = 0
    for group in groups:
        batch += group
        weight += sum(_CLIP if _is_clip(item) else 1 for item in group)
        if weight >= _BATCH:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _picture_facts(facts: MediaFacts) -> PictureFacts | None:
    """Returns the modes and sizes of pictures; None if none has a header."""
    width, height = _spread_of_values(facts.widths), _spread_of_values(facts.heights)
    if width is None or height is None:
        return None
    return PictureFacts(
        modes=dict(facts.modes.most_common()),
        num_alpha=facts.num_alpha,
        num_16_bit=facts.num_16_bit,
        width=width,
        height=height,
    )


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


def _spread_of_values(counts: Mapping[float, int]) -> Spread | None:
    """Returns the spread of values, each with its number; None if there are none."""
    if not counts:
        return None
    values, half = sorted(counts), sum(counts.values()) / 2
    ends = itertools.accumulate(counts[value] for value in values)
    median = next(value for value, end in zip(values, ends, strict=True) if end >= half)
    return Spread(least=values[0], median=median, most=values[-1])
