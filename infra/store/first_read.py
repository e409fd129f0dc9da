"""The digests of an artifact's files are checked when a machine first reads them.

A disk may flip a bit, and an editor may save a file that nobody meant to change: the size and the
name stay, and what is computed from them is wrong without a word. So every file is read once more
than needed on each machine, and then remembered by its size, times and inode, which change with its
content (see `raw_files`). Files too large to be read whole have checksums of their own, which their
readers check: records one each, arrays one per block.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from infra.store.manifest import File
from infra.store.raw_files import RawDigestCache

MEMORY = "first_reads.sqlite"
"""File of a machine's state that remembers what was read; safe to delete."""

_MAX_WHOLE = 16 * 2**20
"""Largest file that is checked where others are read in ranges [bytes]."""

_checked: dict[str, bool] = {}
"""Folder -> whether all its files were checked in this process, large ones too."""
_lock = threading.Lock()


class DamagedArtifactError(OSError):
    """A file has other bytes than its artifact was committed with; the message is one line."""


def check_first_read(
    folder: Path, files: Mapping[str, File], memory: Path, *, in_ranges: bool = False
) -> str | None:
    """Returns the first file whose bytes are not those of the manifest; None if there is none.

    Args:
      folder: local folder with the files.
      files: path in it -> digest and size.
      memory: the machine's memory of what was read; made when first needed.
      in_ranges: whether the files are to be read in ranges: large ones are then left to readers.

    Raises:
      OSError: if a file is missing or cannot be read.
    """
    with _lock:
        if _checked.get(str(folder), False) or (in_ranges and str(folder) in _checked):
            return None
    names = [n for n, file in files.items() if not in_ranges or file.size <= _MAX_WHOLE]
    # A store that may only be read has no memory: its files are read each time.
    place = memory if memory.exists() else memory.parent
    cache = RawDigestCache(memory if os.access(place, os.W_OK) else ":memory:")
    try:
        digests = cache.digests([folder / name for name in names])
    finally:
        cache.close()
    for name, digest in zip(names, digests, strict=True):
        if digest.sha256 != files[name].sha256:
            return name
    with _lock:
        _checked[str(folder)] = _checked.get(str(folder), False) or not in_ranges
    return None


def set_aside(folder: Path, name: str, *, is_copy: bool) -> str:
    """Takes a damaged file out of the way, so that its artifact is made again; returns what it did.

    Args:
      folder: local folder of the file.
      name: path in it.
      is_copy: whether the folder is a copy of what a bucket holds: then all of it goes, and is
        fetched again.
    """
    if is_copy:
        shutil.rmtree(folder, ignore_errors=True)
        return "this machine's copy was deleted; the next read fetches it again"
    path = folder / name
    with contextlib.suppress(OSError):  # A store that may only be read.
        path.rename(path.with_name(f"{path.name}.damaged"))
        return f"it is now {path.name}.damaged, and the next run makes the artifact again"
    return "the store cannot be written, so it stays where it is"
