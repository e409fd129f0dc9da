"""Buckets and objects in memory, with the generations and preconditions of Cloud Storage.

Every change of an object is one act under one lock: a precondition is looked at in the same act
that it guards. An object is replaced, never changed, so whoever holds one may read it without the
lock.
"""

import base64
import bisect
import dataclasses
import hashlib
import re
import threading
import time
from collections.abc import Callable, Mapping

import google_crc32c

MAX_PAGE = 1000
"""Entries of a listing at most, and where none are asked for."""

SETTABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
    "storageClass",
)
"""Fields of an object's metadata that a client may set."""

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


class Refused(Exception):
    """A request that is answered with an error.

    Args:
      status: HTTP status.
      reason: the API's word for it, such as "notFound".
      message: the sentence for a person.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclasses.dataclass(frozen=True)
class Content:
    """The bytes of an object, and their hashes as the API writes them.

    Attributes:
      data: the bytes.
      crc32c: base64 of the big-endian CRC32C.
      md5: base64 of the MD5.
    """

    data: bytes
    crc32c: str
    md5: str

    @classmethod
    def of(cls, data: bytes) -> "Content":
        return cls(
            data,
            base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode(),
            base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode(),
        )


@dataclasses.dataclass(frozen=True)
class Object:
    """One generation of an object.

    Attributes:
      created: when this generation was written [s since 1970].
      updated: when its metadata was last changed [s since 1970].
      fields: metadata that the client set, by its JSON names.
    """

    bucket: str
    name: str
    content: Content
    generation: int
    metageneration: int
    created: float
    updated: float
    fields: Mapping[str, object]

    @property
    def data(self) -> bytes:
        return self.content.data

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()


@dataclasses.dataclass
class Bucket:
    """A bucket.

    Attributes:
      location: region such as "US-CENTRAL1", or a multi-region such as "EU".
      created: when it was made [s since 1970].
      objects: live objects by name.
      names: their names, sorted; as code points sort like the UTF-8 that the real one sorts by.
      past: every change: when it was [s since 1970], the name, and what it put an end to.
    """

    name: str
    location: str
    created: float
    objects: dict[str, Object] = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)
    past: list[tuple[float, str, "Object | None"]] = dataclasses.field(default_factory=list)

    def before(self, moment: float) -> "Bucket":
        """Returns the bucket as it was at a moment [s since 1970]."""
        objects = dict(self.objects)
        for when, name, there in reversed(self.past):
            if when <= moment:
                break
            if there is None:
                del objects[name]
            else:
                objects[name] = there
        return Bucket(self.name, self.location, self.created, objects, sorted(objects))


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Preconditions on the live generation of a name; 0 stands for "there is none"."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def parse(cls, query: Mapping[str, str], prefix: str = "if") -> "Conditions":
        """Reads `ifGenerationMatch` and its kin; the prefix is "ifSource" for a copy's source."""
        endings = ("GenerationMatch", "GenerationNotMatch")
        endings += ("MetagenerationMatch", "MetagenerationNotMatch")
        return cls(*(number(query, prefix + ending) for ending in endings))

    def check(self, there: Object | None, *, reading: bool = False) -> None:
        """Raises `Refused` (412; 304 if a read finds it unchanged) unless all of them hold."""
        generation = there.generation if there else 0
        metageneration = there.metageneration if there else 0
        if self.generation not in (None, generation):
            raise _unmet("ifGenerationMatch")
        if self.metageneration not in (None, metageneration):
            raise _unmet("ifMetagenerationMatch")
        if self.not_generation == generation or self.not_metageneration == metageneration:
            if reading:
                raise Refused(304, "notModified", "Not Modified")
            raise _unmet("ifGenerationNotMatch")


@dataclasses.dataclass(frozen=True)
class Page:
    """A part of a listing; `token` continues it, None at the end."""

    items: list[Object]
    prefixes: list[str]
    token: str | None


