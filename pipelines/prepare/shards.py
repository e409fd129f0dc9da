"""One shard of work: a list of items -> records -> files -> a report; `graph` gives it to Beam."""

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.listing import read_work
from pipelines.records import example
from pipelines.records.schema import Reject
from pipelines.records.tfrecord import ShardWriter
from pipelines.transforms.decode import DecodeConfig, DecodeMedia
from pipelines.transforms.make_records import MakeRecords
from pipelines.video.client import VideoChild

_PROGRESS: dict[str, Callable[[int], None]] = {}
"""Who counts finished items of a run in this process, by the run's work folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What every shard of a run shares; all strings and numbers, so it travels to any worker.

    Attributes:
      config: the run.
      decode: how the source's media become pixels.
      parts: every part's name, sorted; each gets a file per shard, an empty one if need be.
      data_root: where the raw files are [path].
      out: the dataset's folder [path].
      work: lists of items, and what is known of finished shards [path].
    """

    config: PrepareConfig
    decode: DecodeConfig
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
    make_records = MakeRecords(DecodeMedia(job.data_root, job.decode, video))
    with _appearing(rejects_file(job.work, shard)) as rejects:
        for item, result in make_records(read_work(job.work, shard)):
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
