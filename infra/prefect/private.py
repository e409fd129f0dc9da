"""Files and folders that nobody but their owner may read."""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import IO

_REFUSALS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of a file system that keeps no modes, such as vfat and some mounts of a network."""


class ModeRefusedError(PermissionError):
    """A file of one's own is open to others, and its file system refuses to close it."""


def make_private(folder: Path) -> None:
    """Makes a folder of one's own, or closes one that is there, with all below it, to others.

    Raises:
      ModeRefusedError: if its file system does not close it.
      PermissionError: if it is another user's, who left it open.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    close_to_others(folder)  # First, so that nobody enters meanwhile.
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            close_to_others(Path(where, name))


def open_private(path: Path, mode: str) -> IO[str]:
    """Opens a text file for writing, which only its owner can read, whatever the umask.

    Raises:
      ModeRefusedError: if its file system does not close it.
      PermissionError: if it is another user's.
    """

    def opener(name: str, flags: int) -> int:
        handle = os.open(name, flags, 0o600)
        try:
            close_to_others(path, handle)  # It may have been there, open to others.
        except OSError:
            os.close(handle)
            raise
        return handle

    return open(path, mode, opener=opener)


def close_to_others(path: Path, handle: int | None = None) -> None:
    """Takes away what others may do with a file or a folder; links stay as they are.

    Args:
      path: path of the file.
      handle: the file, where it is open.

    Raises:
      ModeRefusedError: if its file system does not do so.
      PermissionError: if it is another user's.
    """
    owner = -1
    try:
        found = path.lstat() if handle is None else os.fstat(handle)
        owner = found.st_uid
        # Only where it is needed: vfat that is mounted with umask=077 is private, and refuses 0600.
        if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077:
            os.chmod(path if handle is None else handle, stat.S_IMODE(found.st_mode) & 0o700)
    except FileNotFoundError:
        pass  # Such as SQLite's journal, deleted meanwhile.
    except OSError as error:
        if error.errno not in _REFUSALS or owner != os.geteuid():
            raise
        raise ModeRefusedError(
            error.errno,
            f"{path} is open to other users, and its file system does not let you close it "
            f"(chmod: {os.strerror(error.errno)}), as vfat does not: mount it with umask=077, or "
            f"use a folder on another file system",
        ) from None


def owner_of(path: Path) -> tuple[Path, int]:
    """Returns a file, or the nearest folder above it that may be looked at, and its owner's id."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            return place, place.lstat().st_uid
    return path, 0
