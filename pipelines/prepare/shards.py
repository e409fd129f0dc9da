"""One shard of work: decode, squash, encode, write. Plain functions; `graph` gives them to Beam."""

import contextlib
import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from pipelines.prepare.config import PrepareConfig
from pipelines.records import example
from pipelines.records.schema import Record, Reject
from pipelines.records.tfrecord import ShardWriter
from pipelines.sources.item import BadInput, Item, Media, stable_hash
from pipelines.sources.listing import read_work
from pipelines.sources.registry import get
from pipelines.transforms.augment import Change, augment_image
from pipelines.transforms.images import prepare_image
from pipelines.transforms.render import Pixels, render
from pipelines.video.client import VideoChild

_PROGRESS: dict[str, Callable[[int], None]] = {}
"""Who counts finished items of a run in this process, by the run's work folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What every shard of a run shares; all strings and numbers, so it travels to any worker.

    Attributes:
      config: the run.
      source: name of the source.
      antialias: whether images are filtered when made smaller.
      parts: every part's name, sorted; each gets a file per shard, an empty one if need be.
      data_root: where the raw files are [path].
      out: the dataset's folder [path].
      work: lists of items, and what is known of finished shards [path].
    """

    config: PrepareConfig
    source: str
    antialias: bool
    parts: tuple[str, ...]
    data_root: str
    out: str
    work: str

    def shard_name(self, part: str, shard: int) -> str:
        """Returns the file name of one part's shard."""
        return f"{part}-{shard:05d}-of-{self.config.num_shards:05d}.tfrecord"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardReport:
    """What became of one shard's items: records per part, and how many rejects."""

    shard: int
    num_records: dict[str, int]
    num_rejects: int

    @property
    def num_items(self) -> int:
        """Items that ended in either place."""
        return sum(self.num_records.values()) + self.num_rejects


def report_file(work: str, shard: int) -> Path:
    """Returns where a finished shard is reported; the file appears last."""
    return Path(work) / f"{shard:05d}.done"


def rejects_file(work: str, shard: int) -> Path:
    """Returns where the rejects of a finished shard are."""
    return Path(work) / f"{shard:05d}.rejects"


def read_report(work: str, shard: int) -> ShardReport | None:
    """Returns the report of a shard, or None if it is not finished."""
    path = report_file(work, shard)
    if not path.exists():
        return None
    return ShardReport(**json.loads(path.read_text(encoding="utf-8")))


def watch(work: str, count: Callable[[int], None] | None) -> None:
    """Calls `count` with the items of a run finished in this process; None stops."""
    if count is None:
        _PROGRESS.pop(work, None)
    else:
        _PROGRESS[work] = count


def write_shards(job: Job, shard: int, video: VideoChild) -> ShardReport:
    """Writes one shard of every part and returns its report; a shard that is done is not redone."""
    done = read_report(job.work, shard)
    if done is not None:
        return done
    writers = {part: ShardWriter(Path(job.out) / job.shard_name(part, shard)) for part in job.parts}
    num_rejects = 0
    with _appearing(rejects_file(job.work, shard)) as rejects:
        for item, result in _records(job, shard, video):
            if isinstance(result, Reject):
                print(result.to_json(), file=rejects)
                num_rejects += 1
            else:
                writers[item.part].write(example.encode(result))
            if count := _PROGRESS.get(job.work):
                count(1)
    counts = {part: writer.commit() for part, writer in writers.items()}
    report = ShardReport(shard=shard, num_records=counts, num_rejects=num_rejects)
    with _appearing(report_file(job.work, shard)) as file:
        json.dump(dataclasses.asdict(report), file)
    return report


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[TextIO]:
    """Opens a text file that gets its name when it is whole."""
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    with partial.open("w", encoding="utf-8") as file:
        yield file
    partial.replace(path)


def _records(job: Job, shard: int, video: VideoChild) -> Iterator[tuple[Item, Record | Reject]]:
    """Yields every item of a shard, by id, with its record or its reject."""
    previous = ""
    pixels = _PixelCache(job, video)
    for item in read_work(job.work, shard):
        try:
            if item.id == previous:
                yield item, _reject(item, "read", "duplicate id", "")
                continue
            previous = item.id
            decoded = [pixels.get(media, item) for media in item.media]
        except BadInput as error:
            yield item, _reject(item, "decode", str(error), pixels.sha256)
            continue
        try:
            yield item, _render(item, decoded, pixels)
        except BadInput as error:
            yield item, _reject(item, "render", str(error), decoded[0].sha256)


def _render(item: Item, decoded: list[Pixels], pixels: "_PixelCache") -> Record:
    """Returns the record; where a crop cuts off what it is about, that of the whole picture."""
    try:
        return render(item, decoded)
    except BadInput:
        if not any(one.crop for one in decoded):
            raise
    return render(item, [pixels.get(media, item, plain=True) for media in item.media])


def _reject(item: Item, stage: str, reason: str, sha256: str) -> Reject:
    source = item.media[0].source
    return Reject(id=item.id, stage=stage, reason=reason, source=source, source_sha256=sha256)


class _PixelCache:
    """Decodes media and remembers the last item's: items of the same pixels follow each other."""

    def __init__(self, job: Job, video: VideoChild) -> None:
        spec = get(job.source)
        self._job = job
        self._video = video
        self._image_spec = job.config.image_spec(antialias=job.antialias)
        self._sampling = job.config.sampling(spec)
        self._augmentation = job.config.augmentation()
        self._media: Media | None = None
        self._results: dict[Change | None, tuple[Pixels | BadInput, str]] = {}
        self.sha256 = ""

    def get(self, media: Media, item: Item, *, plain: bool = False) -> Pixels:
        """Returns what is in `media`; `self.sha256` is its digest even if that fails.

        Args:
          media: where it is.
          item: whose it is; what precedes "#" in its id decides how it is augmented.
          plain: without augmentation.

        Raises:
          BadInput: if it cannot be decoded.
        """
        key = f"{item.id.partition('#')[0]} {media.source}"
        plain = plain or media.edit is not None  # A benchmark's own edit is all it gets.
        drawn = None if plain else self._augmentation.draw(self._job.config.seed, key)
        if self._media != media:
            self._media, self._results = media, {}
        if drawn not in self._results:
            self.sha256 = ""
            try:
                result: Pixels | BadInput = self._decode(media, drawn)
            except BadInput as error:
                result = error
            self._results[drawn] = (result, self.sha256)
        result, self.sha256 = self._results[drawn]
        if isinstance(result, BadInput):
            raise result
        return result

    def _decode(self, media: Media, change: Change | None) -> Pixels:
        root = self._job.data_root
        if media.video:
            path = media.location(root)
            try:
                with open(path, "rb") as file:
                    self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise BadInput(
                    f"{error.strerror or type(error).__name__}: {media.source}"
                ) from error
            sampling = dataclasses.replace(
                self._sampling, draw=self._draw(media.source), start=media.start, end=media.end
            )
            return self._video.sample(path, self.sha256, sampling, self._image_spec)
        data = media.read(root)
        self.sha256 = hashlib.sha256(data).hexdigest()
        if change is not None:
            image, size, crop = augment_image(data, self._image_spec, change)
            return Pixels(images=(image,), size=size, sha256=self.sha256, crop=crop)
        image, size = prepare_image(data, self._image_spec, media.edit)
        return Pixels(images=(image,), size=size, sha256=self.sha256)

    def _draw(self, source: str) -> float:
        """Returns a number in [0, 1) of one file, whoever prepares it: records share its pixels."""
        return (stable_hash(f"{self._job.config.seed} {source}") >> 11) / 2**53
