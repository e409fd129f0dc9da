"""The sources there are, by name."""

import dataclasses
from collections.abc import Callable, Iterator

from pipelines.benchmarks import registry as benchmarks
from pipelines.records.schema import Reject
from pipelines.sources import chartqa, media_files, msvd_qa, nlvr, refcoco, web
from pipelines.sources.item import Corpus, Item


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """One corpus layout.

    Attributes:
      name: also the folder it is looked for in, below the data root, unless told otherwise.
      splits: the splits it may have.
      read: lists its would-be records, lazily.
      antialias: whether its images are filtered when made smaller.
      num_frames: frames per video, unless told otherwise.
      frame_stride: their distance at 25 frames a second, unless told otherwise [frames].
    """

    name: str
    splits: tuple[str, ...]
    read: Callable[[Corpus, str], Iterator[Item | Reject]]
    antialias: bool
    num_frames: int = 16
    frame_stride: int = 30

    def read_splits(self, corpus: Corpus, split: str) -> Iterator[Item | Reject]:
        """Yields the would-be records of `split`; "train+val" is both."""
        for one in self.parse(split):
            yield from self.read(corpus, one)

    def parse(self, split: str) -> list[str]:
        """Returns the splits of "a+b".

        Raises:
          ValueError: if one is not of this source.
        """
        splits = split.split("+")
        for one in splits:
            if one not in self.splits or splits.count(one) > 1:
                raise ValueError(
                    f"split of {self.name} must be one of {', '.join(self.splits)} "
                    f'(or several, each once, as "a+b"), got {split!r}.'
                )
        return splits


def _benchmark(name: str, splits: tuple[str, ...], read) -> SourceSpec:
    row = benchmarks.get(name)
    frames = {"num_frames": row.num_frames, "frame_stride": row.frame_stride}
    return SourceSpec(
        name=name,
        splits=splits,
        read=read,
        antialias=row.antialias,
        **(frames if row.num_frames else {}),
    )


_SPECS = (
    _benchmark("chartqa", chartqa.SPLITS, chartqa.read),
    SourceSpec(name="images", splits=("train",), read=media_files.read_images, antialias=True),
    _benchmark("msvd_qa", msvd_qa.SPLITS, msvd_qa.read),
    _benchmark("nlvr", nlvr.SPLITS, nlvr.read),
    _benchmark("refcoco", refcoco.SPLITS, refcoco.read),
    SourceSpec(name="videos", splits=("train",), read=media_files.read_videos, antialias=False),
    SourceSpec(name="web", splits=("train",), read=web.read, antialias=True),
)

SOURCES: dict[str, SourceSpec] = {spec.name: spec for spec in _SPECS}


def get(name: str) -> SourceSpec:
    """Returns a source.

    Raises:
      ValueError: if there is none of that name, with the list of those there are.
    """
    if name not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {name!r}.")
    return SOURCES[name]