class Store:
    """All buckets.

    Args:
      clock: the server's time [s since 1970].
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._generation = 0

    def make_bucket(self, name: str, location: str = "US-CENTRAL1") -> Bucket:
        if not _BUCKET_NAME.fullmatch(name):
            raise Refused(400, "invalid", f"Invalid bucket name: '{name}'")
        with self._lock:
            if name in self._buckets:
                raise Refused(
                    409,
                    "conflict",
                    "Your previous request to create the named bucket succeeded and you already "
                    "own it.",
                )
            self._buckets[name] = Bucket(name, location.upper(), self.clock())
            return self._buckets[name]

    def has_bucket(self, name: str) -> bool:
        return name in self._buckets

    def bucket(self, name: str) -> Bucket:
        try:
            return self._buckets[name]
        except KeyError:
            raise Refused(404, "notFound", "The specified bucket does not exist.") from None

    def delete_bucket(self, name: str) -> None:
        with self._lock:
            if self.bucket(name).objects:
                raise Refused(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._buckets[name]

    def check(self, bucket: str, name: str, conditions: Conditions) -> None:
        """Raises `Refused` unless an upload of that name could begin now."""
        _check_name(name)
        with self._lock:
            conditions.check(self.bucket(bucket).objects.get(name))

    def put(
        self,
        bucket: str,
        name: str,
        content: Content,
        fields: Mapping[str, object] | None = None,
        conditions: Conditions = Conditions(),
    ) -> Object:
        """Writes an object whole."""
        _check_name(name)
        with self._lock:
            conditions.check(self.bucket(bucket).objects.get(name))
            return self._write(bucket, name, content, fields or {})

    def get(
        self,
        bucket: str,
        name: str,
        conditions: Conditions = Conditions(),
        generation: int | None = None,
    ) -> Object:
        with self._lock:
            there = self.bucket(bucket).objects.get(name)
            if there is None and conditions.generation:
                # The real one says this of a missing object too, when it is read (not deleted).
                raise _unmet("ifGenerationMatch")
            there = self._live(bucket, name, generation)
            conditions.check(there, reading=True)
            return there

    def delete(
        self,
        bucket: str,
        name: str,
        conditions: Conditions = Conditions(),
        generation: int | None = None,
    ) -> None:
        with self._lock:
            conditions.check(self._live(bucket, name, generation))
            self._remove(bucket, name)

    def copy(
        self,
        source: Object,
        bucket: str,
        name: str,
        fields: Mapping[str, object] | None = None,
        conditions: Conditions = Conditions(),
    ) -> Object:
        """Writes an object that was read before under another name.

        Args:
          fields: the copy's metadata; the source's, if empty.
        """
        _check_name(name)
        with self._lock:
            conditions.check(self.bucket(bucket).objects.get(name))
            return self._write(bucket, name, source.content, fields or source.fields)

    def listing(
        self,
        bucket: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        start: str = "",
        end: str = "",
        token: str = "",
        limit: int = MAX_PAGE,
        age: float = 0.0,
    ) -> Page:
        """Lists names in order.

        Args:
          delimiter: names that have it after the prefix are shown as one prefix.
          start: first name, inclusive.
          end: last name, exclusive; "" for none.
          token: of the page before.
          limit: items and prefixes on the page at most.
          age: lists what was there that long ago [s].
        """
        limit = min(limit, MAX_PAGE)
        items, prefixes = [], []
        with self._lock:
            found = self.bucket(bucket)
            if age:
                found = found.before(self.clock() - age)
            here = max(prefix, start, _read_token(token))
            index = bisect.bisect_left(found.names, here)
            while index < len(found.names):
                name = found.names[index]
                if not name.startswith(prefix) or (end and name >= end):
                    break
                if len(items) + len(prefixes) >= limit:
                    return Page(items, prefixes, base64.urlsafe_b64encode(here.encode()).decode())
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    items.append(found.objects[name])
                    here, index = name + "\0", index + 1
                    continue
                prefixes.append(name[: cut + len(delimiter)])
                here = _after(prefixes[-1])
                index = bisect.bisect_left(found.names, here)
        return Page(items, prefixes, None)

    def _live(self, bucket: str, name: str, generation: int | None = None) -> Object:
        there = self.bucket(bucket).objects.get(name)
        if there is None or generation not in (None, there.generation):
            number = f"#{generation}" if generation is not None else ""
            raise Refused(404, "notFound", f"No such object: {bucket}/{name}{number}")
        return there

    def _write(
        self,
        bucket: str,
        name: str,
        content: Content,
        fields: Mapping[str, object],
    ) -> Object:
        """Writes a new generation; the lock is held."""
        now = self.clock()
        # Like the real ones: microseconds, but always growing, wherever a test sets the clock.
        self._generation = max(self._generation + 1, int(now * 1e6))
        found = self.bucket(bucket)
        if name not in found.objects:
            bisect.insort(found.names, name)
        found.past.append((now, name, found.objects.get(name)))
        fields = settable(fields)
        made = Object(bucket, name, content, self._generation, 1, now, now, fields)
        found.objects[name] = made
        return made

    def _remove(self, bucket: str, name: str) -> None:
        found = self.bucket(bucket)
        found.past.append((self.clock(), name, found.objects[name]))
        del found.objects[name]
        del found.names[bisect.bisect_left(found.names, name)]


def settable(fields: Mapping[str, object]) -> dict[str, object]:
    """Returns the fields that a client may set."""
    return {field: fields[field] for field in SETTABLE if field in fields}


def number(query: Mapping[str, str], name: str) -> int | None:
    """Returns a parameter that is a number; None where it is not given."""
    value = query.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise Refused(400, "invalid", f"Invalid long value: '{value}' for {name}.") from None


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= 1024 or name in (".", "..") or "\r" in name or "\n" in name:
        raise Refused(400, "invalid", f"Invalid object name: {name[:80]!r}")


def _unmet(name: str) -> Refused:
    message = "At least one of the pre-conditions you specified did not hold."
    return Refused(412, "conditionNotMet", f"{message} ({name})")


def _after(prefix: str) -> str:
    """Returns the first string that sorts after all that begin with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _read_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError:
        raise Refused(400, "invalid", f"Invalid page token: '{token}'") from None
