"""The target of a conversion, which is written completely or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


class RequestError(ValueError):
    """The user's request is wrong: a bad path, or an option that does not fit."""


@contextlib.contextmanager
def atomic_output(out: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, and renames it to `out` if the body succeeds.

    Raises:
      RequestError: if `out` exists and is not an empty folder, or its parent folder is missing.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RequestError(f"DST must not exist yet, got {out}; name another, or remove it.")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"DST must lie in an existing folder, got {out}.")
    # Beside the target, so that the rename stays on one disk, and with the process's id, so that
    # two conversions at once do not write into each other.
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        yield partial
        # An empty folder was accepted above. A file cannot be renamed onto it.
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    finally:
        # After a success the path is gone, and nothing is removed.
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)
