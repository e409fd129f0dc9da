"""A folder of raw files without annotations: one record per file, to see which files decode."""

from collections.abc import Iterator

from pipelines.records.schema import Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.spec import SourceSpec

_SIDECARS = (".json", ".md", ".srt", ".txt", ".vtt", ".csv")
"""Texts beside media; every other file is taken for media, whatever its extension."""


def read_images(corpus: Corpus, split: str) -> Iterator[Item | Reject]:
    """Yields a would-be record per file, with the prefix `caption en` and an empty suffix."""
    del split
    return _file_items(corpus, "images", video=False)


def read_videos(corpus: Corpus, split: str) -> Iterator[Item | Reject]:
    """Yields a would-be record per file, with the prefix `caption en` and an empty suffix."""
    del split
    return _file_items(corpus, "videos", video=True)


def _file_items(corpus: Corpus, name: str, *, video: bool) -> Iterator[Item | Reject]:
    for path in corpus.files():
        if path.suffix.lower() in _SIDECARS:
            continue
        yield Item(
            id=f"{name}/{path.relative_to(corpus.folder).as_posix()}",
            part=name,
            media=(corpus.media(path, video=video),),
            prefix="caption en",
            suffixes=("",),
            task=name,
        )


SOURCES = (
    SourceSpec(
        name="images",
        folder="images",
        splits=("train",),
        read=read_images,
        antialias=True,
        antialias_eval=True,
    ),
    SourceSpec(
        name="videos",
        folder="videos",
        splits=("train",),
        read=read_videos,
        antialias=False,
        antialias_eval=False,
    ),
)
