"""Files and folders that nobody but their owner may read."""

import os
import stat
from pathlib import Path
from typing import IO


def make_private(folder: Path) -> None:
    """Makes a folder of one's own, or closes one that is there, with all below it, to others.

    Raises:
      PermissionError: if it is another user's, who left it open.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _close(folder)  # First, so that nobody enters meanwhile.
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _close(Path(where, name))


def open_private(path: Path, mode: str) -> IO[str]:
    """Opens a text file for writing, which only its owner can read, whatever the umask."""

    def opener(name: str, flags: int) -> int:
        handle = os.open(name, flags, 0o600)
        os.fchmod(handle, 0o600)  # It may have been there, open to others.
        return handle

    return open(path, mode, opener=opener)


def _close(path: Path) -> None:
    """Takes away what others may do with a file or a folder; links stay as they are."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & 0o077:
            path.chmod(stat.S_IMODE(mode) & 0o700)
    except FileNotFoundError:
        pass  # Such as SQLite's journal, deleted meanwhile.
