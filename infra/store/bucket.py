"""A store in a Google Cloud Storage bucket, through gcsfs.

A write or deletion that must not act twice names the generation that it replaces, 0 for none. So a
request whose reply was lost can be sent again: the bucket refuses the second, and the stored bytes
show whether the first one was ours. gcsfs's own files and listings are not used: an exception
inside its `open(…, "wb")` commits half a file, and its listings are cached.
"""

import base64
import contextlib
import datetime
import email.utils
import hashlib
import io
import json
import os
import random
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import google_crc32c

from infra.store.backend import (
    MANIFESTS,
    ByteSource,
    FileStat,
    Receipt,
    StoreBackend,
    StoredDamageError,
)
from infra.store.block_reader import BlockReader, RangedFile
from infra.store.digest import file_sha256, listing_sha256
from infra.store.manifest import File
from infra.store.node_cache import NodeCache
from infra.store.regions import check_region, region_of_machine
from infra.store.snapshot import RecordCache, StoreSnapshot

_URI = re.compile(r"gs://(?P<bucket>[a-z0-9][\w.-]{1,220}[a-z0-9])(?:/(?P<prefix>.*?))?/*")
_MAX_TRANSFERS = 16
"""Files in transfer at a time."""
_MAX_TRIES = 4
"""Tries of a request that gcsfs, after its own retries, could not finish."""
_TIMEOUT = 60.0
"""Longest wait for the next byte of an answer [s]."""
_LISTED_FIELDS = "items(name,size,updated,generation,crc32c),prefixes,nextPageToken"
"""Fields that a listing asks for."""
_PART = 16 * 2**20
"""Size of the parts in which a large file is sent [bytes]."""
_AT_A_TIME = 5 * 2**20
"""Files below this are sent in one request [bytes]."""

_BYTES = "application/octet-stream"

_T = TypeVar("_T")


class BucketError(OSError):
    """The bucket did not answer, or answered with an error; that says nothing about the file."""


