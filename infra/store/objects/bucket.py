"""A store in a bucket: gs://, s3:// or az://; see `object_client` for what they have in common.

A write or deletion that must not act twice names what it replaces. So a request whose reply was
lost can be sent again: the bucket refuses the second, and the stored bytes show whether the first
one was ours.
"""

import contextlib
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

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
from infra.store.objects.node_cache import NodeCache
from infra.store.objects.object_client import ABSENT, BucketError, ObjectClient
from infra.store.objects.reachable import check_reachable
from infra.store.snapshot import RecordCache, StoreSnapshot
from infra.user_folders import temporary_folder, user_folder

_URI = re.compile(
    r"(?P<scheme>gs|s3|az)://(?P<bucket>[a-z0-9][\w.-]{1,220}[a-z0-9])(?:/(?P<prefix>.*?))?/*"
)
_MAX_TRANSFERS = 16
"""Files in transfer at a time."""
_MAX_DOWNLOADS = 4
"""Downloads of a file whose bytes are not those of its digest, until they count as stored so."""
_PART = 16 * 2**20
"""Size of the parts in which a large file is read [bytes]."""
_AT_A_TIME = 5 * 2**20
"""Files below this are sent in one request [bytes]."""


class Bucket:
    """Files below a prefix of a bucket; `StoreBackend` documents the methods.

    Args:
      uri: gs://bucket or gs://bucket/prefix, or such an address with s3:// or az://.

    Raises:
      ValueError: if `uri` has another form, or the bucket is in another region (see `regions`).
      OSError: if there is no such bucket, or it cannot be read.
    """

    def __init__(self, uri: str) -> None:
        match = _URI.fullmatch(uri)
        if match is None:
            raise ValueError(
                f"store must be gs://bucket or gs://bucket/prefix (s3:// and az:// alike), "
                f"got {uri!r}."
            )
        bucket, prefix = f"{match['scheme']}://{match['bucket']}", match["prefix"] or ""
        self._prefix = f"{prefix}/" if prefix else ""
        self.uri = f"{bucket}/{prefix}".rstrip("/")
        self._client = _open_client(match["scheme"], match["bucket"])
        self.state = _state_folder(self.uri, self._client.address)
        self._cache = NodeCache(self.state / "cache" / "artifacts")
        if self._client.server:
            check_reachable(bucket, self._client.server, self._client.server_variable)
        try:
            self._client.with_retries(self._client.probe)
        except FileNotFoundError:
            raise BucketError(f"there is no bucket {bucket}; make it first.") from None
        self._client.check_region(self.uri)

    def read(self, name: str) -> bytes:
        return self._read_object(name)[0]

    def read_range(self, name: str, start: int, length: int) -> bytes:
        if not length:
            return b""

        def get() -> bytes:
            data = self._client.get_range(self._bucket_object_key(name), start, length)
            if len(data) != length:
                raise ConnectionError(f"{self.uri}/{name}: {len(data)} of {length} bytes came")
            return data

        return self._client.with_retries(get)

    def open(self, name: str) -> BinaryIO:
        return io.BufferedReader(RangedFile(self.blocks(name)))

    def blocks(self, name: str) -> BlockReader:
        """Returns a reader of a file's blocks, none of which is read yet."""
        stored = self._client.with_retries(lambda: self._client.stat(self._bucket_object_key(name)))
        return BlockReader(
            lambda start, length: self.read_range(name, start, length),
            stored.stat.size,
            f"{self.uri}/{name}",
            self._client.whole_sum(stored),
        )

    @contextlib.contextmanager
    def atomic_write(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
            path = Path(folder) / "file"
            yield path
            with path.open("rb") as file:
                self.upload_bytes(name, _FileBytes(file))

    def link(self, source: str, name: str, file: File) -> Receipt:
        # Without it, an earlier try of this request succeeded, and its reply was lost.
        with contextlib.suppress(FileExistsError):
            self._client.copy(self._bucket_object_key(source), self._bucket_object_key(name))
        stored = self._client.with_retries(lambda: self._client.stat(self._bucket_object_key(name)))
        if stored.stat.size != file.size:
            raise BucketError(f"{self.uri}/{name} is there already, with other bytes.")
        return Receipt(file, stored.stat.crc32c, stored.generation)

    def walk(self, folder: str) -> Iterator[tuple[str, FileStat]]:
        prefix = self._folder_prefix(folder)
        for stored in self._client.walk(prefix):
            yield stored.key.removeprefix(prefix), stored.stat

    def stat(self, name: str) -> FileStat:
        return self._client.with_retries(
            lambda: self._client.stat(self._bucket_object_key(name))
        ).stat

    def listing(self, folder: str) -> dict[str, FileStat]:
        return self.entries(folder)[0]

    def folders(self, folder: str) -> list[str]:
        return self.entries(folder)[1]

    def entries(self, folder: str) -> tuple[dict[str, FileStat], list[str]]:
        """Returns the files and the folders directly in a folder, both sorted by name."""
        # A bucket has no folders: with a delimiter, the names below one come back as one prefix.
        #
        #   a/x, a/b/y, a/b/z   listed below "a/":   objects [a/x]   prefixes [a/b/]
        prefix = self._folder_prefix(folder)
        objects, prefixes = self._client.entries(prefix)
        files = {stored.key.removeprefix(prefix): stored.stat for stored in objects}
        folders = [longer.removeprefix(prefix).rstrip("/") for longer in prefixes]
        return dict(sorted(files.items())), sorted(folders)

    def total_stat(self, name: str) -> FileStat:
        stats = [*self._bucket_files_below(name).values()]
        with contextlib.suppress(FileNotFoundError):
            stats.append(self.stat(name))
        newest = max((stat.modified for stat in stats), default=0)
        return FileStat(size=sum(stat.size for stat in stats), modified=newest, version=())

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        stats = self._bucket_files_below(folder)
        return {name: stats[name].size for name in names if name in stats}

    def sha256(self, name: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            self._client.with_retries(
                lambda: self._client.download(self._bucket_object_key(name), path)
            )
            return file_sha256(path)

    def create_if_absent(self, name: str, data: bytes) -> bool:
        try:
            return self._write_object(name, data, ABSENT)
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
            self._delete_object(name, generation)
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
        stats = self._bucket_files_below("")
        manifests = {name: stat for name, stat in stats.items() if name.startswith(MANIFESTS)}
        cache = RecordCache(self.state / "cache" / "manifests.sqlite")
        return StoreSnapshot(self, stats, cache.get(manifests, self.read))

    def now(self) -> int:
        return self._client.with_retries(lambda: self._client.now(self._prefix))

    def upload_file(self, path: Path, name: str) -> None:
        with path.open("rb") as file:
            self.upload_bytes(name, _FileBytes(file))

    def upload_bytes(self, name: str, data: ByteSource) -> Receipt:
        # Read twice, here and when it is sent: what the bucket computes of the bytes that arrived
        # must be compared with a checksum from before anything could go wrong on the way.
        sha256, key = hashlib.sha256(), self._bucket_object_key(name)

        def digested() -> Iterator[bytes]:
            for start in range(0, data.size, _PART):
                part = data.read(start, _PART)
                sha256.update(part)
                yield part

        checksum = self._client.checksum(digested())
        file = File(sha256=sha256.hexdigest(), size=data.size)

        def put_small() -> Receipt:
            content = data.read(0, data.size)
            try:
                return Receipt(file, checksum, self._client.put(key, content, ABSENT))
            except FileExistsError:  # An earlier try's, whose reply was lost.
                stored, generation = self._client.get(key)
                if stored != content:
                    raise BucketError(
                        f"{self.uri}/{name} is there already, with other bytes."
                    ) from None
                return Receipt(file, checksum, generation)

        def put_large() -> Receipt:
            with contextlib.suppress(FileExistsError):
                self._client.upload(key, data)
            stored = self._client.stat(key)
            # Only the generation that was looked at is deleted, and not one that came after it.
            if (stored.stat.size, stored.stat.crc32c) != (data.size, checksum):
                self._client.delete(key, stored.generation)
                raise ConnectionError(f"{self.uri}/{name} was stored with other bytes than sent")
            return Receipt(file, checksum, stored.generation)

        return self._client.with_retries(put_small if data.size < _AT_A_TIME else put_large)

    def download_file(self, name: str, file: File, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        received: list[str] = []

        def get() -> None:
            self._client.download(self._bucket_object_key(name), path)
            received.append(file_sha256(path))
            if received[-1] != file.sha256:
                raise ConnectionError(
                    f"{self.uri}/{name}: the bytes received do not match its digest"
                )

        try:
            self._client.with_retries(get)
        except BucketError as error:
            # What is damaged on its way comes otherwise each time; these bytes are what is stored.
            if len(received) == _MAX_DOWNLOADS and len(set(received)) == 1:
                raise StoredDamageError(name) from error
            raise

    def move(self, name: str, other: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(FileExistsError):  # Another process has just copied it.
                self._client.copy(self._bucket_object_key(name), self._bucket_object_key(other))
            self._delete_object(name)

    def make_workspace(self, folder: str) -> Path:
        path = self.state / "work" / folder
        path.mkdir(parents=True)
        return path

    def publish_folder(
        self, folder: str, files: Mapping[str, File], sent: Mapping[str, Receipt]
    ) -> None:
        path = self.state / "work" / folder

        def send(name: str) -> Receipt:
            with (path / name).open("rb") as file:
                return self.upload_bytes(f"{folder}/{name}", _FileBytes(file))

        with ThreadPoolExecutor(_MAX_TRANSFERS) as pool:
            receipts = dict(zip(files, pool.map(send, files), strict=True)) | dict(sent)
        # Everything in the stored folder must be ours, and the object that was written: a file too
        # many is as wrong as one too few.
        expected = {name: (note.crc32c, note.generation) for name, note in receipts.items()}
        prefix = self._folder_prefix(folder)

        def check() -> None:
            stored = {
                there.key.removeprefix(prefix): (there.stat.crc32c, there.generation)
                for there in self._client.walk(prefix)
            }
            if stored != expected:  # Retried, since a cache may have answered with an old listing.
                raise ConnectionError(f"{self.uri}/{folder} does not hold what was sent")

        self._client.with_retries(check)
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
        keys = [self._bucket_object_key(folder), *self._client.keys(self._folder_prefix(folder))]

        def delete(key: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._client.with_retries(lambda: self._client.delete(key))

        with ThreadPoolExecutor(_MAX_TRANSFERS) as pool:
            list(pool.map(delete, keys))
        shutil.rmtree(self.state / "work" / folder, ignore_errors=True)

    def _read_object(self, name: str) -> tuple[bytes, str]:
        """Returns an object's bytes and its generation."""
        return self._client.with_retries(lambda: self._client.get(self._bucket_object_key(name)))

    def _write_object(self, name: str, data: bytes, replaced: str | None) -> bool:
        """Writes an object in place of a generation; returns whether these bytes are there now.

        Args:
          name: name of the file.
          data: bytes of the file.
          replaced: generation that must be there; `ABSENT` for no object, None for any.
        """
        # A condition makes it safe to send a write again. With "only if absent":
        #
        #   we                                   the bucket
        #   PUT x, if there is none       ->     stores x as generation 7
        #                                 X-     the reply is lost
        #   PUT x, if there is none       ->     412: there is an x
        #   GET x                         ->     our bytes: it was us. Others': they were first
        try:
            self._client.with_retries(
                lambda: self._client.put(self._bucket_object_key(name), data, replaced)
            )
        except FileExistsError:
            # Another process's object; or ours, if the reply to an earlier try was lost.
            try:
                return self.read(name) == data
            except FileNotFoundError:
                return False
        return True

    def _delete_object(self, name: str, generation: str | None = None) -> None:
        self._client.with_retries(
            lambda: self._client.delete(self._bucket_object_key(name), generation)
        )

    def _bucket_files_below(self, folder: str) -> dict[str, FileStat]:
        """Returns all files below a folder by their path in it."""
        return dict(self.walk(folder))

    def _bucket_object_key(self, name: str) -> str:
        return self._prefix + name

    def _folder_prefix(self, folder: str) -> str:
        return f"{self._prefix}{folder}/" if folder else self._prefix


def _open_client(scheme: str, bucket: str) -> ObjectClient:
    # Imported where they are needed: each takes a library with it.
    if scheme == "gs":
        from infra.store.objects.google_client import GoogleClient

        return GoogleClient(bucket)
    from infra.store.objects.obstore_client import ObstoreClient

    return ObstoreClient(scheme, bucket)


class _FileBytes:
    """The content of an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._number = file.fileno()
        self.size = os.fstat(self._number).st_size

    def read(self, start: int, length: int) -> bytes:
        """Returns a range of bytes, shorter at the file's end."""
        return os.pread(self._number, length, start)


def _state_folder(uri: str, address: str) -> Path:
    """Returns this machine's folder for a store elsewhere, by default or below PARCEL_STATE."""
    named = os.environ.get("PARCEL_STATE")
    base = Path(named) if named else user_folder("XDG_STATE_HOME", ".local/state")
    base = base or temporary_folder("state")
    name = re.sub(r"[^\w.-]+", "-", uri.partition("://")[2])
    # Two providers may have a bucket of the same name.
    place = f"{uri} {address}" if address else uri
    return base / f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def _content_name(files: Mapping[str, File]) -> str:
    """Returns a folder's name in the cache: a digest of its files, shared by equal artifacts."""
    return listing_sha256({name: file.sha256 for name, file in files.items()})
