"""Files below a source's folder that look like data, and that its reader does not read."""

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from pipelines.records.hashing import stable_hash
from pipelines.records.schema import Omission
from pipelines.sources.reading.corpus import Corpus, is_unicode, printable_name

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

_LISTS = {"state.json": ("_data_files",), "index.json": ("shards", "chunks")}
"""Names of lists of files, and the keys under which they list them."""

_LIVE = re.compile(
    r"(?:^|/)(?:(_delta_log|_spark_metadata|_temporary|\.hoodie|\.nv-meta)/|"
    r"(_committed_\d+$|_versions/[^/]+\.manifest$|metadata/[^/]+\.metadata\.json$))"
)
"""Files in which engines for tables, and Energon, say which files of a folder count."""

_CACHE = re.compile(r"(?:^|/)cache-[0-9a-f]+(?:_\d+_of_\d+)?\.arrow$")
"""What `datasets` keeps of `map` and `filter` beside what it made that of."""

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


def unlisted_files(corpus: Corpus) -> dict[str, str]:
    """Returns the files that do not count by a list in their folder: name -> reason; "" for a list.

    The lists are those of `datasets` (state.json) and of MosaicML and Lightning (index.json).

    Raises:
      ValueError: if a list cannot be followed, or is that of an engine for tables.
    """
    return corpus.once("unlisted files", lambda: _unlisted_files(corpus))


def _unlisted_files(corpus: Corpus) -> dict[str, str]:
    names = [path.relative_to(corpus.folder).as_posix() for path in corpus.files()]
    reasons = {name: "cache of datasets" for name in names if _CACHE.search(name)}
    lists: dict[str, tuple[str, set[str]]] = {}
    present = set(names)
    for name in names:
        if live := _LIVE.search(name):
            raise ValueError(
                f"{corpus.relative(corpus.folder / name[: live.start()])} must hold live files "
                f"alone, got {live[1] or live[2]}, which says which are and is not followed; "
                f"export the live rows to another folder, or move this one away."
            )
        folder, _, file = name.rpartition("/")
        if file in _LISTS and (entries := _entries(corpus, name)) is not None:
            files = [_files_of_entry(folder, entry) for entry in entries]
            if any(map(present.isdisjoint, files)):
                raise ValueError(
                    f"{corpus.folder / name} lists files that are not there; copy them."
                )
            lists[folder] = file, set().union(*files)
    for name in names:
        folder, _, file = name.rpartition("/")
        of_folder, listed = lists.get(folder, ("", {name}))
        if name not in listed:
            reasons[name] = f"not listed in {of_folder}" if file != of_folder else ""
    return reasons


def _entries(corpus: Corpus, name: str) -> list[Any] | None:
    """Returns what a JSON file lists; None if it is no list of files."""
    fields: Any = corpus.load_json(corpus.folder / name)
    keys = _LISTS[posixpath.basename(name)]
    found = [fields[key] for key in keys if key in fields] if isinstance(fields, dict) else []
    if found and fields.get("_indices_data_files"):
        raise ValueError(f"{corpus.folder / name} selects rows; save them anew by save_to_disk.")
    return found[0] if found and isinstance(found[0], list) else None


def _files_of_entry(folder: str, entry: Any) -> set[str]:
    # {"filename": …} of datasets and Lightning, {"raw_data": {"basename": …}, …} of MosaicML.
    parts = [entry, *entry.values()] if isinstance(entry, dict) else []
    names = (p.get(key) for p in parts if isinstance(p, dict) for key in ("filename", "basename"))
    return {posixpath.normpath(posixpath.join(folder, n)) for n in names if isinstance(n, str)}


def data_files(
    corpus: Corpus, source: str, names: Iterable[str], unlisted: Mapping[str, str] | None = None
) -> Iterator[Omission]:
    """Yields those of some files, which a source does not read, that look like data.

    Args:
      corpus: the corpus.
      source: name of the source.
      names: names below its folder.
      unlisted: `unlisted_files`, for a source that reads every file of a kind.
    """
    for name in names:
        if looks_like_data(name):
            reason = "hidden file" if is_hidden(name) else f"no kind of file that {source} reads"
            if reason := (unlisted or {}).get(name, reason):
                yield Omission(source=corpus.relative(corpus.folder / name), reason=reason)


def unfollowed(
    corpus: Corpus, is_of_source: Callable[[str], bool] = lambda name: True
) -> Iterator[Omission]:
    """Yields the entries of a folder that `Corpus.files` passes over, though they have names.

    Args:
      corpus: the corpus; only one on this machine has such entries.
      is_of_source: whether a name below the folder could be the source's.
    """
    if not corpus.is_local:
        return
    for folder, folders, files in os.walk(corpus.folder):
        for path in sorted(Path(folder, name) for name in (*folders, *files)):
            name = path.relative_to(corpus.folder).as_posix()
            if not is_unicode(name):
                source = corpus.relative(corpus.folder / printable_name(name))
                yield Omission(source=source, reason="name is not UTF-8; rename it")
            elif not is_of_source(name) or path.is_file():
                continue
            elif path.is_symlink():
                what = "folder, which is not followed" if path.is_dir() else "missing file"
                yield Omission(source=corpus.relative(path), reason=f"link to a {what}")
            elif not path.is_dir() and (looks_like_data(name) or is_media(name)):
                yield Omission(source=corpus.relative(path), reason="neither a file nor a folder")
        folders[:] = filter(is_unicode, folders)


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
