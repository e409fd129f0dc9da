"""Objects of a bucket at s3:// (Amazon, R2, MinIO, CoreWeave …) or az:// (Azure), through obstore.

Both replace an object on the condition that it has an ETag still, but not all of them delete it on
one. So what may be deleted only if it is unchanged is replaced by a *marker*, an object of fixed
bytes that stands for none:

    there is x           PUT, if absent                absent  ->  x
    x -> y               PUT, if it has x's ETag
    x is deleted         PUT the marker, if it has x's ETag
    y is created after   PUT, if absent                refused: something is there
                         GET                           it is a marker, with an ETag
                         PUT, if it has that ETag      marker  ->  y

Readers take a marker for "not found" and listings leave it out. Every step replaces what its author
has seen, so of two authors one is refused:

    A creates y            sees the marker                PUT y      stored, and y stays
    B creates z            sees the marker     PUT z                 refused, for one of the two
    C deletes x, late      has seen x          PUT marker            refused: y is there, not x

An ETag may be a digest of the bytes, and so the same again after x -> y -> x. That is no harm: each
step asks for content (these bytes, or none) and not for history. Markers are never deleted, except
with all of a folder by its owner: a deletion without a condition could hit what was created a
moment after somebody looked. They cost 97 bytes for each name that was ever released, and a
lifecycle rule of the bucket may delete them, since that looks and deletes in one act.
"""

import contextlib
import functools
import hashlib
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, S3Store

from infra.store.backend import ByteSource, FileStat
from infra.store.block_reader import WholeSum
from infra.store.objects.object_client import ABSENT, BucketError, ObjectClient, StoredObject
from infra.store.objects.reachable import has_metadata_server

MARKER = b"%-97s" % b"parcel: there is nothing of this name; whoever creates it replaces this."
"""Bytes of an object that stands for none."""

_md5 = functools.partial(hashlib.md5, usedforsecurity=False)
_MARKER_ETAG = _md5(MARKER).hexdigest()
"""Its ETag wherever that is the MD5 of the bytes."""

_READ_TIMEOUT = 60.0
"""Longest wait for the next byte of an answer [s]."""
_PART = 16 * 2**20
"""Size of the parts in which a large file is sent, unless it has too many of them [bytes]."""
_MAX_PARTS = 10_000
LARGEST_COPY = 5 * 10**9
"""Largest object that S3 copies in one request [bytes]."""
_MAX_READS = 8
"""Readings of an object of which no two are equal and none matches its ETag."""
_PAGE = 1000
"""Objects that a listing yields together."""

_RETRIES = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
"""The library's own retries of one request."""

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables that name another server than the provider's, the first that is set."""

_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

_LOGINS = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_METADATA_ENDPOINT",
        "AWS_SKIP_SIGNATURE",
    ),
    "az": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_STORAGE_USE_EMULATOR",
        "AZURE_USE_AZURE_CLI",
        "AZURE_SKIP_SIGNATURE",
        "IDENTITY_ENDPOINT",
        "MSI_ENDPOINT",
    ),
}
"""Variables any of which says how to log in; without one, the library asks the machine's cloud."""

_ANSWER = re.compile(
    r"status code: (?P<status>\d+) (?P<phrase>[A-Za-z -]*)"
    r"(?:.*?<Code>(?P<code>\w+)</Code>)?(?:.*?<Message>(?P<message>[^<\n]*))?",
    re.DOTALL,
)
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "InvalidBucketName"}
_TRANSIENT_CODES = {
    "XAmzContentSHA256Mismatch",  # Other bytes arrived than were sent.
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "ConditionalRequestConflict",
    "OperationAborted",
}
_TRANSIENT_STATUS = {408, 425, 429}

_T = TypeVar("_T")


