"""Objects of a Google Cloud Storage bucket, through gcsfs.

A write or deletion that must not act twice names the generation that it replaces, 0 for none. So a
request whose reply was lost can be sent again: the bucket refuses the second, and the stored bytes
show whether the first one was ours. gcsfs's own files and listings are not used: an exception
inside its `open(…, "wb")` commits half a file, and its listings are cached.
"""

import base64
import contextlib
import datetime
import email.utils
import json
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from infra.store.backend import ByteSource, FileStat
from infra.store.block_reader import WholeSum
from infra.store.objects.object_client import ObjectClient, StoredObject
from infra.store.objects.reachable import has_metadata_server
from infra.store.objects.regions import check_region, region_of_machine

_TIMEOUT = 60.0
"""Longest wait for the next byte of an answer [s]."""
_LISTED_FIELDS = "items(name,size,updated,generation,crc32c),prefixes,nextPageToken"
"""Fields that a listing asks for."""
_PART = 16 * 2**20
"""Size of the parts in which a large file is sent [bytes]."""

_BYTES = "application/octet-stream"
_LOG_IN = (
    "log in with `gcloud auth application-default login`, or name a key's file in "
    "GOOGLE_APPLICATION_CREDENTIALS"
)


class GoogleClient(ObjectClient):
    """Requests for the objects of a bucket.

    Args:
      bucket: name of the bucket.
    """

    server_variable = "STORAGE_EMULATOR_HOST"

    def __init__(self, bucket: str) -> None:
        self.uri, self._bucket = f"gs://{bucket}", bucket
        self.server = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
        if "://" not in self.server:
            self.server = f"http://{self.server}"
        self._system: Any = None
        self._opening = threading.Lock()

    def probe(self) -> None:
        self._probe_google_bucket()

    def check_region(self, uri: str) -> None:
        """Refuses a bucket that is certainly in another region than this machine; see `regions`.

        Args:
          uri: URI of the store, for people.

        Raises:
          ValueError: if it is.
        """
        if region_of_machine() is None:
            return  # Nothing to compare, which saves the request.
        fields = "location,customPlacementConfig"
        try:
            location = self._request_json("GET", "b/{}", self._bucket, fields=fields)
        except OSError:
            return  # A user may be allowed to read objects but not to ask this.
        check_region(uri, location)

    def now(self, folder: str) -> int:
        del folder  # Every answer has the time.
        date = email.utils.parsedate_to_datetime(self._probe_google_bucket()["Date"])
        return int(date.timestamp() * 1e9)

    def get(self, key: str) -> tuple[bytes, str]:
        headers, data = self._request_google_api("GET", *self._object_path(key), alt="media")
        if self.checksum(iter([data])) not in headers.get("x-goog-hash", ""):
            raise ConnectionError(f"{key}: the bytes received do not match its checksum")
        return data, headers["x-goog-generation"]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        return self._request_google_api(
            "GET", *self._object_path(key), alt="media", headers=headers
        )[1]

    def download(self, key: str, path: Path) -> None:
        self._open_gcsfs_system().get_file(f"{self._bucket}/{key}", str(path))

    def stat(self, key: str) -> StoredObject:
        return _google_stored_object(
            json.loads(self._request_google_api("GET", *self._object_path(key))[1])
        )

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        for page in self._list_pages(prefix):
            yield from map(_google_stored_object, page.get("items", ()))

    def entries(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        objects: list[StoredObject] = []
        prefixes: list[str] = []
        for page in self._list_pages(prefix, delimiter="/"):
            objects += map(_google_stored_object, page.get("items", ()))
            prefixes += page.get("prefixes", ())
        return objects, prefixes

    def put(self, key: str, data: bytes, replaced: str | None) -> str:
        condition = {} if replaced is None else {"ifGenerationMatch": replaced or 0}
        # Sent with a checksum, so that the bucket refuses bytes that were damaged on their way.
        boundary = uuid.uuid4().hex
        metadata = json.dumps({"name": key, "crc32c": self.checksum(iter([data]))})
        body = (
            f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{metadata}\r\n--{boundary}\r\n"
            f"Content-Type: {_BYTES}\r\n\r\n"
        ).encode()
        _, reply = self._request_google_api(
            "POST",
            self._upload_url(),
            data=body + data + f"\r\n--{boundary}--".encode(),
            uploadType="multipart",
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            **condition,
        )
        return json.loads(reply)["generation"]

    def upload(self, key: str, data: ByteSource) -> str:
        headers, _ = self._request_google_api(
            "POST",
            self._upload_url(),
            uploadType="resumable",
            name=key,
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
                headers, reply = self._request_google_api(
                    "PUT", session, data=part, headers={"Content-Range": content_range}
                )
                start = int(headers["Range"].rpartition("-")[2]) + 1 if "Range" in headers else 0
        except Exception:
            with contextlib.suppress(Exception):  # The session expires by itself, in a week.
                self._request_google_api("DELETE", session)
            raise
        return json.loads(reply)["generation"]

    def copy(self, source: str, key: str) -> None:
        # A large object takes several calls, each with the token of the one before:
        #
        #   POST rewriteTo                  -> done: false, rewriteToken: t1
        #   POST rewriteTo, rewriteToken t1 -> done: true
        path = "b/{}/o/{}/rewriteTo/b/{}/o/{}"
        ends = self._bucket, source, self._bucket, key
        token: dict[str, str] = {}
        while True:
            reply = self._request_json("POST", path, *ends, ifGenerationMatch=0, **token)
            if reply["done"]:
                return
            token = {"rewriteToken": reply["rewriteToken"]}

    def delete(self, key: str, generation: str | None = None) -> None:
        condition = {} if generation is None else {"ifGenerationMatch": generation}
        self._request_google_api("DELETE", *self._object_path(key), **condition)

    def checksum(self, data: Iterator[bytes]) -> str:
        checksum = google_crc32c.Checksum()
        for part in data:
            checksum.update(part)
        return _crc32c_text(checksum.digest())

    def whole_sum(self, stored: StoredObject) -> WholeSum | None:
        return WholeSum(google_crc32c.Checksum, lambda sum: _crc32c_text(sum) == stored.stat.crc32c)

    def is_transient(self, error: Exception) -> bool:
        from gcsfs.retry import is_retriable

        if "match calculated" in str(error):  # Other bytes arrived than were sent.
            return True
        return isinstance(error, TimeoutError | ConnectionError) or is_retriable(error)

    def reason(self, error: Exception) -> str:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"{text}; {_LOG_IN}" if "nonymous caller" in text else text

    def _probe_google_bucket(self) -> Mapping[str, str]:
        """Makes a minimal request; returns the headers of the answer."""
        return self._request_google_api("GET", "b/{}/o", self._bucket, maxResults=1, fields="kind")[
            0
        ]

    def _object_path(self, key: str) -> tuple[str, str, str]:
        """Returns the template of an object's path in requests, and the two names to fill in."""
        return "b/{}/o/{}", self._bucket, key

    def _upload_url(self) -> str:
        """Returns the address to which new objects are sent."""
        host = self._open_gcsfs_system().base.removesuffix("/storage/v1/")
        return f"{host}/upload/storage/v1/b/{self._bucket}/o"

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
        return json.loads(self.with_retries(lambda: self._request_google_api(*path, **options))[1])

    def _request_google_api(self, *path: str, **options: Any) -> tuple[Mapping[str, str], bytes]:
        return self._open_gcsfs_system().call(*path, **options)

    def _open_gcsfs_system(self) -> Any:
        """Returns gcsfs's file system; one per process, since threads do not survive a fork."""
        with self._opening:
            if self._system is None or self._system[0] != os.getpid():
                # From `core`: the package's own class asks by gRPC what type of bucket it is, which
                # takes a minute if nobody answers.
                import aiohttp
                from gcsfs.core import GCSFileSystem

                is_anonymous = "STORAGE_EMULATOR_HOST" in os.environ or not _has_login()
                options: dict[str, Any] = {
                    "token": "anon" if is_anonymous else None,
                    # No limit for a whole request, which may be a file of many gigabytes.
                    "requests_timeout": aiohttp.ClientTimeout(sock_read=_TIMEOUT),
                    "skip_instance_cache": True,
                }
                system = GCSFileSystem(**options)
                self._system = os.getpid(), system
            return self._system[1]


def _has_login() -> bool:
    """Returns whether there may be credentials; else a bucket is asked without, if it is public."""
    # `expanduser` leaves the path as it is for a user without a home; `Path.home` would raise.
    home = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
    file = Path(home) / "application_default_credentials.json"
    stated = "GOOGLE_APPLICATION_CREDENTIALS" in os.environ or "GCE_METADATA_HOST" in os.environ
    return stated or file.is_file() or has_metadata_server()


def _crc32c_text(crc32c: bytes) -> str:
    return base64.b64encode(crc32c).decode()


def _google_stored_object(item: Mapping[str, Any]) -> StoredObject:
    modified = datetime.datetime.fromisoformat(item["updated"])
    stat = FileStat(
        size=int(item.get("size", 0)),  # Some servers leave out what is 0.
        modified=int(modified.timestamp() * 1e9),
        version=(int(item["generation"]),),
        crc32c=item.get("crc32c", ""),
    )
    return StoredObject(item["name"], stat, item["generation"])
