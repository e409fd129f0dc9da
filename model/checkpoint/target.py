"""Where a conversion writes: all of it, or nothing."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


class RequestError(ValueError):
    """The request is wrong: a path, or an option that does not go with it."""


@contextlib.contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Yields a path to write a file or make a folder at, which becomes `out` if all goes well.

    Raises:
      RequestError: if `out` exists, or the folder it is to lie in does not.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RequestError(f"DST must not exist yet, got {out}; name another, or remove it.")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"DST must lie in an existing folder, got {out}.")
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        yield partial
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)
