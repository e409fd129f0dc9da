"""Files below a source's folder that look like data, and that its reader does not read."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from pipelines.records.hashing import stable_hash
from pipelines.records.schema import Omission
from pipelines.sources.reading.corpus import LINK, NOT_UTF8, Corpus

T = TypeVar("T")

PICTURE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".png", ".tif", ".tiff"),
    ".webp",
)
"""Extensions of pictures in archives of samples."""

MEDIA_SUFFIXES = (
    *PICTURE_SUFFIXES,
    *(".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpg", ".ppm", ".webm", ".wmv"),
)
"""Extensions of pictures and clips."""

_DATA_SUFFIXES = {
    *("array", "arrayrecord", "bagz", "ipc", "parq", "pq", "record", "records", "riegeli"),
    *("7z", "arrow", "avro", "beton", "br", "bz2", "csv", "db", "feather", "gz", "h5", "hdf5"),
    *("jsonlines", "mat", "ods", "rec", "recordio", "tab", "wds"),
    *("jl", "json", "jsonl", "lmdb", "lz4", "lzma", "mdb", "mds", "msgpack", "ndjson", "npy"),
    *("npz", "orc", "parquet", "pickle", "pkl", "rar", "sqlite", "tar", "tbz", "tbz2", "tfrec"),
    *("tfrecord", "tfrecords", "tgz", "tlz", "tsv", "txz", "tzst", "xls", "xlsx", "xml", "xz"),
    *("zip", "zst", "zstd"),
}
"""Extensions of tables, archives and packed files."""

_WORD = re.compile(r"[^a-z0-9]")

_OUR_FILES = ("export.json", "fetched.json")
"""Names of files that `parcel data export` and `parcel data fetch` write beside data."""


def looks_like_data(name: str) -> bool:
    """Returns whether an extension of a file is that of a table, an archive or a packed file."""
    file = PurePosixPath(name.lower()).name
    # Of "x.tfrecord-00000-of-00010" the extension goes up to the dash, of "x.jsonl~" to the tilde.
    words = {_WORD.split(suffix[1:])[0] for suffix in PurePosixPath(file).suffixes}
    return file not in _OUR_FILES and not words.isdisjoint(_DATA_SUFFIXES)


def is_media(name: str) -> bool:
    """Returns whether a file is a picture or a clip, by its extension."""
    return PurePosixPath(name.lower()).suffix in MEDIA_SUFFIXES


def is_hidden(name: str) -> bool:
    """Returns whether a name below a folder is hidden, as those that macOS writes beside files."""
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def data_files(corpus: Corpus, source: str, names: Iterable[str]) -> Iterator[Omission]:
    """Yields those of some files, which a source does not read, that look like data.

    Args:
      corpus: the corpus.
      source: name of the source.
      names: names below its folder.
    """
    for name in names:
        if looks_like_data(name):
            reason = "hidden file" if is_hidden(name) else f"no kind of file that {source} reads"
            yield Omission(source=corpus.relative(corpus.folder / name), reason=reason)


def unfollowed(
    corpus: Corpus, is_of_source: Callable[[str], bool] = lambda name: True
) -> Iterator[Omission]:
    """Yields what `Corpus.files`, which was read to its end, has passed over.

    Args:
      corpus: the corpus.
      is_of_source: whether a link's name, below the folder, could be the source's.
    """
    for path, reason in sorted(corpus.passed_over.items()):
        name = path.relative_to(corpus.folder).as_posix()
        if reason.startswith(LINK):
            is_told = is_of_source(name)
        else:
            is_told = reason == NOT_UTF8 or looks_like_data(path.name) or is_media(path.name)
        if is_told:
            yield Omission(source=corpus.relative(path), reason=reason)


def unlisted_media(
    corpus: Corpus, names: Iterable[str], listed: Iterable[str]
) -> Iterator[Omission]:
    """Yields the pictures and clips that no list names.

    Args:
      corpus: the corpus.
      names: names of files below its folder.
      listed: names that its lists give, below the data root; only read if there is a picture. One
        takes 8 bytes of memory.
    """
    media = [
        corpus.relative(corpus.folder / name)
        for name in names
        if is_media(name) and not is_hidden(name)
    ]
    if media:
        hashes = np.fromiter(map(stable_hash, listed), np.uint64)
        own = np.fromiter(map(stable_hash, media), np.uint64, len(media))
        for number in np.flatnonzero(~np.isin(own, hashes)):
            yield Omission(source=media[number], reason="no list names this file")


def note_empty(corpus: Corpus, path: Path, results: Iterable[T]) -> Iterator[T]:
    """Yields the entries of a file; counts it as empty if it has none, for no known reason."""
    counts, is_empty = corpus.omission_counts(path), True
    counts.clear()  # A part of a split is read twice.
    for result in results:
        is_empty = False
        yield result
    if is_empty and not len(counts):
        counts.add("empty file")
