"""Downloads a file from a URL: resumes after a broken connection, and verifies the digest."""

import dataclasses
import errno
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping
from email.message import Message
from pathlib import Path

_CHUNK = 1 << 20
"""Size of one read [bytes]."""

_TIMEOUT = 60.0
"""Longest wait for the next bytes of a server [s]."""

_MAX_TRIES = 5
"""Connections in a row without new bytes after which a download has failed."""

_PAUSE = 1.0
"""Pause before the second of these connections; each later pause is twice as long [s]."""

_MAX_RETRY_AFTER = 600.0
"""Longest pause that a server may ask for by `Retry-After` [s]."""

ALGORITHMS = ("sha256", "sha1", "md5", "git-sha1")
"""Known digests. "git-sha1" is git's name of a file's bytes, as `git hash-object` prints it."""

_BROKEN = (OSError, http.client.HTTPException)
"""Exceptions of a broken connection. A server's refusal, `HTTPError`, is an OSError, too."""

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of the disk that is written to; they name no file. Not EIO: the number is also TLS's for a
broken connection."""


class DownloadError(RuntimeError):
    """A file could not be fetched, or its digest is not the expected one."""


class DownloadRefusedError(DownloadError):
    """A server refused a request, and would refuse it again.

    Attributes:
      status: HTTP status.
      headers: headers of the answer.
    """

    def __init__(self, message: str, status: int, headers: Message) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


def download(
    address: str,
    path: Path,
    *,
    digest: str = "",
    max_size: int | None = None,
    secrets: Mapping[str, str] | None = None,
    on_progress: Callable[[int], None] | None = None,
    pause: float = _PAUSE,
) -> str:
    """Fetches a file and returns its sha256 [hex]; `path` appears only once the file is complete.

    An earlier, broken download left a partial file beside `path`. It is resumed if the server says
    that the file has not changed.

    Args:
      address: http:// or https://; redirects are followed.
      path: path of the new file; its folder is made if absent.
      digest: expected digest, "sha256:…", "sha1:…", "md5:…" or "git-sha1:…" [hex]; "" if none is
        known.
      max_size: largest size of the file; None for any [bytes].
      secrets: headers for the address's own host, which no other host that it redirects to gets.
      on_progress: called with the number of bytes received so far.
      pause: pause before the second try of a broken connection [s].

    Raises:
      RefusedError: if the server refuses.
      DownloadError: if connections keep breaking, the disk is full, the file is larger than
        `max_size`, or the digest differs.
    """
    algorithm, _, expected = digest.partition(":")
    if digest and algorithm not in ALGORITHMS:
        raise ValueError(f"digest must begin with {', '.join(ALGORITHMS)}, got {digest!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    # Beside the file are, until it is complete:
    #
    #   <name>.partial           the bytes so far
    #   <name>.partial-version   the server's ETag or date of that file, to resume by
    #
    # The digest is taken of the whole file at the end, since a part of it may be of an earlier try.
    request = _Request(address, bool(digest), max_size, secrets or {})
    # A download that was killed while its digest was taken is complete.
    if not digest or max_size is None or _partial_size(partial) != max_size:
        _download_with_retries(request, partial, on_progress, pause)
    digests = file_digests(partial, {"sha256", algorithm or "sha256"})
    if digest and (actual := digests[algorithm]) != expected:
        _delete_partial(partial)
        raise DownloadError(
            f"{address} has {algorithm} {actual}, expected {expected}: it was changed, or damaged "
            f"on its way. It is not kept; fetch it again, or ask its publisher."
        )
    partial.replace(path)
    _version_file(partial).unlink(missing_ok=True)
    return digests["sha256"]


def file_digests(path: Path, algorithms: Collection[str]) -> dict[str, str]:
    """Returns algorithm -> digest of a file [hex]; the algorithms are some of `ALGORITHMS`."""
    hashes = {name: hashlib.new(name.removeprefix("git-")) for name in algorithms}
    if "git-sha1" in hashes:  # Git digests "blob 12\0" and the 12 bytes.
        hashes["git-sha1"].update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            for hasher in hashes.values():
                hasher.update(chunk)
    return {name: hasher.hexdigest() for name, hasher in hashes.items()}


@dataclasses.dataclass(frozen=True)
class _Request:
    """What is requested; attributes as the arguments of `download`."""

    address: str
    has_digest: bool
    max_size: int | None
    secrets: Mapping[str, str] = dataclasses.field(repr=False)


def _download_with_retries(
    request: _Request, partial: Path, on_progress: Callable[[int], None] | None, pause: float
) -> None:
    address = request.address
    tries, num_received = 0, _partial_size(partial)
    while True:
        retry_after = 0.0
        try:
            if _download_rest(request, partial, on_progress):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            with error:
                problem = f"{error.code} {error.reason}"
                if error.code == 416:  # The file has no such range: the partial one is not of it.
                    _delete_partial(partial)
                elif error.code < 500 and error.code not in (408, 429):
                    raise DownloadRefusedError(
                        f"{address} cannot be fetched: {problem}.", error.code, error.headers
                    ) from None
                retry_after = _retry_after(error.headers)
        except _BROKEN as error:
            # The disk's errors, or a file's: another connection would be of no use.
            if isinstance(error, OSError) and (error.errno in _DISK or error.filename):
                raise DownloadError(
                    f"{partial} cannot be written: {error.strerror}. {_partial_size(partial)} "
                    f"bytes are kept; with room there, the same command goes on from them."
                ) from None
            problem = str(error) or type(error).__name__
        # Only connections in a row that brought nothing count, so a slow line that breaks every
        # minute still brings a large file.
        tries = 1 if _partial_size(partial) > num_received else tries + 1
        num_received = _partial_size(partial)
        if tries == _MAX_TRIES or retry_after > _MAX_RETRY_AFTER:
            later = f" in {retry_after:.0f} s" if retry_after > _MAX_RETRY_AFTER else ""
            raise DownloadError(
                f"{address} cannot be fetched: {problem}. {num_received} bytes are kept; the same "
                f"command{later} goes on from there."
            )
        time.sleep(max(pause * 2 ** (tries - 1), retry_after))


def _retry_after(headers: Message) -> float:
    """Returns the pause that a server asks for; 0 where it asks for none, or until a date [s]."""
    text = (headers.get("Retry-After") or "").strip()
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _download_rest(
    request: _Request, partial: Path, on_progress: Callable[[int], None] | None
) -> bool:
    """Reads from one connection, and returns whether the file is complete."""
    offset, saved_version = _partial_size(partial), _saved_version(partial)
    # Resume only with a version or a digest to compare: else the partial file may be of another
    # file.
    headers = {}
    if offset and (saved_version or request.has_digest):
        headers["Range"] = f"bytes={offset}-"
        if saved_version:
            headers["If-Range"] = saved_version
    headers["User-Agent"] = "parcel-pipeline"  # Some publishers refuse Python's own.
    opening = urllib.request.Request(request.address, headers=headers)
    for name, value in request.secrets.items():
        opening.add_unredirected_header(name, value)
    opener = urllib.request.build_opener(_WebRedirects)
    with opener.open(opening, timeout=_TIMEOUT) as response:
        if response.status != 206:  # The server sends the file from its first byte.
            offset = 0
        # Noted before the first byte: should this break, the next try knows of what it has a part.
        version = _response_version(response)
        _version_file(partial).write_text(json.dumps(version))
        total = None if response.length is None else offset + response.length
        _check_size(request, partial, total or 0)
        with partial.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                offset += len(chunk)
                _check_size(request, partial, offset)
                if on_progress is not None:
                    on_progress(offset)
            file.flush()
            os.fsync(file.fileno())
    # A server that states no length closes the connection at the end; there is nothing to compare.
    return total is None or offset == total


def _check_size(request: _Request, partial: Path, size: int) -> None:
    if request.max_size is not None and size > request.max_size:
        _delete_partial(partial)
        raise DownloadError(
            f"{request.address} is larger than the {request.max_size} bytes that it should have; "
            f"it is not kept."
        )


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https alone; urllib's own follows those to FTP, too.

    Headers that are not to be redirected stay with scheme, host and port.
    """

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # pyright: ignore
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if new.scheme not in ("http", "https"):
            reason = f"it redirects to {newurl}, which is neither http nor https"
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            redirected.unredirected_hdrs.update(req.unredirected_hdrs)
        return redirected


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
