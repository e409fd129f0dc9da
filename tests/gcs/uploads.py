"""Resumable uploads: sessions that take an object in chunks, and tell how much they hold.

Source: https://cloud.google.com/storage/docs/performing-resumable-uploads, and for what the
clients rely on beyond it, their code.
"""

import dataclasses
import re
import threading
import uuid
from collections.abc import Mapping

from tests.gcs.objects import Conditions, Content, Object, Refused, Store

STEP = 256 * 1024
"""Until the last chunk arrives, the size of a session's data is a multiple of this [bytes]."""

_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclasses.dataclass
class Session:
    """An upload that has begun.

    Attributes:
      conditions: preconditions, checked again when the object is written.
      fields: metadata the client sent, its expected hashes among them.
      total: size that was announced; None if unknown [bytes].
      data: what has arrived.
      outcome: the object written, or the refusal that ended it; None while it is open.
    """

    bucket: str
    name: str
    conditions: Conditions
    fields: Mapping[str, object]
    total: int | None
    data: bytearray = dataclasses.field(default_factory=bytearray)
    outcome: Object | Refused | None = None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Uploads:
    """The sessions of a server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions: dict[str, Session] = {}

    def start(
        self,
        bucket: str,
        name: str,
        conditions: Conditions,
        fields: Mapping[str, object],
        total: int | None,
    ) -> str:
        """Begins an upload if its preconditions hold now; returns its id."""
        self._store.check(bucket, name, conditions)
        key = uuid.uuid4().hex
        self._sessions[key] = Session(bucket, name, conditions, fields, total)
        return key

    def session(self, key: str) -> Session:
        try:
            return self._sessions[key]
        except KeyError:
            raise Refused(404, "notFound", f"No such upload: {key}") from None

    def cancel(self, key: str) -> None:
        session = self.session(key)
        with session.lock:
            _check_open(session)
            session.outcome = Refused(499, "cancelled", "The upload was cancelled.")
            session.data.clear()

    def take(
        self,
        key: str,
        chunk: memoryview,
        content_range: str | None,
        hashes: Mapping[str, object],
        *,
        part: int | None = None,
    ) -> Object | int:
        """Takes a chunk, or tells what is there.

        Args:
          chunk: the bytes; none for a query.
          content_range: the header; without it the chunk is all of the object.
          hashes: expected hashes of the whole, by their JSON names.
          part: takes this much of the chunk and no more, as if the rest had never come [bytes].

        Returns:
          The object if this was the last of it, else the bytes held.

        Raises:
          Refused: if the chunk does not fit, or the upload has ended in an error.
        """
        session = self.session(key)
        with session.lock:
            if isinstance(session.outcome, Object):
                return session.outcome
            _check_open(session)
            held = len(session.data)
            first, size, total = _read_range(content_range, len(chunk))
            if session.total is not None and total not in (None, session.total):
                raise Refused(
                    400,
                    "invalid",
                    f"The size announced was {session.total}, the chunk says {total} bytes.",
                )
            if first is None:  # A query, which ends the upload if it names what is held.
                return self._finish(session, hashes) if total == held else held
            if size != len(chunk):
                raise Refused(400, "invalid", f"{size} bytes in the range, {len(chunk)} came.")
            if first > held:
                raise Refused(400, "invalid", f"The chunk begins at {first}, {held} bytes held.")
            if total is not None and max(held, first + size) > total:
                raise Refused(400, "invalid", f"More than the {total} bytes of the object came.")
            last = first + size == total
            if not last and size < STEP:
                raise Refused(
                    400,
                    "badRequest",
                    "Invalid request.  The number of bytes uploaded is required to be equal or "
                    f"greater than {STEP}, except for the final request (it's recommended to be "
                    f"the exact multiple of {STEP}).  The received request contained {size} "
                    "bytes, which does not meet this requirement.",
                )
            if part is not None and part < size:
                size, last = part, False
            end = first + size if last else (first + size) // STEP * STEP
            # Bytes that are held already may be sent again.
            if end > held:
                session.data += chunk[held - first : end - first]
            return self._finish(session, hashes) if last else len(session.data)

    def _finish(self, session: Session, hashes: Mapping[str, object]) -> Object:
        content = Content.of(bytes(session.data))
        session.data.clear()
        try:
            check_hashes(content, session.fields)
            check_hashes(content, hashes)
            session.outcome = self._store.put(
                session.bucket, session.name, content, session.fields, session.conditions
            )
        except Refused as refused:
            session.outcome = refused
            raise
        return session.outcome


def check_hashes(content: Content, expected: Mapping[str, object]) -> None:
    """Raises `Refused` if the client announced other hashes than these bytes have."""
    for field, found in (("crc32c", content.crc32c), ("md5Hash", content.md5)):
        if expected.get(field) not in (None, found):
            raise Refused(
                400,
                "invalid",
                f'Provided {field} "{expected[field]}" doesn\'t match calculated {field} '
                f'"{found}".',
            )


def _check_open(session: Session) -> None:
    if isinstance(session.outcome, Refused):
        refused = session.outcome
        raise Refused(refused.status, refused.reason, refused.message)


def _read_range(header: str | None, size: int) -> tuple[int | None, int, int | None]:
    """Returns the first byte (None for a query), the number of bytes, and the total if known."""
    if header is None:
        return 0, size, size
    match = _RANGE.fullmatch(header)
    if not match:
        raise Refused(400, "invalid", f"Failed to parse Content-Range header: '{header}'")
    total = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return None, 0, total
    return int(match[1]), int(match[2]) - int(match[1]) + 1, total
