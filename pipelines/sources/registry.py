"""The sources there are, by name."""

import dataclasses
from collections.abc import Callable, Iterator

from pipelines.benchmarks import registry as benchmarks
from pipelines.records.schema import Reject
from pipelines.sources.captions import coco as coco_captions
from pipelines.sources.captions import multilingual as multilingual_captions
from pipelines.sources.captions import scicap, screens
from pipelines.sources.documents import book_covers, chartqa, scene_text, school
from pipelines.sources.documents import pages as documents
from pipelines.sources.item import Corpus, Item
from pipelines.sources.layout import Layout
from pipelines.sources.own import media_files
from pipelines.sources.own import rows as own_rows
from pipelines.sources.pairs import marvl, nlvr
from pipelines.sources.remote_sensing import rsvqa as remote_sensing
from pipelines.sources.segmentation import refcoco
from pipelines.sources.slicing import Slice, parse_slice, sliced
from pipelines.sources.video import captions as video_captions
from pipelines.sources.video import questions as video_questions
from pipelines.sources.vqa import counting, scene_graphs
from pipelines.sources.vqa import photos as photo_questions
from pipelines.sources.web import images as web


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """One corpus layout.

    Attributes:
      name: in configs.
      folder: where it is looked for below the data root, unless told otherwise.
      splits: the splits it may have.
      read: lists its would-be records, lazily.
      antialias: whether images of training splits are filtered when made smaller.
      antialias_eval: whether those of other splits are.
      num_frames: frames per video, unless told otherwise.
      frame_stride: their distance at 25 frames a second, unless told otherwise [frames].
      files: split -> its annotation files below its folder, each as the names it may have.
      publisher: where its authors publish it; "" for layouts that many write.
    """

    name: str
    folder: str
    splits: tuple[str, ...]
    read: Callable[[Corpus, str], Iterator[Item | Reject]]
    antialias: bool
    antialias_eval: bool
    num_frames: int = 16
    frame_stride: int = 30
    files: Callable[[str], tuple[tuple[str, ...], ...]] = lambda split: ()
    publisher: str = ""

    def read_splits(self, corpus: Corpus, split: str) -> Iterator[Item | Reject]:
        """Yields the would-be records of `split`; "train+val" is both, "val[:5%]" a part.

        Raises:
          FileNotFoundError: if a file is missing, naming it and where it is published.
        """
        try:
            for one in self._slices(split):
                yield from sliced(one, lambda one=one: self.read(corpus, one.split))
        except FileNotFoundError as error:
            if not self.publisher:
                raise
            raise FileNotFoundError(
                f"{str(error).rstrip('.')}; its authors publish it at {self.publisher}."
            ) from error

    def parse(self, split: str) -> list[str]:
        """Returns the splits of "a+b", without what is sliced of them.

        Raises:
          ValueError: if one is not of this source.
        """
        return [one.split for one in self._slices(split)]

    def antialias_of(self, split: str) -> bool:
        """Returns whether a dataset's images are filtered: "train+val" is a training split."""
        return self.antialias if split.startswith("train") else self.antialias_eval

    def _slices(self, split: str) -> list[Slice]:
        slices = [parse_slice(one) for one in split.split("+")]
        names = [one.split for one in slices]
        for one in names:
            if one not in self.splits or names.count(one) > 1:
                raise ValueError(
                    f"split of {self.name} must be one of {', '.join(self.splits)} "
                    f'(or several, each once, as "a+b"; a part as "a[:5%]"), got {split!r}.'
                )
        return slices


def _benchmark(name: str, splits: tuple[str, ...], read, *, folder: str = "", **more) -> SourceSpec:
    row = benchmarks.get(name)
    frames = {"num_frames": row.num_frames, "frame_stride": row.frame_stride}
    return SourceSpec(
        name=name,
        folder=folder or name,
        splits=splits,
        read=read,
        antialias=row.antialias != "never",
        antialias_eval=row.antialias == "always",
        **(frames if row.num_frames else {}),
        **more,
    )


def _layout(layout: Layout) -> SourceSpec:
    return _benchmark(
        layout.name,
        layout.splits,
        layout.open,
        folder=layout.folder,
        files=layout.files,
        publisher=layout.publisher,
    )


def _plain(
    name: str, read, *, antialias: bool, splits: tuple[str, ...] = ("train",), **more
) -> SourceSpec:
    return SourceSpec(
        name=name,
        folder=name,
        splits=splits,
        read=read,
        antialias=antialias,
        antialias_eval=antialias,
        **more,
    )


_FAMILIES = (
    book_covers, coco_captions, counting, documents, marvl, multilingual_captions, photo_questions,
    remote_sensing, scene_graphs, scene_text, school, scicap, screens, video_captions,
    video_questions,
)  # fmt: skip

_FINDING_THEIR_OWN = {"chartqa": chartqa, "nlvr": nlvr, "refcoco": refcoco}
"""Readers of layouts in which a file may be left out, or which look for files of any name."""

_SPECS = (
    *(_layout(layout) for family in _FAMILIES for layout in family.LAYOUTS),
    *(
        _benchmark(name, file.SPLITS, file.read, files=file.files, publisher=file.PUBLISHER)
        for name, file in _FINDING_THEIR_OWN.items()
    ),
    _plain("images", media_files.read_images, antialias=True),
    _plain(
        own_rows.NAME, own_rows.read, antialias=True, splits=own_rows.SPLITS, files=own_rows.files
    ),
    _plain("videos", media_files.read_videos, antialias=False),
    _plain("web", web.read, antialias=True),
)

SOURCES: dict[str, SourceSpec] = {spec.name: spec for spec in sorted(_SPECS, key=lambda s: s.name)}


def get(name: str) -> SourceSpec:
    """Returns a source.

    Raises:
      ValueError: if there is none of that name, with the list of those there are.
    """
    if name not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {name!r}.")
    return SOURCES[name]


def reader_module(name: str) -> str:
    """Returns the module that reads a source."""
    for family in _FAMILIES:
        if any(layout.name == name for layout in family.LAYOUTS):
            return family.__name__
    return SOURCES[name].read.__module__