class ObstoreClient(ObjectClient):
    """Requests for the objects of a bucket.

    Credentials, region and endpoint come from the environment (AWS_…, AZURE_…) or from the
    machine's own identity, and are kept nowhere.

    Args:
      scheme: "s3" or "az".
      bucket: name of the bucket, or of the container.

    Raises:
      BucketError: if the environment does not say enough, or this process was forked.
    """

    def __init__(self, scheme: str, bucket: str) -> None:
        self.uri, self._scheme = f"{scheme}://{bucket}", scheme
        _check_process()
        variables = _ENDPOINTS[scheme]
        self.address = next((os.environ[v] for v in variables if os.environ.get(v)), "")
        self.server_variable = variables[-2]
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if scheme == "s3" or self.address or account:
            usual = "s3.amazonaws.com" if scheme == "s3" else f"{account}.blob.core.windows.net"
            self.server = self.address or f"https://{usual}"
        options: dict[str, Any] = {
            "client_options": {
                "allow_http": self.address.startswith("http://"),
                "connect_timeout": timedelta(seconds=5),
                "read_timeout": timedelta(seconds=_READ_TIMEOUT),
                # No limit for a whole request, which may be a file of many gigabytes.
                "timeout": timedelta(days=7),
            },
            "retry_config": _RETRIES,
        }
        try:
            self._store: Any = (
                # A request for each deletion: not all servers take many in one.
                S3Store(bucket, disable_bulk_delete=True, **options)
                if scheme == "s3"
                else AzureStore(bucket, **options)
            )
        except (BaseError, ValueError) as error:
            raise BucketError(f"{self.uri}: {self.reason(error)}") from error
        self._has_md5 = True
        self._is_marker = functools.lru_cache(maxsize=100_000)(self._holds_marker)

    @property
    def _no_credentials(self) -> str:
        return (
            f"no credentials; set {_KEYS[self._scheme]}, or run where the machine has an identity"
        )

    def probe(self) -> None:
        names = _LOGINS[self._scheme]
        if not any(os.environ.get(name) for name in names) and not has_metadata_server():
            raise BucketError(f"{self.uri}: {self._no_credentials}")
        try:
            next(iter(obstore.list(self._store, chunk_size=1)), None)
        except BaseError as error:
            match = _ANSWER.search(str(error))
            if match and match["code"] in _NO_BUCKET:
                raise FileNotFoundError(self.uri) from None
            raise

    def now(self, folder: str) -> int:
        # The answers' dates are not shown, so an object is written to be dated. It has one name
        # for each machine, since some servers limit how often a second an object is replaced.
        key = f"{folder}clock/{socket.gethostname()}"
        try:
            self.put(key, b"", None)
        except (PermissionDeniedError, UnauthenticatedError):
            # Who may only read holds no lease: the time only says how old things look.
            return time.time_ns()
        return self.stat(key).stat.modified

    def get(self, key: str) -> tuple[bytes, str]:
        data, etag = self._get_bytes_and_etag(key)
        if data == MARKER:
            raise FileNotFoundError(f"{self.uri}/{key}")
        return data, etag

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._request_bucket_object(
            key, lambda: bytes(obstore.get_range(self._store, key, start=start, length=length))
        )

    def download(self, key: str, path: Path) -> None:
        result = self._request_bucket_object(key, lambda: obstore.get(self._store, key))
        with path.open("wb") as file:
            for part in result.stream(min_chunk_size=_PART):
                file.write(part)

    def stat(self, key: str) -> StoredObject:
        stored = _obstore_stored_object(
            self._request_bucket_object(key, lambda: obstore.head(self._store, key))
        )
        if self._stands_for_none(stored):
            raise FileNotFoundError(f"{self.uri}/{key}")
        return stored

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        return filter(
            lambda stored: not self._stands_for_none(stored), self._list_stored_objects(prefix)
        )

    def keys(self, prefix: str) -> Iterator[str]:
        return (stored.key for stored in self._list_stored_objects(prefix))

    def entries(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        result = self.with_retries(lambda: obstore.list_with_delimiter(self._store, prefix or None))
        objects = map(_obstore_stored_object, result["objects"])
        shown = [o for o in objects if _is_below(o, prefix) and not self._stands_for_none(o)]
        return shown, [f"{folder}/" for folder in result["common_prefixes"]]

    def put(self, key: str, data: bytes, replaced: str | None) -> str:
        mode: Any = {"e_tag": f'"{replaced}"'}
        if replaced in (None, ABSENT):
            mode = "overwrite" if replaced is None else "create"
        try:
            return _unquoted_etag(
                self._request_bucket_object(
                    key,
                    lambda: obstore.put(self._store, key, data, mode=mode, use_multipart=False),
                )
            )
        except FileExistsError:
            if replaced == ABSENT and (marker := self._marker_object_etag(key)):
                return self.put(key, data, marker)
            raise

    def upload(self, key: str, data: ByteSource) -> str:
        # S3 compares each part with its digest in the request's signature.
        size = max(_PART, -(-data.size // _MAX_PARTS))
        parts = (data.read(start, size) for start in range(0, data.size, size))
        return _unquoted_etag(
            obstore.put(self._store, key, parts, use_multipart=True, chunk_size=size)
        )

    def copy(self, source: str, key: str) -> None:
        def copy() -> None:
            size = self.stat(source).stat.size
            with contextlib.suppress(FileNotFoundError):
                self.stat(key)
                raise FileExistsError(f"{self.uri}/{key}")
            if self._scheme == "az" or size <= LARGEST_COPY:
                self._request_bucket_object(source, lambda: obstore.copy(self._store, source, key))
                return
            with tempfile.NamedTemporaryFile(prefix="parcel-") as file:
                self.download(source, path := Path(file.name))
                part = max(_PART, -(-size // _MAX_PARTS))
                obstore.put(self._store, key, path, use_multipart=True, chunk_size=part)

        self.with_retries(copy)

    def delete(self, key: str, generation: str | None = None) -> None:
        if generation is None:
            self._request_bucket_object(key, lambda: obstore.delete(self._store, key))
            return
        try:
            self.put(key, MARKER, generation)
        except FileExistsError:
            if self._marker_object_etag(key):  # An earlier try's, whose reply was lost.
                raise FileNotFoundError(f"{self.uri}/{key}") from None
            raise

    def checksum(self, data: Iterator[bytes]) -> str:
        for _ in data:
            pass
        return ""

    def whole_sum(self, stored: StoredObject) -> WholeSum | None:
        key, etag = stored.key, stored.generation
        if not self._may_be_md5(etag):
            return None

        def is_right(digest: bytes) -> bool:
            # As in `_get_bytes_and_etag`: what differs from the ETag is read again, and then
            # believed if it is the same, also of all that is read after it.
            if not self._has_md5 or digest.hex() == etag:
                return True
            again = _md5()
            with tempfile.NamedTemporaryFile(prefix="parcel-") as file:
                self.with_retries(lambda: self.download(key, Path(file.name)))
                while part := file.read(_PART):
                    again.update(part)
            if again.digest() == digest and self.stat(key).generation == etag:
                self._has_md5 = False
            return not self._has_md5

        return WholeSum(_md5, is_right)

    def is_transient(self, error: Exception) -> bool:
        match = _ANSWER.search(str(error))
        if match is None:  # No answer, or half of one.
            return isinstance(error, TimeoutError | ConnectionError) or "HTTP error" in str(error)
        status = int(match["status"])
        return status >= 500 or status in _TRANSIENT_STATUS or match["code"] in _TRANSIENT_CODES

    def reason(self, error: Exception) -> str:
        text = str(error)
        if "169.254.169.254" in text or "Account must be specified" in text:
            return self._no_credentials
        match = _ANSWER.search(text)
        if match is None:
            # The line may have the request's address, with a signature after the question mark.
            line = re.sub(r"\?\S*", "", text.splitlines()[0] if text else type(error).__name__)
            if "HTTP error" not in line:
                return line
            place = self.address or "the provider's address"
            return f"no answer from {place}; check {_ENDPOINTS[self._scheme][-2]} and the network"
        code, status = match["code"] or "", int(match["status"])
        said = f"{status} {code or match['phrase']}".rstrip()
        said += f" ({match['message'].rstrip('.')})" if match["message"] else ""
        if status in (301, 307) or code in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
            return f"{said}; set AWS_REGION to the bucket's region"
        if status in (401, 403):
            return f"{said}; check {_KEYS[self._scheme]}, and their rights on the bucket"
        return said

    def _get_bytes_and_etag(self, key: str) -> tuple[bytes, str]:
        """Returns an object's bytes and ETag, a marker's too."""
        # Mostly the ETag is the MD5 of the bytes; with a key of the user's it only looks like one.
        # Where it differs, the object is read again. The same bytes under the same ETag are what is
        # stored, and this bucket's ETags are no digests; what is damaged on its way comes otherwise
        # each time.
        before = b"", ""
        for _ in range(_MAX_READS):
            result = self._request_bucket_object(key, lambda: obstore.get(self._store, key))
            data, etag = bytes(result.bytes()), _unquoted_etag(result.meta)
            if not self._may_be_md5(etag) or etag == _md5(data).hexdigest():
                return data, etag
            if before == (data, etag):
                self._has_md5 = False
                return data, etag
            before = data, etag
        raise ConnectionError(f"{key}: the bytes received do not match its checksum")

    def _may_be_md5(self, etag: str) -> bool:
        return self._has_md5 and re.fullmatch(r"[0-9a-f]{32}", etag) is not None

    def _marker_object_etag(self, key: str) -> str:
        """Returns the ETag of the marker at a key; "" if there is something else, or nothing."""
        with contextlib.suppress(FileNotFoundError):
            data, etag = self._get_bytes_and_etag(key)
            return etag if data == MARKER else ""
        return ""

    def _list_stored_objects(self, prefix: str) -> Iterator[StoredObject]:
        try:
            for page in obstore.list(self._store, prefix or None, chunk_size=_PAGE):
                yield from (o for o in map(_obstore_stored_object, page) if _is_below(o, prefix))
        except (BaseError, ValueError) as error:  # A ValueError: a key such as a//b.
            raise BucketError(f"{self.uri}: {self.reason(error)}") from error

    def _stands_for_none(self, stored: StoredObject) -> bool:
        # The size rules out nearly all, and the ETag decides where it is a digest. Else the object
        # is read, once for each version.
        if stored.stat.size != len(MARKER):
            return False
        return stored.generation == _MARKER_ETAG or self._is_marker(stored.key, stored.generation)

    def _holds_marker(self, key: str, etag: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            # What has replaced it since says nothing about it.
            return self.with_retries(lambda: self._get_bytes_and_etag(key)) == (MARKER, etag)
        return False

    def _request_bucket_object(self, key: str, request: Callable[[], _T]) -> _T:
        """Makes a request for an object; its errors are those that `ObjectClient` names."""
        try:
            return request()
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.uri}/{key}") from None
        except (AlreadyExistsError, PreconditionError):
            raise FileExistsError(f"{self.uri}/{key}") from None


def _obstore_stored_object(meta: Mapping[str, Any]) -> StoredObject:
    # Listings may have milliseconds where other answers have none, so the version has seconds.
    etag, seconds = _unquoted_etag(meta), int(meta["last_modified"].timestamp())
    number = int.from_bytes(hashlib.sha256(etag.encode()).digest()[:8], "big")
    stat = FileStat(size=meta["size"], modified=seconds * 10**9, version=(number, seconds))
    return StoredObject(meta["path"], stat, etag)


def _is_below(stored: StoredObject, prefix: str) -> bool:
    """Whether it is not the object that is named like its folder, which web consoles create."""
    return stored.key.startswith(prefix)


def _unquoted_etag(answer: Mapping[str, Any]) -> str:
    """Returns an ETag without its quotes, which Azure's listings leave out."""
    return (answer["e_tag"] or "").strip('"')


@functools.cache
def _first_process() -> int:
    return os.getpid()


def _check_process() -> None:
    """Refuses a fork of a process that has used the library: its threads are not there."""
    if _first_process() != os.getpid():
        raise BucketError("a process that reads a bucket cannot be forked; start another program.")
