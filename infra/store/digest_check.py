"""The digests of an artifact's files are checked when a machine first reads them.

A disk may flip a bit, and an editor may save a file that nobody meant to change: the size and the
name stay, and what is computed from them is wrong without a word. So every file is read once more
than needed on each machine, and then remembered by its device, inode, size and times, which change
with its content (see `raw_files`). Records and arrays have checksums of their own, which their
readers check: one each, and one per block. So where they are read in ranges, they are left to
these; what such a reader finds is compared with the file's digest then.
"""

import contextlib
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.store.history import ARTIFACTS
from infra.store.manifest import File
from infra.store.raw_files import RawDigestCache

FIRST_READS = "first_reads"
"""Beginning of the files that remember what was read, one for each machine; safe to delete."""

_CHECKED_BY_READERS = (".tfrecord", ".safetensors")
"""Endings of files with checksums of their own."""

_BUSY_S = 1.0
"""Longest wait for another process's look at the memory [s]; reading a file again is no harm."""

_checked: dict[str, bool] = {}
"""Folder -> whether all its files were checked in this process, those with checksums too."""
_lock = threading.Lock()


class DamagedArtifactError(OSError):
    """A file has other bytes than its artifact was committed with; the message is one line."""


def check_first_read(
    folder: Path, files: Mapping[str, File], state: Path, *, in_ranges: bool = False
) -> str | None:
    """Returns the first file whose bytes are not those of the manifest; None if there is none.

    Args:
      folder: local folder with the files.
      files: path in it -> digest and size.
      state: folder on this machine, or on a disk that it shares, with the memory of what it read.
      in_ranges: whether the files are to be read in ranges.

    Raises:
      OSError: if a file is missing or cannot be read.
    """
    with _lock:
        if _checked.get(str(folder), False) or (in_ranges and str(folder) in _checked):
            return None
    names = [n for n in files if not in_ranges or not n.endswith(_CHECKED_BY_READERS)]
    # A store that may only be read has no memory: its files are read each time.
    memory = state / f"{FIRST_READS}.{socket.gethostname()}.sqlite"
    place = memory if memory.exists() else state
    memory = memory if os.access(place, os.W_OK) else ":memory:"
    cache = RawDigestCache(memory, _BUSY_S, by_device=True)
    try:
        # By its real path: a store may be a link to files of another one.
        digests = cache.digests([folder.resolve() / name for name in names])
    finally:
        cache.close()
    for name, digest in zip(names, digests, strict=True):
        if digest.sha256 != files[name].sha256:
            return name
    with _lock:
        _checked[str(folder)] = _checked.get(str(folder), False) or not in_ranges
    return None


def forget_deleted(state: Path) -> None:
    """Forgets the files that `gc` deleted, on whatever machine they were read.

    Args:
      state: as in `check_first_read`; the store itself, if that is a folder.
    """

    def is_there(path: Path) -> bool:
        # Another machine may have this disk elsewhere: its paths end as they do here.
        _, found, rest = str(path).rpartition(f"/{ARTIFACTS}/")
        return path.exists() or (bool(found) and (state / ARTIFACTS / rest).exists())

    for memory in sorted(state.glob(f"{FIRST_READS}.*.sqlite")):
        cache = RawDigestCache(memory, _BUSY_S)
        try:
            cache.prune(is_there)
        finally:
            cache.close()


def set_aside(folder: Path, name: str, *, is_copy: bool) -> str:
    """Takes a damaged file out of the way, so that its artifact is made again; returns what it did.

    Args:
      folder: local folder of the file.
      name: path in it.
      is_copy: whether the folder is a copy of what a bucket holds: then all of it goes, and is
        fetched again.
    """
    if is_copy:
        # Renamed first: half a folder would be taken for a whole one.
        doomed = folder.with_name(f"{uuid.uuid4().hex}.partial")
        with contextlib.suppress(OSError):
            folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return "this machine's copy was deleted; the next read fetches it again"
    path = folder / name
    return move_aside(path.name, lambda aside: path.rename(path.with_name(aside)))


def move_aside(name: str, move: Callable[[str], object]) -> str:
    """Gives a damaged file another name, where it is stored; returns what became of it.

    Args:
      name: its name.
      move: gives it the name that it is called with.
    """
    aside = f"{name}.damaged"
    try:
        with contextlib.suppress(FileNotFoundError):  # Another process found it, too.
            move(aside)
    except OSError:
        return "the store cannot be written, so it stays where it is"
    return f"it is now {aside}, and a run makes the artifact again"
