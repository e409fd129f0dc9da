"""Folders of files that can be had again at any time, kept below a size."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

_WRITTEN = 60.0
"""Age from which an empty file is none that is being written [s]."""

_LOCK = ".lock"


def tidy(folder: Path, limit: float) -> None:
    """Deletes what was not used longest until the rest is below a limit, and empty files.

    A power cut leaves files empty. Who finds another process at it leaves it to that one. Readers
    of a file that goes have it open, or make it again.

    Args:
      folder: with all that lies below it.
      limit: of the files' sizes [bytes].
    """
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        found: list[tuple[float, int, str]] = []
        for parent, _, names in os.walk(folder):
            for name in names:
                path = f"{parent}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    stat = os.stat(path)
                    if stat.st_size:
                        # Times of use are rough on most disks: a day, or none at all.
                        found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
                    elif name != _LOCK and time.time() - stat.st_mtime > _WRITTEN:
                        os.unlink(path)
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= limit:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
