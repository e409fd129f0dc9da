"""One file from an address: in pieces that survive a broken connection, compared by digest."""

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

_PIECE = 1 << 20
"""Read at a time [bytes]."""

_TIMEOUT = 60.0
"""Longest silence of a server [s]."""

_TRIES = 5
"""Connections that bring nothing new, one after the other, before a download has failed."""

_PAUSE = 1.0
"""Before the second of them; each later pause is twice as long [s]."""

_ALGORITHMS = ("sha256", "sha1", "md5")
_BROKEN = (OSError, http.client.HTTPException)
"""What a connection raises that breaks; refusals by the server are `HTTPError`, an OSError too."""


class DownloadError(RuntimeError):
    """A file that could not be fetched, or is another than was expected."""


def download(
    address: str,
    path: Path,
    *,
    digest: str = "",
    on_progress: Callable[[int], None] | None = None,
    pause: float = _PAUSE,
) -> str:
    """Fetches a file, and returns its sha256 [hex]; nothing has its name before it is whole.

    What an earlier, broken download of the same file left beside `path` is gone on with, if the
    server says that it is still the same file.

    Args:
      address: http:// or https://; redirects are followed.
      path: where to; its folder is made if absent.
      digest: "sha256:…", "sha1:…" or "md5:…" of the file [hex]; "" where none is known.
      on_progress: called with the bytes there are so far.
      pause: before the second try of a broken connection [s].

    Raises:
      DownloadError: if the server refuses, connections keep breaking, or the digest is another.
    """
    algorithm, _, expected = digest.partition(":")
    if digest and algorithm not in _ALGORITHMS:
        raise ValueError(f"digest must begin with {', '.join(_ALGORITHMS)}, got {digest!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    _fetch(address, partial, on_progress, pause)
    hashes = {name: hashlib.new(name) for name in {"sha256", algorithm or "sha256"}}
    with partial.open("rb") as file:
        while piece := file.read(_PIECE):
            for one in hashes.values():
                one.update(piece)
    if digest and (found := hashes[algorithm].hexdigest()) != expected:
        _forget(partial)
        raise DownloadError(
            f"{address} has {algorithm} {found}, expected {expected}: it was changed, or damaged "
            f"on its way. It is not kept; fetch it again, or ask its publisher."
        )
    partial.replace(path)
    _version_file(partial).unlink(missing_ok=True)
    return hashes["sha256"].hexdigest()


def _fetch(
    address: str, partial: Path, on_progress: Callable[[int], None] | None, pause: float
) -> None:
    tries, there = 0, _size(partial)
    while True:
        try:
            if _continue(address, partial, on_progress):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416:  # What is there is not of this file.
                    _forget(partial)
                elif error.code < 500 and error.code not in (408, 429):
                    told = f"{error.code} {error.reason}"
                    raise DownloadError(f"{address} cannot be fetched: {told}.") from None
                problem = f"{error.code} {error.reason}"
        except _BROKEN as error:
            problem = str(error) or type(error).__name__
        tries = 1 if _size(partial) > there else tries + 1
        there = _size(partial)
        if tries == _TRIES:
            raise DownloadError(
                f"{address} cannot be fetched: {problem}. {there} bytes are kept; the same "
                f"command goes on from there."
            )
        time.sleep(pause * 2 ** (tries - 1))


def _continue(address: str, partial: Path, on_progress: Callable[[int], None] | None) -> bool:
    """Reads from one connection, and returns whether the file is whole."""
    there, known = _size(partial), _version(partial)
    # Without a version to compare, what is there may be of another file.
    headers = {"Range": f"bytes={there}-", "If-Range": known} if there and known else {}
    headers["User-Agent"] = "parcel-pipeline"  # Some publishers refuse Python's own.
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        if answer.status != 206:
            there = 0
        version = _version_of(answer)
        _version_file(partial).write_text(json.dumps(version))
        length = answer.headers.get("Content-Length")
        total = None if length is None else there + int(length)
        with partial.open("r+b" if there else "wb") as file:
            file.seek(there)
            while piece := answer.read(_PIECE):
                file.write(piece)
                there += len(piece)
                if on_progress is not None:
                    on_progress(there)
            file.flush()
            os.fsync(file.fileno())
    return total is None or there == total


def _version_of(answer: http.client.HTTPResponse) -> str:
    """Returns the mark of this version of the file at the address; "" where there is none."""
    tag = answer.headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified") or ""


def _version_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}-version")


def _version(partial: Path) -> str:
    try:
        return json.loads(_version_file(partial).read_text())
    except (OSError, ValueError):
        return ""


def _size(partial: Path) -> int:
    return partial.stat().st_size if partial.is_file() else 0


def _forget(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _version_file(partial).unlink(missing_ok=True)
