"""A folder of raw files without annotations: one record per file, to see which files decode."""

from collections.abc import Iterator
from pathlib import Path

from pipelines.records.schema import Omission, Reject
from pipelines.sources.reading.corpus import Corpus, OmissionCounts
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.omissions import is_hidden, unfollowed
from pipelines.sources.reading.spec import SourceSpec

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
        if path.suffix.lower() in _SIDECARS or is_hidden(_media_path_in_corpus(corpus, path)):
            continue
        yield Item(
            id=f"{name}/{_media_path_in_corpus(corpus, path)}",
            part=name,
            media=(corpus.media(path, video=video),),
            prefix="caption en",
            suffixes=("",),
            task=name,
        )


def _sidecar_omissions(corpus: Corpus, split: str) -> Iterator[Omission]:
    """Yields the files that are not taken for media: their texts enter no record."""
    del split
    # Every picture may have a text: they are counted by kind, with one of them as an example.
    counts = OmissionCounts()
    for path in corpus.files():
        if is_hidden(_media_path_in_corpus(corpus, path)):
            counts.add("hidden files", _media_path_in_corpus(corpus, path))
        elif (suffix := path.suffix.lower()) in _SIDECARS:
            counts.add(f"texts beside media ({suffix})", _media_path_in_corpus(corpus, path))
    yield from counts.omissions(corpus.relative(corpus.folder))
    yield from unfollowed(corpus)


def _media_path_in_corpus(corpus: Corpus, path: Path) -> str:
    return path.relative_to(corpus.folder).as_posix()


SOURCES = (
    SourceSpec(
        name="images",
        folder="images",
        splits=("train",),
        read=read_images,
        omissions=_sidecar_omissions,
        antialias=True,
        antialias_eval=True,
        has_clips=False,
    ),
    SourceSpec(
        name="videos",
        folder="videos",
        splits=("train",),
        read=read_videos,
        omissions=_sidecar_omissions,
        antialias=False,
        antialias_eval=False,
    ),
)
