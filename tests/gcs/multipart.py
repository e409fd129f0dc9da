"""Bodies of several parts: an object with its metadata, and batches of requests.

Clients end lines with CRLF (google-cloud-storage) or LF (gcsfs); the real server takes both.
"""

import dataclasses
import json
import re
from collections.abc import Mapping

from tests.gcs.objects import Refused

_BOUNDARY = re.compile(r'boundary="?([^";]+)"?', re.IGNORECASE)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


@dataclasses.dataclass(frozen=True)
class Call:
    """A request inside of a batch; header names are in lower case."""

    content_id: str
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


def read_related(content_type: str, body: bytes) -> tuple[dict[str, object], str, bytes]:
    """Splits an upload into its metadata, and the type and the bytes of the object."""
    boundary = _boundary(content_type)
    first = body.find(boundary)
    second = body.find(boundary, first + len(boundary))
    end = body.rfind(boundary + b"--")
    if not 0 <= first < second < end:
        raise Refused(400, "badContent", "Missing end boundary in multipart body.")
    # The line end before a boundary belongs to it. Its form shows in the first line, not in the
    # last bytes: an object may itself end in a CR.
    line_end = b"\r\n" if body.startswith(b"\r\n", first + len(boundary)) else b"\n"
    _, metadata = _headers(body[first + len(boundary) : second])
    blank = _BLANK_LINE.search(body, second)
    if not blank or blank.end() > end:
        raise Refused(400, "badContent", "A part of the multipart body has no headers.")
    headers = _fields(body[second + len(boundary) : blank.start()])
    data = body[blank.end() : end - len(line_end)]
    return json.loads(metadata), headers.get("content-type", "application/octet-stream"), data


def read_metadata(content_type: str, head: bytes) -> dict[str, object]:
    """Returns the metadata of an upload of which maybe only the head has arrived."""
    boundary = _boundary(content_type)
    parts = head.split(boundary, 2)
    return json.loads(_headers(parts[1])[1]) if len(parts) == 3 else {}


def read_batch(content_type: str, body: bytes) -> list[Call]:
    """Returns the requests of a batch."""
    calls = []
    for part in body.split(_boundary(content_type))[1:-1]:
        outer, inner = _headers(part)
        head, _, rest = inner.partition(b"\n")
        words = head.decode().split()
        if len(words) < 2:
            raise Refused(400, "badContent", f"Not a request line: {head[:80]!r}")
        headers, payload = _headers(b"\n" + rest)
        content_id = outer.get("content-id", "").strip("<>")
        calls.append(Call(content_id, words[0], words[1], headers, payload.strip()))
    return calls


def write_batch(boundary: str, answers: list[tuple[str, str, Mapping[str, str], bytes]]) -> bytes:
    """Joins the answers of a batch: content id, status line, headers and body of each."""
    parts = []
    for content_id, status_line, headers, body in answers:
        inner = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        parts.append(
            f"--{boundary}\r\nContent-Type: application/http\r\n"
            f"Content-ID: <response-{content_id}>\r\n\r\n"
            f"HTTP/1.1 {status_line}\r\n{inner}\r\n".encode()
            + body
            + b"\r\n"
        )
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def _boundary(content_type: str) -> bytes:
    match = _BOUNDARY.search(content_type)
    if not match:
        raise Refused(400, "badContent", f"No boundary in content type '{content_type}'.")
    return b"--" + match[1].encode()


def _headers(part: bytes) -> tuple[dict[str, str], bytes]:
    """Splits a part at its blank line, which may be the first."""
    blank = _BLANK_LINE.search(part)
    if not blank:
        return _fields(part), b""
    return _fields(part[: blank.start()]), part[blank.end() :]


def _fields(lines: bytes) -> dict[str, str]:
    found = {}
    for line in lines.decode("latin-1").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
    return found
