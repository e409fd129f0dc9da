"""A server on loopback that speaks the Hugging Face Hub's protocol, with a CDN on another port.

Source: huggingface_hub 2.4.0, `hf_api.py`, `file_download.py`, `utils/_http.py`.
"""

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_ofTheTestAndOfNothingElse"


def commit_of(files: dict[str, bytes]) -> str:
    return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclasses.dataclass
class Repository:
    """Files of one repository: those of `main`, and those of earlier commits.

    `large` are the endings of files that are in LFS. `changes`, if set, are made to the listing
    that the server gives of it.
    """

    files: dict[str, bytes]
    gated: bool = False
    card: dict[str, Any] = dataclasses.field(default_factory=lambda: {"license": "mit"})
    large: tuple[str, ...] = (".safetensors", ".model", ".bin")
    earlier: list[dict[str, bytes]] = dataclasses.field(default_factory=list)
    listing: dict[str, Any] = dataclasses.field(default_factory=dict)
    sent: dict[str, bytes] = dataclasses.field(default_factory=dict)
    """name -> bytes that are sent instead of the file's."""

    def at(self, revision: str) -> dict[str, bytes] | None:
        if revision == "main":
            return self.files
        return {commit_of(files): files for files in (self.files, *self.earlier)}.get(revision)

    def described(self, files: dict[str, bytes]) -> dict[str, Any]:
        entries = []
        for name, data in files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            if name.endswith(self.large):
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 135}
            entries.append(entry)
        gated = "manual" if self.gated else False
        described = {"sha": commit_of(files), "gated": gated, "cardData": self.card}
        return {**described, "siblings": entries, **self.listing}


@dataclasses.dataclass
class Request:
    """One request as the server saw it: of which host, and with which headers."""

    host: str
    path: str
    authorization: str | None
    range: str | None


@dataclasses.dataclass
class Hub:
    """The server's state.

    Attributes:
      address: address of the Hub.
      repositories: ORG/NAME -> repository.
      renamed: old ORG/NAME -> new one.
      allowed: whether the account of `TOKEN` has access to gated repositories.
      breaks: of the next answers of the CDN, the number of bytes after which each is cut off.
      busy: of the next answers of the Hub, (status, Retry-After).
      hold: number of bytes after which the CDN waits for `go_on`, once; 0 never waits.
      requests: all requests so far.
    """

    address: str = ""
    cdn: str = ""
    repositories: dict[str, Repository] = dataclasses.field(default_factory=dict)
    renamed: dict[str, str] = dataclasses.field(default_factory=dict)
    allowed: bool = True
    breaks: list[int] = dataclasses.field(default_factory=list)
    busy: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    hold: int = 0
    go_on: threading.Event = dataclasses.field(default_factory=threading.Event)
    requests: list[Request] = dataclasses.field(default_factory=list)

    def of(self, host: str) -> list[Request]:
        return [request for request in self.requests if request.host == host]

    def fetched(self) -> list[str]:
        """Names of the files that were sent, or begun to be."""
        return sorted(
            request.path.rpartition("/")[2]
            for request in self.of("hub")
            if "/resolve/" in request.path
        )


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    host: str

    def do_GET(self) -> None:
        headers = self.headers
        self.hub.requests.append(
            Request(self.host, self.path, headers["Authorization"], headers["Range"])
        )
        if self.host == "cdn":
            self._send_from_cdn()
        elif self.hub.busy:
            status, retry_after = self.hub.busy.pop(0)
            self._refuse(status, **{"Retry-After": retry_after})
        else:
            self._answer()

    def _answer(self) -> None:
        words = [unquote(word) for word in urlsplit(self.path).path.split("/")[1:]]
        is_listing = words[:2] == ["api", "models"]
        organisation, name, _, revision, *path = words[2:] if is_listing else words
        key = f"{organisation}/{name}"
        if key in self.hub.renamed:
            self.send_response(307)
            self.send_header("Location", self.path.replace(key, self.hub.renamed[key], 1))
            self.end_headers()
            return
        given = self.headers["Authorization"]
        if given not in (None, f"Bearer {TOKEN}"):
            message = "Invalid credentials in Authorization header"
            self._refuse(401, **{"X-Error-Message": message})
            return
        repository = self.hub.repositories.get(key)
        if repository is None:
            self._refuse(404 if given else 401, **{"X-Error-Code": "RepoNotFound"})
            return
        files = repository.at(revision)
        if files is None:
            self._refuse(404, **{"X-Error-Code": "RevisionNotFound"})
        elif is_listing:
            blobs = parse_qs(urlsplit(self.path).query).get("blobs")
            assert blobs, "without it the Hub states no sizes and digests"
            described = {"id": key, **repository.described(files)}
            self._send(200, json.dumps(described).encode())
        elif repository.gated and not (given and self.hub.allowed):
            self._refuse(403 if given else 401, **{"X-Error-Code": "GatedRepo"})
        else:
            self._send_file(repository, files, "/".join(path))

    def _send_file(self, repository: Repository, files: dict[str, bytes], name: str) -> None:
        data = repository.sent.get(name, files[name])
        headers = {"X-Repo-Commit": commit_of(files)}
        if not name.endswith(repository.large):
            self._send(200, data, **headers, ETag=f'"{git_sha1(data)}"')
            return
        sha256 = hashlib.sha256(data).hexdigest()
        blobs[sha256] = data
        self.send_response(302)
        for key, value in {
            **headers,
            "X-Linked-Etag": f'"{sha256}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.hub.cdn}/{sha256}?signature=secret",
        }.items():
            self.send_header(key, value)
        self.end_headers()

    def _send_from_cdn(self) -> None:
        data = blobs[urlsplit(self.path).path[1:]]
        tag, begin = f'"{hashlib.md5(data).hexdigest()}"', 0
        if self.headers["Range"] and self.headers["If-Range"] in (None, tag):
            begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        end = begin + self.hub.breaks.pop(0) if self.hub.breaks else len(data)
        self.send_response(206 if begin else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(data) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.hub.hold:
            middle, self.hub.hold = begin + self.hub.hold, 0
            self.wfile.write(data[begin:middle])
            self.wfile.flush()
            self.hub.go_on.wait(60)
            begin = middle
        with contextlib.suppress(OSError):  # The client may have been killed meanwhile.
            self.wfile.write(data[begin:end])
        if end < len(data):
            self.close_connection = True

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, **headers: str) -> None:
        self._send(status, b"{}", **headers)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


blobs: dict[str, bytes] = {}
"""sha256 -> bytes, as the CDN knows its files."""


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """Yields a Hub without repositories; it runs until the end of the block."""
    hub = Hub()
    servers = [
        ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "host": host})
        )
        for host in ("hub", "cdn")
    ]
    hub.address, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
