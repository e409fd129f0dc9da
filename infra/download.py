"""Downloads a file from a URL: resumes after a broken connection, and verifies the digest."""

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
"""Size of one read [bytes]."""

_TIMEOUT = 60.0
"""Longest wait for the next bytes of a server [s]."""

_TRIES = 5
"""Connections in a row without new bytes after which a download has failed."""

_PAUSE = 1.0
"""Pause before the second of these connections; each later pause is twice as long [s]."""

_ALGORITHMS = ("sha256", "sha1", "md5")
_BROKEN = (OSError, http.client.HTTPException)
"""Exceptions of a broken connection. A server's refusal, `HTTPError`, is an OSError, too."""


class DownloadError(RuntimeError):
    """A file could not be fetched, or its digest is not the expected one."""


def download(
    address: str,
    path: Path,
    *,
    digest: str = "",
    on_progress: Callable[[int], None] | None = None,
    pause: float = _PAUSE,
) -> str:
    """Fetches a file and returns its sha256 [hex]; `path` appears only once the file is complete.

    An earlier, broken download left a partial file beside `path`. It is resumed if the server says
    that the file has not changed.

    Args:
      address: http:// or https://; redirects are followed.
      path: path of the new file; its folder is made if absent.
      digest: expected digest, "sha256:…", "sha1:…" or "md5:…" [hex]; "" if none is known.
      on_progress: called with the number of bytes received so far.
      pause: pause before the second try of a broken connection [s].

    Raises:
      DownloadError: if the server refuses, connections keep breaking, or the digest differs.
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
                if error.code == 416:  # The file has no such range: the partial one is not of it.
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
    """Reads from one connection, and returns whether the file is complete."""
    there, known = _size(partial), _version(partial)
    # Resume only with a version to compare: else the partial file may be of another file.
    headers = {"Range": f"bytes={there}-", "If-Range": known} if there and known else {}
    headers["User-Agent"] = "parcel-pipeline"  # Some publishers refuse Python's own.
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        if answer.status != 206:  # The server sends the file from its first byte.
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
    """Returns the file's version: its strong ETag, else Last-Modified; "" if it has neither."""
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
