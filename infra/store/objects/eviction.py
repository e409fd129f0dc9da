"""Keeps folders of files that can be made again at any time below a size."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from infra.file_locks import lock_file

_MIN_AGE = 60.0
"""Age from which an empty file cannot be one that is being written [s]."""

_LOCK = ".lock"


def evict_oldest_files(folder: Path, limit: float) -> None:
    """Deletes the least recently used files until the rest is below a limit, and empty files.

    A power cut leaves files empty. If another process is already at it, this call does nothing.
    Readers of a deleted file have it open, or make it again.

    Args:
      folder: folder, with all folders below it.
      limit: largest sum of the files' sizes [bytes].
    """
    with (folder / _LOCK).open("a") as lock:
        try:
            lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        files: list[tuple[float, int, str]] = []
        for parent, _, names in os.walk(folder):
            for name in names:
                path = f"{parent}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    stat = os.stat(path)
                    if stat.st_size:
                        # Most disks note the time of use only to a day, or not at all.
                        files.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
                    elif name != _LOCK and time.time() - stat.st_mtime > _MIN_AGE:
                        os.unlink(path)
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= limit:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