class Bucket:
    """Files below a prefix of a bucket; `StoreBackend` documents the methods.

    Args:
      uri: gs://bucket or gs://bucket/prefix.

    Raises:
      ValueError: if `uri` has another form, or the bucket is in another region (see `regions`).
      OSError: if there is no such bucket, or it cannot be read.
    """

    def __init__(self, uri: str) -> None:
        match = _URI.fullmatch(uri)
        if match is None:
            raise ValueError(f"store must be gs://bucket or gs://bucket/prefix, got {uri!r}.")
        self._bucket, prefix = match["bucket"], match["prefix"] or ""
        self._prefix = f"{prefix}/" if prefix else ""
        self.uri = f"gs://{self._bucket}/{prefix}".rstrip("/")
        self.state = _state_folder(self.uri)
        self._cache = NodeCache(self.state / "cache" / "artifacts")
        self._system: Any = None
        self._opening = threading.Lock()
        try:
            self._probe()
        except FileNotFoundError:
            raise BucketError(f"there is no bucket gs://{self._bucket}; make it first.") from None
        # A machine without a known region has nothing to compare, and saves the request.
        if region_of_machine() is not None:
            self._check_region()

    def read(self, name: str) -> bytes:
        return self._read_object(name)[0]

    def read_range(self, name: str, start: int, length: int) -> bytes:
        if not length:
            return b""

        def get() -> bytes:
            headers = {"Range": f"bytes={start}-{start + length - 1}"}
            _, data = self._request("GET", *self._object_path(name), alt="media", headers=headers)
            if len(data) != length:
                raise ConnectionError(f"{self.uri}/{name}: {len(data)} of {length} bytes came")
            return data

        return self._with_retries(get)

    def open(self, name: str) -> BinaryIO:
        return io.BufferedReader(RangedFile(self.blocks(name)))

    def blocks(self, name: str) -> BlockReader:
        """Returns a reader of a file's blocks, none of which is read yet."""
        stat = self.stat(name)
        return BlockReader(
            lambda start, length: self.read_range(name, start, length),
            stat.size,
            f"{self.uri}/{name}",
            stat.crc32c,
        )

    @contextlib.contextmanager
    def atomic_write(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
            path = Path(folder) / "file"
            yield path
            with path.open("rb") as file:
                self.upload_bytes(name, _FileBytes(file))

    def link(self, source: str, name: str, file: File) -> Receipt:
        # Copied inside the bucket. A large object takes several calls, each with the token of the
        # one before:
        #
        #   POST rewriteTo                  -> done: false, rewriteToken: t1
        #   POST rewriteTo, rewriteToken t1 -> done: true
        path = "b/{}/o/{}/rewriteTo/b/{}/o/{}"
        ends = *self._object_path(source)[1:], *self._object_path(name)[1:]
        token: dict[str, str] = {}
        try:
            while True:
                reply = self._request_json("POST", path, *ends, ifGenerationMatch=0, **token)
                if reply["done"]:
                    break
                token = {"rewriteToken": reply["rewriteToken"]}
        except FileExistsError:
            pass  # An earlier try of this request succeeded, and its reply was lost.
        stored = self._metadata(name)
        if _size(stored) != file.size:
            raise BucketError(f"{self.uri}/{name} is there already, with other bytes.")
        return Receipt(file, stored["crc32c"], stored["generation"])

    def walk(self, folder: str) -> Iterator[tuple[str, FileStat]]:
        prefix = self._folder_prefix(folder)
        for item in self._list_objects(prefix):
            yield item["name"].removeprefix(prefix), _object_stat(item)

    def stat(self, name: str) -> FileStat:
        return _object_stat(self._metadata(name))

    def listing(self, folder: str) -> dict[str, FileStat]:
        return self.entries(folder)[0]

    def folders(self, folder: str) -> list[str]:
        return self.entries(folder)[1]

    def entries(self, folder: str) -> tuple[dict[str, FileStat], list[str]]:
        """Returns the files and the folders directly in a folder, both sorted by name."""
        prefix = self._folder_prefix(folder)
        files: dict[str, FileStat] = {}
        folders: list[str] = []
        # A bucket has no folders: with a delimiter, the names below one come back as one prefix.
        #
        #   a/x, a/b/y, a/b/z   listed below "a/":   items [a/x]   prefixes [a/b/]
        for page in self._list_pages(prefix, delimiter="/"):
            for item in page.get("items", ()):
                files[item["name"].removeprefix(prefix)] = _object_stat(item)
            folders += [n.removeprefix(prefix).rstrip("/") for n in page.get("prefixes", ())]
        return files, sorted(folders)

    def total_stat(self, name: str) -> FileStat:
        stats = [*self._files_below(name).values()]
        with contextlib.suppress(FileNotFoundError):
            stats.append(self.stat(name))
        newest = max((stat.modified for stat in stats), default=0)
        return FileStat(size=sum(stat.size for stat in stats), modified=newest, version=())

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        stats = self._files_below(folder)
        return {name: stats[name].size for name in names if name in stats}

    def sha256(self, name: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            self._with_retries(lambda: self._gcsfs().get_file(self._gcs_path(name), str(path)))
            return file_sha256(path)

    def create_if_absent(self, name: str, data: bytes) -> bool:
        try:
            return self._write_object(name, data, 0)
        # No answer at all, in any try. Then only the object tells; if that cannot be read either,
        # the error goes up, and nobody may delete what the object names.
        except BucketError:
            # The write may have succeeded all the same.
            with contextlib.suppress(OSError):
                return self.read(name) == data
            raise

    def compare_and_swap(self, name: str, old: bytes, new: bytes) -> bool:
        try:
            current, generation = self._read_object(name)
        except FileNotFoundError:
            return False
        return current == old and self._write_object(name, new, generation)

    def compare_and_delete(self, name: str, old: bytes) -> bool:
        try:
            current, generation = self._read_object(name)
        except FileNotFoundError:
            return False
        if current != old:
            return False
        try:
            self._request_with_retries(
                "DELETE", *self._object_path(name), ifGenerationMatch=generation
            )
        except FileExistsError:  # The precondition failed: it was replaced.
            return False
        except FileNotFoundError:
            pass  # An earlier try succeeded and its reply was lost, or another process dropped it.
        return True

    def put(self, name: str, data: bytes) -> None:
        self._write_object(name, data, None)

    def snapshot(self) -> StoreBackend:
        # One listing of the whole prefix, in pages of a thousand names; then the manifests, of
        # which this machine has most from the last time.
        stats = self._files_below("")
        manifests = {name: stat for name, stat in stats.items() if name.startswith(MANIFESTS)}
        cache = RecordCache(self.state / "cache" / "manifests.sqlite")
        return StoreSnapshot(self, stats, cache.get(manifests, self.read))

    def now(self) -> int:
        date = email.utils.parsedate_to_datetime(self._probe()["Date"])
        return int(date.timestamp() * 1e9)

    def upload_file(self, path: Path, name: str) -> None:
        if path.stat().st_size < _AT_A_TIME:
            if not self._write_object(name, path.read_bytes(), 0):
                raise BucketError(f"{self.uri}/{name} is there already, with other bytes.")
            return
        with path.open("rb") as file:
            self.upload_bytes(name, _FileBytes(file))

    def upload_bytes(self, name: str, data: ByteSource) -> Receipt:
        # Read twice, here and when it is sent: the bucket computes a CRC of what arrived, and it
        # must be compared with one that was computed before anything could go wrong on the way.
        sha256, crc32c = hashlib.sha256(), google_crc32c.Checksum()
        for start in range(0, data.size, _PART):
            part = data.read(start, _PART)
            sha256.update(part)
            crc32c.update(part)
        checksum = base64.b64encode(crc32c.digest()).decode()

        def put() -> Receipt:
            with contextlib.suppress(FileExistsError):  # An earlier try's, whose reply was lost.
                if data.size < _AT_A_TIME:
                    self._write_object(name, data.read(0, data.size), 0)
                else:
                    self._upload_resumable(name, data)
            stored = self._metadata(name)
            # Only the generation that was looked at is deleted, and not one that came after it.
            if stored["crc32c"] != checksum:
                generation = stored["generation"]
                self._request("DELETE", *self._object_path(name), ifGenerationMatch=generation)
                raise ConnectionError(f"{self.uri}/{name} was stored with other bytes than sent")
            file = File(sha256=sha256.hexdigest(), size=data.size)
            return Receipt(file, checksum, stored["generation"])

        return self._with_retries(put)

    def download_file(self, name: str, file: File, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        received: list[str] = []

        def get() -> None:
            self._gcsfs().get_file(self._gcs_path(name), str(path))
            received.append(file_sha256(path))  # gcsfs does not compare them.
            if received[-1] != file.sha256:
                raise ConnectionError(
                    f"{self.uri}/{name}: the bytes received do not match its digest"
                )

        try:
            self._with_retries(get)
        except BucketError as error:
            # What is damaged on its way comes otherwise each time; these bytes are what is stored.
            if len(received) == _MAX_TRIES and len(set(received)) == 1:
                raise StoredDamageError(name) from error
            raise

    def move(self, name: str, other: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            source, target = self._gcs_path(name), self._gcs_path(other)
            self._with_retries(lambda: self._gcsfs().cp_file(source, target))
            self._request_with_retries("DELETE", *self._object_path(name))

    def make_workspace(self, folder: str) -> Path:
        path = self.state / "work" / folder
        path.mkdir(parents=True)
        return path

    def publish_folder(
        self, folder: str, files: Mapping[str, File], sent: Mapping[str, Receipt]
    ) -> None:
        path = self.state / "work" / folder
        with ThreadPoolExecutor(_MAX_TRANSFERS) as pool:
            list(pool.map(lambda name: self.upload_file(path / name, f"{folder}/{name}"), files))
        prefix = self._folder_prefix(folder)
        # Everything in the stored folder must be ours, with the bytes that we have; a file too many
        # is as wrong as one too few.
        expected = {name: (_file_crc32c(path / name), "") for name in files}
        expected |= {name: (receipt.crc32c, receipt.generation) for name, receipt in sent.items()}

        def check() -> None:
            stored = {}
            for item in self._list_objects(prefix):
                name = item["name"].removeprefix(prefix)
                # A file that was sent must also be the same generation as in its receipt.
                generation = item["generation"] if name in sent else ""
                stored[name] = item["crc32c"], generation
            if stored != expected:  # Retried, since a cache may have answered with an old listing.
                raise ConnectionError(f"{self.uri}/{folder} does not hold what was sent")

        self._with_retries(check)
        # The workspace becomes the copy in this machine's cache: the next step here downloads
        # nothing.
        self._cache.adopt(_content_name(files), path)

    def local_folder(self, folder: str, files: Mapping[str, File]) -> Path:
        def fill(path: Path) -> None:
            def fetch(name: str) -> None:
                self.download_file(f"{folder}/{name}", files[name], path / name)

            with ThreadPoolExecutor(_MAX_TRANSFERS) as pool:
                list(pool.map(fetch, files))

        return self._cache.get(
            _content_name(files), sum(file.size for file in files.values()), fill
        )

    def folder_uri(self, folder: str, files: Mapping[str, File]) -> str:
        cached = self._cache.find(_content_name(files))
        return f"{self.uri}/{folder}" if cached is None else str(cached)

    def remove(self, folder: str) -> None:
        names = [folder, *(f"{folder}/{name}" for name in self._files_below(folder))]

        def delete(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._request_with_retries("DELETE", *self._object_path(name))

        with ThreadPoolExecutor(_MAX_TRANSFERS) as pool:
            list(pool.map(delete, names))
        shutil.rmtree(self.state / "work" / folder, ignore_errors=True)

    def _check_region(self) -> None:
        fields = "location,customPlacementConfig"
        try:
            location = self._request_json("GET", "b/{}", self._bucket, fields=fields)
        except OSError:
            return  # A user may be allowed to read objects but not to ask this.
        check_region(self.uri, location)

    def _probe(self) -> Mapping[str, str]:
        """Makes a minimal request, which needs only the right to list; returns the headers."""
        return self._request_with_retries(
            "GET", "b/{}/o", self._bucket, maxResults=1, fields="kind"
        )[0]

    def _read_object(self, name: str) -> tuple[bytes, str]:
        """Returns an object's bytes, verified by its checksum, and its generation."""

        def get() -> tuple[bytes, str]:
            headers, data = self._request("GET", *self._object_path(name), alt="media")
            if _crc32c(data) not in headers.get("x-goog-hash", ""):
                raise ConnectionError(
                    f"{self.uri}/{name}: the bytes received do not match its checksum"
                )
            return data, headers["x-goog-generation"]

        return self._with_retries(get)

    def _write_object(self, name: str, data: bytes, generation: str | int | None) -> bool:
        """Writes an object in place of a generation; returns whether these bytes are there now.

        Args:
          name: name of the file.
          data: bytes of the file.
          generation: generation that must be there; 0 for no object, None for any.
        """
        # A condition makes it safe to send a write again. With generation 0, "only if absent":
        #
        #   we                                   the bucket
        #   POST x, if generation is 0    ->     stores x as generation 7
        #                                 X-     the reply is lost
        #   POST x, if generation is 0    ->     412: x has generation 7
        #   GET x                         ->     our bytes: it was us. Others': they were first
        condition = {} if generation is None else {"ifGenerationMatch": generation}
        # Sent with a checksum, so that the bucket refuses bytes that were damaged on their way.
        boundary = uuid.uuid4().hex
        metadata = json.dumps({"name": self._prefix + name, "crc32c": _crc32c(data)})
        body = (
            f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{metadata}\r\n--{boundary}\r\n"
            f"Content-Type: {_BYTES}\r\n\r\n"
        ).encode()
        try:
            self._request_with_retries(
                "POST",
                self._upload_url(),
                data=body + data + f"\r\n--{boundary}--".encode(),
                uploadType="multipart",
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
                **condition,
            )
        except FileExistsError:
            # Another process's object; or ours, if the reply to an earlier try was lost.
            try:
                return self.read(name) == data
            except FileNotFoundError:
                return False
        return True

    def _upload_resumable(self, name: str, data: ByteSource) -> None:
        """Stores a new object, part by part; in one try.

        Raises:
          FileExistsError: if there is one already.
        """
        headers, _ = self._request(
            "POST",
            self._upload_url(),
            uploadType="resumable",
            name=self._prefix + name,
            ifGenerationMatch=0,
            headers={"X-Upload-Content-Type": _BYTES, "Content-Type": "application/json"},
        )
        #   PUT session, bytes 0-16777215/40000000          -> 308, Range: bytes=0-16777215
        #   PUT session, bytes 16777216-33554431/40000000   -> 308, Range: bytes=0-29360127
        #   PUT session, bytes 29360128-39999999/40000000   -> 200, and the object's metadata
        #
        # The bucket may keep less of a part than it was sent, as in the second line; its answer
        # says where to go on. The object appears with the last part, or not at all.
        session, start, reply = headers["Location"], 0, b""
        try:
            while not reply:  # Until the last part, answers have no body, only the range received.
                part = data.read(start, _PART)
                content_range = f"bytes {start}-{start + len(part) - 1}/{data.size}"
                headers, reply = self._request(
                    "PUT", session, data=part, headers={"Content-Range": content_range}
                )
                start = int(headers["Range"].rpartition("-")[2]) + 1 if "Range" in headers else 0
        except Exception:
            with contextlib.suppress(Exception):  # The session expires by itself, in a week.
                self._request("DELETE", session)
            raise

    def _metadata(self, name: str) -> dict[str, Any]:
        return self._request_json("GET", *self._object_path(name))

    def _files_below(self, folder: str) -> dict[str, FileStat]:
        """Returns all files below a folder by their path in it."""
        prefix = self._folder_prefix(folder)
        return {
            item["name"].removeprefix(prefix): _object_stat(item)
            for item in self._list_objects(prefix)
        }

    def _list_objects(self, prefix: str, **parameters: str) -> Iterator[dict[str, Any]]:
        for page in self._list_pages(prefix, **parameters):
            yield from page.get("items", ())

    def _object_path(self, name: str) -> tuple[str, str, str]:
        """Returns the template of an object's path in requests, and the two names to fill in."""
        return "b/{}/o/{}", self._bucket, self._prefix + name

    def _upload_url(self) -> str:
        """Returns the address to which new objects are sent."""
        host = self._gcsfs().base.removesuffix("/storage/v1/")
        return f"{host}/upload/storage/v1/b/{self._bucket}/o"

    def _gcs_path(self, name: str) -> str:
        return f"{self._bucket}/{self._prefix}{name}"

    def _folder_prefix(self, folder: str) -> str:
        return f"{self._prefix}{folder}/" if folder else self._prefix

    def _list_pages(self, prefix: str, **parameters: str) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = self._request_json(
                "GET",
                "b/{}/o",
                self._bucket,
                prefix=prefix,
                fields=_LISTED_FIELDS,
                **parameters,
                **token,
            )
            yield page
            if "nextPageToken" not in page:
                return
            token = {"pageToken": page["nextPageToken"]}

    def _request_json(self, *path: str, **options: Any) -> dict[str, Any]:
        return json.loads(self._request_with_retries(*path, **options)[1])

    def _request_with_retries(self, *path: str, **options: Any) -> tuple[Mapping[str, str], bytes]:
        return self._with_retries(lambda: self._request(*path, **options))

    def _request(self, *path: str, **options: Any) -> tuple[Mapping[str, str], bytes]:
        return self._gcsfs().call(*path, **options)

    def _with_retries(self, request: Callable[[], _T]) -> _T:
        """Makes a request, and retries it after a pause if that may help.

        Raises:
          FileNotFoundError, FileExistsError: if the bucket said so; the latter means that a
            precondition failed.
          BucketError: after any other error.
        """
        tries = 0
        while True:
            try:
                return request()
            except (FileNotFoundError, FileExistsError):
                raise
            except Exception as error:  # From aiohttp, requests, google.auth or gcsfs.
                # Pauses of up to 2, 4, 8 s, drawn at random: many workers that were refused at the
                # same moment do not come back at the same moment.
                tries += 1
                if tries == _MAX_TRIES or not _is_transient(error):
                    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise BucketError(f"{self.uri}: {reason}") from error
                time.sleep(random.uniform(0, 2.0**tries))

    def _gcsfs(self) -> Any:
        """Returns gcsfs's file system; one per process, since threads do not survive a fork."""
        with self._opening:
            if self._system is None or self._system[0] != os.getpid():
                # From `core`: the package's own class asks by gRPC what type of bucket it is, which
                # takes a minute if nobody answers.
                import aiohttp
                from gcsfs.core import GCSFileSystem

                options: dict[str, Any] = {
                    "token": "anon" if "STORAGE_EMULATOR_HOST" in os.environ else None,
                    # No limit for a whole request, which may be a file of many gigabytes.
                    "requests_timeout": aiohttp.ClientTimeout(sock_read=_TIMEOUT),
                    "skip_instance_cache": True,
                }
                system = GCSFileSystem(**options)
                self._system = os.getpid(), system
            return self._system[1]


class _FileBytes:
    """The content of an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._number = file.fileno()
        self.size = os.fstat(self._number).st_size

    def read(self, start: int, length: int) -> bytes:
        """Returns a range of bytes, shorter at the file's end."""
        return os.pread(self._number, length, start)


def _is_transient(error: Exception) -> bool:
    """Whether another try may succeed."""
    from gcsfs.retry import is_retriable

    if "match calculated" in str(error):  # Other bytes arrived than were sent.
        return True
    return isinstance(error, TimeoutError | ConnectionError) or is_retriable(error)


def _state_folder(uri: str) -> Path:
    """Returns this machine's folder for a store elsewhere, by default or below PARCEL_STATE."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    base = Path(os.environ.get("PARCEL_STATE") or Path(home) / "parcel")
    name = re.sub(r"[^\w.-]+", "-", uri.removeprefix("gs://"))
    return base / f"{name}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"


def _content_name(files: Mapping[str, File]) -> str:
    """Returns a folder's name in the cache: a digest of its files, shared by equal artifacts."""
    return listing_sha256({name: file.sha256 for name, file in files.items()})


def _object_stat(item: Mapping[str, Any]) -> FileStat:
    modified = datetime.datetime.fromisoformat(item["updated"])
    return FileStat(
        size=_size(item),
        modified=int(modified.timestamp() * 1e9),
        version=(int(item["generation"]),),
        crc32c=item.get("crc32c", ""),
    )


def _size(item: Mapping[str, Any]) -> int:
    """Returns an object's size [bytes]; some servers leave out what is 0."""
    return int(item.get("size", 0))


def _crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def _file_crc32c(path: Path) -> str:
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        while part := file.read(2**20):
            checksum.update(part)
    return base64.b64encode(checksum.digest()).decode()
