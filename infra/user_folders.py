"""Folders of the user's own, below a home, which not every user has.

In a container that runs as any user (`docker run -u 12345`, OpenShift, runAsUser) no entry of
passwd names them, and HOME is `/`, which is not theirs.
"""

import os
import tempfile
from pathlib import Path


def user_folder(variable: str, usual: str) -> Path | None:
    """Returns the folder `parcel` of a kind; None if the user has no home that they may write to.

    Args:
      variable: variable that names the folder above it, such as `XDG_STATE_HOME`.
      usual: that folder below their home where the variable is not set, such as ".local/state".
    """
    if named := os.environ.get(variable):
        return Path(named) / "parcel"
    try:
        folder = Path.home() / usual / "parcel"
    except RuntimeError:  # No HOME, and no entry in passwd.
        return None
    # Its rights count only where it must be made: a key, say, may be there to be read.
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return folder if there == folder or os.access(there, os.W_OK | os.X_OK) else None


def temporary_folder(purpose: str) -> Path:
    """Returns a folder of temporary files that all commands of this user find, and nobody else's.

    Its name is drawn, and it counts only if it is this user's: whoever shares the machine may have
    made one of any name before.
    """
    prefix = f"parcel-{purpose}-{os.getuid()}-"
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        stat = path.lstat()
        # A folder, closed to others; not a link to one.
        if stat.st_uid == os.getuid() and stat.st_mode & 0o170077 == 0o040000:
            return path
    return Path(tempfile.mkdtemp(prefix=prefix))
