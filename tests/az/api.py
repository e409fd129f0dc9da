"""The REST API of Azure's blobs, as far as stores use it, over the objects of `tests.gcs`.

A condition is checked and the blob written in one act. (Azurite, which other tests ask for
compatibility, does not fail on demand, and its clock is this machine's.)

Source: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api.
"""

import email.utils
import re
import threading
from collections.abc import Callable
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.gcs.api import Request, Response, arrived, read_response
from tests.gcs.objects import MAX_PAGE, Conditions, Content, Object, Refused, Store

ACCOUNT = "testaccount"
"""The only account there is."""

_CODES = {404: "BlobNotFound", 412: "ConditionNotMet"}

_DELETION = re.compile(rb"^DELETE (\S+) HTTP/1.1", re.MULTILINE)


class Api:
    """Answers requests."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._blocks: dict[str, dict[str, bytes]] = {}

    def describe(self, request: Request) -> tuple[str, str]:
        """Returns the verb of a request, one of `tests.gcs.faults`, and the blob it names."""
        verb, _, _, key = self._route(request)
        return verb, key

    def call(self, request: Request) -> Response:
        """Does what a request asks, and answers it."""
        _, handler, container, key = self._route(request)
        if f"SharedKey {ACCOUNT}:" not in request.headers.get("authorization", ""):
            return _error(403, "AuthenticationFailed", "Server failed to authenticate the request.")
        if not self._store.has_bucket(container):
            return _error(404, "ContainerNotFound", "The specified container does not exist.")
        request.body = bytes(arrived(request.body, request.flip))
        try:
            return handler(request, container, key)
        except Refused as refused:
            if refused.status == 412 and request.headers.get("if-none-match") == "*":
                return _error(409, "BlobAlreadyExists", "The specified blob already exists.")
            return _error(refused.status, _CODES.get(refused.status, "Error"), refused.message)

    def _route(self, request: Request) -> tuple[str, Callable[..., Response], str, str]:
        container, key = _names(request.path)
        act = request.query.get("comp", "")
        if "x-ms-copy-source" in request.headers:
            act = "copy"
        routes: dict[tuple[str, bool, str], tuple[str, Callable[..., Response]]] = {
            # method, whether it names a blob, what it does
            ("GET", False, "list"): ("list", self._list),
            # What is deleted is named in a batch, of one here.
            ("POST", False, "batch"): ("delete", self._delete),
            ("GET", True, ""): ("media", self._get),
            ("HEAD", True, ""): ("metadata", self._get),
            ("PUT", True, ""): ("upload", self._put),
            ("PUT", True, "copy"): ("copy", self._copy),
            ("PUT", True, "block"): ("chunk", self._put_block),
            ("PUT", True, "blocklist"): ("compose", self._put_blocks),
        }
        verb, handler = routes.get((request.method, key != "", act), ("other", self._unknown))
        if verb == "delete" and (match := _DELETION.search(bytes(request.body))):
            key = _names(match[1].decode())[1]
        return verb, handler, container, key

    def _unknown(self, request: Request, container: str, key: str) -> Response:
        return _error(501, "NotImplemented", f"{request.method} {request.target} is not served")

    def _condition(self, request: Request) -> Conditions:
        """Returns the condition of a write; an ETag names a generation."""
        if request.headers.get("if-none-match") == "*":
            return Conditions(generation=0)
        etag = request.headers.get("if-match")
        return Conditions(generation=int(etag.strip('"'), 16) if etag else None)

    def _get(self, request: Request, container: str, key: str) -> Response:
        there = self._store.get(container, key)
        headers = {
            **_description(there),
            "Content-Type": "application/octet-stream",
            "x-ms-blob-type": "BlockBlob",
            "Accept-Ranges": "bytes",
        }
        answer = read_response(request, headers, there.data)
        return answer or _error(416, "InvalidRange", "The range specified is invalid.")

    def _put(self, request: Request, container: str, key: str) -> Response:
        return self._write(request, container, key, bytes(request.body))

    def _write(self, request: Request, container: str, key: str, data: bytes) -> Response:
        condition = self._condition(request)
        made = self._store.put(container, key, Content.of(data), None, condition)
        return Response(201, _description(made))

    def _copy(self, request: Request, container: str, key: str) -> Response:
        path = urlsplit(request.headers["x-ms-copy-source"]).path
        there = self._store.get(*_names(path))
        made = self._store.copy(there, container, key, None)
        return Response(202, {**_description(made), "x-ms-copy-status": "success"})

    def _put_block(self, request: Request, container: str, key: str) -> Response:
        with self._lock:
            self._blocks.setdefault(key, {})[request.query["blockid"]] = bytes(request.body)
        return Response(201)

    def _put_blocks(self, request: Request, container: str, key: str) -> Response:
        names = [node.text or "" for node in ElementTree.fromstring(bytes(request.body))]
        with self._lock:
            blocks = self._blocks.get(key, {})
            if not blocks.keys() >= set(names):
                return _error(400, "InvalidBlockList", "The specified block list is invalid.")
            data = b"".join(blocks[name] for name in names)
            answer = self._write(request, container, key, data)
            self._blocks.pop(key, None)
        return answer

    def _delete(self, request: Request, container: str, key: str) -> Response:
        boundary = request.headers["content-type"].partition("boundary=")[2]
        answers = []
        for number, target in enumerate(_DELETION.findall(bytes(request.body))):
            status = "202 Accepted"
            try:
                self._store.delete(*_names(target.decode()))
            except Refused:
                status = "404 The specified blob does not exist."
            answers.append(
                f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {status}\r\nx-ms-version: 2023-11-03\r\n\r\n"
            )
        headers = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
        return Response(202, headers, f"{''.join(answers)}--{boundary}--".encode())

    def _list(self, request: Request, container: str, _: str) -> Response:
        query = request.query
        page = self._store.listing(
            container,
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            token=query.get("marker", ""),
            limit=int(query.get("maxresults", MAX_PAGE)),
            age=request.age,
        )
        prefixes = "".join(
            f"<BlobPrefix><Name>{escape(prefix)}</Name></BlobPrefix>" for prefix in page.prefixes
        )
        blobs = "".join(
            f"<Blob><Name>{escape(item.name)}</Name><Properties>"
            f"<Last-Modified>{_date(item.updated)}</Last-Modified>"
            f"<Etag>{_etag(item)}</Etag><Content-Length>{len(item.data)}</Content-Length>"
            f"<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for item in page.items
        )
        return _xml(
            f'<EnumerationResults ContainerName="{container}"><Blobs>{prefixes}{blobs}</Blobs>'
            f"<NextMarker>{page.token or ''}</NextMarker></EnumerationResults>"
        )


def _names(path: str) -> tuple[str, str]:
    """Returns the container and the blob that a path names."""
    container, _, key = unquote(path).removeprefix(f"/{ACCOUNT}/").partition("/")
    return container, key


def _etag(there: Object) -> str:
    return f"0x{there.generation:X}"


def _date(seconds: float) -> str:
    return email.utils.formatdate(int(seconds), usegmt=True)


def _description(there: Object) -> dict[str, str]:
    return {"ETag": f'"{_etag(there)}"', "Last-Modified": _date(there.updated)}


def _xml(content: str, status: int = 200) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n{content}'
    return Response(status, {"Content-Type": "application/xml"}, text.encode())


def _error(status: int, code: str, message: str) -> Response:
    content = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return _xml(content, status)
