"""Locks of files, and names that are taken once, on file systems as clusters have them.

Lustre has locks only if it is mounted with `-o flock`, NFS only with its lock daemon. BeeGFS and
AFS have no hard links between two folders; exFAT, SMB and many FUSE file systems have none at all.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from infra.errors import ConfigError

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP)


class NoLocksError(ConfigError, OSError):
    """A folder's file system has no locks; the message is one line, with the cure."""


def lock_file(file: IO[Any], how: int) -> None:
    """Locks an open file, by `flock`: the kernel frees the lock when its holder ends.

    Args:
      file: the file.
      how: `fcntl.LOCK_EX` or `LOCK_SH`, with `LOCK_NB` for no waiting.

    Raises:
      BlockingIOError: with `LOCK_NB`, if another process has it.
      NoLocksError: if the file system has no locks.
    """
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise NoLocksError(
            f"{Path(file.name).parent} is on a file system without locks ({error.strerror} for "
            f"flock), which a store and its caches need: mount it with them, Lustre with -o flock "
            f"and NFS with its lock daemon, or name another folder: --store or PARCEL_STORE, and "
            f"PARCEL_STATE for the caches of a bucket."
        ) from None


def take_name(
    partial: Path, name: Path, lock: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Gives a whole file its name, if that is free; it may lose its first one.

    Args:
      partial: the file, on the same file system.
      name: its name.
      lock: returns the lock of all who take names there, where the file system has no links.

    Raises:
      FileExistsError: if the name is taken.
      OSError: if it cannot be given.
    """
    try:
        # A link, since it fails where a name exists; a rename would replace what is there.
        os.link(partial, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # In turns instead. The rename is one step, too, so no reader sees half of a file, and a
        # process that is killed leaves either the partial file or the whole one.
        with lock():
            if os.path.lexists(name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(name)) from None
            os.rename(partial, name)
