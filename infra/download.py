"""Downloads a file from a URL: resumes after a broken connection, and verifies the digest."""

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 20
"""Size of one read [bytes]."""

_TIMEOUT = 60.0
"""Longest wait for the next bytes of a server [s]."""

_MAX_TRIES = 5
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
    # Beside the file are, until it is complete:
    #
    #   <name>.partial           the bytes so far
    #   <name>.partial-version   the server's ETag or date of that file, to resume by
    #
    # The digest is taken of the whole file at the end, since a part of it may be of an earlier try.
    _download_with_retries(address, partial, on_progress, pause)
    hashes = {name: hashlib.new(name) for name in {"sha256", algorithm or "sha256"}}
    with partial.open("rb") as file:
        while chunk := file.read(_CHUNK):
            for hasher in hashes.values():
                hasher.update(chunk)
    if digest and (actual := hashes[algorithm].hexdigest()) != expected:
        _delete_partial(partial)
        raise DownloadError(
            f"{address} has {algorithm} {actual}, expected {expected}: it was changed, or damaged "
            f"on its way. It is not kept; fetch it again, or ask its publisher."
        )
    partial.replace(path)
    _version_file(partial).unlink(missing_ok=True)
    return hashes["sha256"].hexdigest()


def _download_with_retries(
    address: str, partial: Path, on_progress: Callable[[int], None] | None, pause: float
) -> None:
    tries, num_received = 0, _partial_size(partial)
    while True:
        try:
            if _download_rest(address, partial, on_progress):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416:  # The file has no such range: the partial one is not of it.
                    _delete_partial(partial)
                elif error.code < 500 and error.code not in (408, 429):
                    status = f"{error.code} {error.reason}"
                    raise DownloadError(f"{address} cannot be fetched: {status}.") from None
                problem = f"{error.code} {error.reason}"
        except _BROKEN as error:
            problem = str(error) or type(error).__name__
        # Only connections in a row that brought nothing count, so a slow line that breaks every
        # minute still brings a large file.
        tries = 1 if _partial_size(partial) > num_received else tries + 1
        num_received = _partial_size(partial)
        if tries == _MAX_TRIES:
            raise DownloadError(
                f"{address} cannot be fetched: {problem}. {num_received} bytes are kept; the same "
                f"command goes on from there."
            )
        time.sleep(pause * 2 ** (tries - 1))


def _download_rest(address: str, partial: Path, on_progress: Callable[[int], None] | None) -> bool:
    """Reads from one connection, and returns whether the file is complete."""
    offset, saved_version = _partial_size(partial), _saved_version(partial)
    # Resume only with a version to compare: else the partial file may be of another file.
    headers = (
        {"Range": f"bytes={offset}-", "If-Range": saved_version} if offset and saved_version else {}
    )
    headers["User-Agent"] = "parcel-pipeline"  # Some publishers refuse Python's own.
    request = urllib.request.Request(address, headers=headers)
    opener = urllib.request.build_opener(_WebRedirects)
    with opener.open(request, timeout=_TIMEOUT) as response:
        if response.status != 206:  # The server sends the file from its first byte.
            offset = 0
        # Noted before the first byte: should this break, the next try knows of what it has a part.
        version = _response_version(response)
        _version_file(partial).write_text(json.dumps(version))
        length = response.headers.get("Content-Length")
        total = None if length is None else offset + int(length)
        with partial.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                offset += len(chunk)
                if on_progress is not None:
                    on_progress(offset)
            file.flush()
            os.fsync(file.fileno())
    # A server that states no length closes the connection at the end; there is nothing to compare.
    return total is None or offset == total


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https alone; urllib's own follows those to FTP, too."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # pyright: ignore
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            reason = f"it redirects to {newurl}, which is neither http nor https"
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _response_version(response: http.client.HTTPResponse) -> str:
    """Returns the file's version: its strong ETag, else Last-Modified; "" if it has neither."""
    tag = response.headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified") or ""


def _version_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}-version")


def _saved_version(partial: Path) -> str:
    try:
        return json.loads(_version_file(partial).read_text())
    except (OSError, ValueError):
        return ""


def _partial_size(partial: Path) -> int:
    return partial.stat().st_size if partial.is_file() else 0


def _delete_partial(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _version_file(partial).unlink(missing_ok=True)
