"""Disks that fail: the real call is made or not, and an error comes back."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def fail(
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: int,
    *,
    when: Callable[[str], bool],
    after: bool = False,
) -> None:
    """Makes a call of `os` fail for paths that `when` accepts.

    Args:
      monkeypatch: undoes it.
      call: "stat", "link", ...; its last path decides.
      error: an errno.
      when: which paths.
      after: the call is made before it fails: only its reply is lost.
    """
    real: Callable[..., Any] = getattr(os, call)

    def failing(*args: Any, **options: Any) -> Any:
        paths = [os.fspath(arg) for arg in args if isinstance(arg, str | os.PathLike)]
        if not paths or not when(str(paths[-1])):
            return real(*args, **options)
        if after:
            real(*args, **options)
        raise OSError(error, os.strerror(error), paths[-1])

    monkeypatch.setattr(os, call, failing)


def journal(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Notes what is synced and what is linked, in order, and lets both happen."""
    noted: list[tuple[str, Path]] = []
    fsync, link = os.fsync, os.link

    def noting_fsync(handle: int) -> None:
        noted.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    def noting_link(source: Any, target: Any, **options: Any) -> None:
        noted.append(("link", Path(target)))
        link(source, target, **options)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "link", noting_link)
    return noted


STALE, BROKEN = errno.ESTALE, errno.EIO
