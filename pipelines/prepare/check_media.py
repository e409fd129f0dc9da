"""Opens the pictures and clips of a check, a few at a time, in this process or in one beside it."""

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from infra.store.backend import StoreBackend
from pipelines.images.header import read_header
from pipelines.images.square import ImageSpec
from pipelines.prepare.steps import Worker
from pipelines.records.schema import Reject
from pipelines.sources.reading.item import Item, Media
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.transforms.decode import DecodeConfig, DecodeMedia
from pipelines.transforms.make_records import MakeRecords
from pipelines.video.client import SampledFrames, VideoChild, VideoLimits
from pipelines.video.sampling import FrameSampling

_RECENT = 16
"""Pictures remembered as counted; the items of one picture follow each other."""


@dataclasses.dataclass(kw_only=True)
class MediaFacts:
    """Facts of opened pictures and clips; all but the last are of pictures that have a header.

    Attributes:
      modes: Pillow's mode -> pictures.
      widths: width as stored [pixels] -> pictures.
      heights: height as stored [pixels] -> pictures.
      num_alpha: pictures with an alpha channel or a transparent colour.
      num_16_bit: pictures with samples of more than 8 bits.
      num_composed: records in which a background shows through transparent pixels.
      clip_seconds: length of a clip, to a tenth [s] -> clips.
    """

    modes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    widths: collections.Counter[float] = dataclasses.field(default_factory=collections.Counter)
    heights: collections.Counter[float] = dataclasses.field(default_factory=collections.Counter)
    num_alpha: int = 0
    num_16_bit: int = 0
    num_composed: int = 0
    clip_seconds: collections.Counter[float] = dataclasses.field(
        default_factory=collections.Counter
    )

    def add(self, other: "MediaFacts") -> None:
        """Adds the facts of other pictures and clips."""
        for field in dataclasses.fields(self):
            total = getattr(self, field.name)
            total += getattr(other, field.name)
            setattr(self, field.name, total)


class OpenedItems(NamedTuple):
    """What became of some items.

    Attributes:
      rejects: each item's reject, or None for those that become records.
      facts: facts of their pictures and clips.
    """

    rejects: list[Reject | None]
    facts: MediaFacts


class MediaOpener:
    """Opens the media of items as preparing does. Not thread-safe.

    Args:
      data_root: the data root, opened by `raw_path`.
      unpacked: folder of the files in `Media.store`.
      decode: how media are decoded.
      limits: limits of a clip.
    """

    def __init__(
        self, data_root: Path, unpacked: StoreBackend, decode: DecodeConfig, limits: VideoLimits
    ) -> None:
        self._reader = _HeaderNotingReader(data_root, unpacked)
        self._video = _LengthNotingChild(limits)
        self._decode = DecodeMedia(self._reader, decode, self._video)

    def open(self, items: Sequence[Item]) -> OpenedItems:
        """Returns what preparing makes of items, which are sorted by id."""
        # What was seen before does not count, so that one process finds what several do.
        facts = MediaFacts()
        self._reader.restart(facts)
        self._video.facts = facts
        make_records = MakeRecords(self._decode)
        results = [result for _, result in make_records(self._reader.expected(items))]
        facts.num_composed = make_records.num_composed
        return OpenedItems([r if isinstance(r, Reject) else None for r in results], facts)

    def close(self) -> None:
        """Ends the video decoder."""
        self._video.close()


_openers: dict[int, MediaOpener] = {}
"""The opener of a worker's process, by the worker's id: there is one worker."""


def open_step(worker: Worker, decode: DecodeConfig, items: Sequence[Item]) -> list[OpenedItems]:
    """Opens items in a process of a `WorkerPool`, whose work folder has what was unpacked."""
    if id(worker) not in _openers:
        folder = worker.work_folder
        limits = folder.job.config.video_limits()
        _openers[id(worker)] = MediaOpener(folder.data_root, folder.files, decode, limits)
    return [_openers[id(worker)].open(items)]


class _HeaderNotingReader(MediaReader):
    """Reads media, and notes what the headers of pictures say."""

    def __init__(self, data_root: Path, unpacked: StoreBackend) -> None:
        super().__init__(data_root, unpacked)
        self._recent: collections.deque[Media] = collections.deque(maxlen=_RECENT)
        self._facts = MediaFacts()

    def restart(self, facts: MediaFacts) -> None:
        """Forgets what was counted, and adds to other facts from now on."""
        self._facts = facts
        self._recent.clear()

    def read(self, media: Media) -> bytes:
        data = super().read(media)
        header = None if media in self._recent else read_header(data)
        if header:
            self._recent.append(media)
            self._facts.modes[header.mode] += 1
            self._facts.widths[header.width] += 1
            self._facts.heights[header.height] += 1
            self._facts.num_alpha += header.has_alpha
            self._facts.num_16_bit += header.bits > 8
        return data


class _LengthNotingChild(VideoChild):
    """Decodes clips, and notes their lengths."""

    def __init__(self, limits: VideoLimits) -> None:
        super().__init__(limits)
        self.facts = MediaFacts()

    def sample(self, path: str, sampling: FrameSampling, spec: ImageSpec) -> SampledFrames:
        clip = super().sample(path, sampling, spec)
        self.facts.clip_seconds[round(clip.duration, 1)] += 1
        return clip
