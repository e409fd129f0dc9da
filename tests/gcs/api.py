"""The JSON API: which request means what, and how its answer looks.

Source: https://cloud.google.com/storage/docs/json_api/v1, and the code of gcsfs,
google-cloud-storage and TensorStore for what they ask.
"""

import dataclasses
import email.utils
import http
import json
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tests.gcs import multipart
from tests.gcs.objects import (
    MAX_PAGE,
    SETTABLE,
    Bucket,
    Conditions,
    Content,
    Object,
    Refused,
    Store,
    number,
    settable,
)
from tests.gcs.tally import Tally
from tests.gcs.uploads import Uploads, check_hashes

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclasses.dataclass
class Request:
    """A request as it came.

    Attributes:
      target: path and query, percent-encoded.
      headers: by name in lower case.
      base: scheme and host that the client used, for the links in answers.
      body: the bytes, or as many of them as have arrived.
      part: of a resumable chunk, take this much and no more [bytes].
      flip: of what is uploaded, the byte here arrives as another.
      age: of what a listing shows [s].
    """

    method: str
    target: str
    headers: Mapping[str, str]
    base: str
    body: bytes | bytearray = b""
    part: int | None = None
    flip: int | None = None
    age: float = 0.0

    def __post_init__(self) -> None:
        split = urlsplit(self.target)  # In a batch the target may be a whole address.
        self.path = split.path
        self.query = dict(parse_qsl(split.query, keep_blank_values=True))

    def json(self) -> dict[str, object]:
        try:
            found = json.loads(self.body or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refused(400, "parseError", "Parse Error")
        return found


@dataclasses.dataclass
class Response:
    """An answer; its length is told by its body, save for those that have none."""

    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes | bytearray | memoryview = b""


class Api:
    """Answers requests.

    Attributes:
      rewrite_bytes: what one call of rewriteTo copies; None for all [bytes].
      omits_zero: leave the size of an empty object out, as Google's storage-testbench does.
    """

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store, self._tally = store, tally
        self._uploads = Uploads(store)
        self.rewrite_bytes: int | None = None
        self.omits_zero = False
        self._rewrites: dict[object, int] = {}
        routes: list[tuple[str, str, str, Callable[..., Response]]] = [
            ("POST", "/upload/storage/v1/b/{}/o", "upload", self._upload),
            ("PUT", "/upload/storage/v1/b/{}/o", "upload", self._upload),
            ("DELETE", "/upload/storage/v1/b/{}/o", "cancel", self._cancel),
            ("GET", "/download/storage/v1/b/{}/o/{}", "media", self._media),
            ("POST", "/batch", "batch", self._batch),
            ("POST", "/batch/storage/v1", "batch", self._batch),
            ("POST", "/storage/v1/b", "bucket", self._make_bucket),
            ("GET", "/storage/v1/b/{}", "bucket", self._get_bucket),
            ("DELETE", "/storage/v1/b/{}", "bucket", self._delete_bucket),
            ("GET", "/storage/v1/b/{}/o", "list", self._list),
            ("GET", "/storage/v1/b/{}/o/{}", "metadata", self._get),
            ("DELETE", "/storage/v1/b/{}/o/{}", "delete", self._delete),
            ("POST", "/storage/v1/b/{}/o/{}/rewriteTo/b/{}/o/{}", "rewrite", self._rewrite),
            ("POST", "/storage/v1/b/{}/o/{}/copyTo/b/{}/o/{}", "copy", self._copy),
        ]
        self._routes = [
            (method, re.compile(path.replace("{}", "([^/]+)") + "/?"), verb, handler)
            for method, path, verb, handler in routes
        ]

    def describe(self, request: Request) -> tuple[str, str]:
        """Returns the verb of a request, and the object it names; "" for none.

        The body may not have arrived yet, but for its head.
        """
        verb, _, names = self._route(request)
        if verb in ("upload", "cancel"):
            return self._describe_upload(request, verb)
        if verb == "metadata" and request.query.get("alt") == "media":
            verb = "media"
        return verb, names[1] if len(names) > 1 else ""

    def call(self, request: Request) -> Response:
        """Does what a request asks, and answers it."""
        _, handler, names = self._route(request)
        try:
            return handler(request, *names)
        except Refused as refused:
            return error(refused.status, refused.reason, refused.message)

    def _route(self, request: Request) -> tuple[str, Callable[..., Response], list[str]]:
        """Returns the verb of a path, who answers it, and the names in it."""
        method = "GET" if request.method == "HEAD" else request.method
        for known, path, verb, handler in self._routes:
            match = path.fullmatch(request.path)
            if known == method and match:
                return verb, handler, [unquote(name) for name in match.groups()]
        return "other", self._unknown, []

    def _unknown(self, request: Request) -> Response:
        raise Refused(404, "notFound", f"Not Found: {request.method} {request.path}")

    # Uploads.

    def _describe_upload(self, request: Request, verb: str) -> tuple[str, str]:
        key = request.query.get("upload_id")
        if key is not None:
            try:
                name = self._uploads.session(key).name
            except Refused:
                name = ""
            if verb == "cancel":
                return verb, name
            asks = request.headers.get("content-range", "").startswith("bytes */")
            return ("query" if asks else "chunk"), name
        kind = request.query.get("uploadType")
        name = request.query.get("name", "")
        try:
            if not name and kind == "multipart":
                found = multipart.read_metadata(
                    request.headers.get("content-type", ""), bytes(request.body)
                )
                name = str(found.get("name", ""))
            elif not name and kind == "resumable":
                name = str(request.json().get("name", ""))
        except (ValueError, Refused):
            name = ""  # What is wrong is told in the answer.
        return ("start" if kind == "resumable" else "upload"), name

    def _upload(self, request: Request, bucket: str) -> Response:
        if "upload_id" in request.query:
            return self._chunk(request)
        kind = request.query.get("uploadType")
        if kind == "resumable":
            return self._start(request, bucket)
        content_type = request.headers.get("content-type", "application/octet-stream")
        if kind == "multipart":
            try:
                fields, content_type, data = multipart.read_related(content_type, request.body)
            except ValueError:
                raise Refused(400, "parseError", "Parse Error") from None
        elif kind == "media":
            fields, data = {}, request.body
        else:
            raise Refused(400, "invalid", f"Invalid upload type: {kind!r}")
        fields = {"contentType": content_type, **fields}
        content = Content.of(bytes(arrived(data, request.flip)))
        check_hashes(content, fields)
        check_hashes(content, _announced(request))
        made = self._store.put(
            bucket, _named(request, fields), content, fields, Conditions.parse(request.query)
        )
        return _json(self._object(made, request.base))

    def _start(self, request: Request, bucket: str) -> Response:
        fields = request.json()
        if "x-upload-content-type" in request.headers:
            fields.setdefault("contentType", request.headers["x-upload-content-type"])
        key = self._uploads.start(
            bucket,
            _named(request, fields),
            Conditions.parse(request.query),
            {**fields, **_announced(request)},
            number(request.headers, "x-upload-content-length"),
        )
        # The client's own parameters stay in the address, as gcsfs relies on.
        address = urlencode({**request.query, "upload_id": key}, quote_via=quote)
        return Response(
            200,
            {"Location": f"{request.base}{request.path}?{address}", "X-GUploader-UploadID": key},
        )

    def _chunk(self, request: Request) -> Response:
        taken = self._uploads.take(
            request.query["upload_id"],
            memoryview(arrived(request.body, request.flip)),
            request.headers.get("content-range"),
            _announced(request),
            part=request.part,
        )
        if isinstance(taken, Object):
            return _json(self._object(taken, request.base))
        return Response(308, {"Range": f"bytes=0-{taken - 1}"} if taken else {})

    def _cancel(self, request: Request, bucket: str) -> Response:
        self._uploads.cancel(request.query.get("upload_id", ""))
        return Response(499)

    # Objects.

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        if request.query.get("alt") == "media":
            return self._media(request, bucket, name)
        return _json(self._object(self._read(request, bucket, name), request.base))

    def _media(self, request: Request, bucket: str, name: str) -> Response:
        found = self._read(request, bucket, name)
        answer = read_response(request, _media_headers(found), found.data)
        if answer is None:
            answer = error(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
            answer.headers["Content-Range"] = f"bytes */{len(found.data)}"
        return answer

    def _read(self, request: Request, bucket: str, name: str) -> Object:
        conditions = Conditions.parse(request.query)
        return self._store.get(bucket, name, conditions, number(request.query, "generation"))

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        conditions = Conditions.parse(request.query)
        self._store.delete(bucket, name, conditions, number(request.query, "generation"))
        return Response(204)

    def _list(self, request: Request, bucket: str) -> Response:
        query = request.query
        if "matchGlob" in query:
            raise Refused(501, "notImplemented", "matchGlob is not served.")
        page = self._store.listing(
            bucket,
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=query.get("startOffset", ""),
            end=query.get("endOffset", ""),
            token=query.get("pageToken", ""),
            limit=number(query, "maxResults") or MAX_PAGE,
            age=request.age,
        )
        answer: dict[str, object] = {"kind": "storage#objects"}
        if page.items:
            answer["items"] = [self._object(item, request.base) for item in page.items]
        if page.prefixes:
            answer["prefixes"] = page.prefixes
        if page.token:
            answer["nextPageToken"] = page.token
        return _json(answer)

    def _source(self, request: Request, bucket: str, name: str) -> Object:
        found = self._store.get(bucket, name, generation=number(request.query, "sourceGeneration"))
        Conditions.parse(request.query, "ifSource").check(found)
        return found

    def _copy(
        self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str
    ) -> Response:
        made = self._store.copy(
            self._source(request, bucket, name),
            to_bucket,
            to_name,
            settable(request.json()),
            Conditions.parse(request.query),
        )
        return _json(self._object(made, request.base))

    def _rewrite(
        self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str
    ) -> Response:
        source = self._source(request, bucket, name)
        size = len(source.data)
        done = self._rewrites.pop(request.query.get("rewriteToken"), 0)
        done = min(size, done + (self.rewrite_bytes or size))
        answer: dict[str, object] = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(done),
            "objectSize": str(size),
            "done": done == size,
        }
        conditions = Conditions.parse(request.query)
        if done < size:
            self._store.check(to_bucket, to_name, conditions)
            answer["rewriteToken"] = uuid.uuid4().hex
            self._rewrites[answer["rewriteToken"]] = done
        else:
            fields = settable(request.json())
            made = self._store.copy(source, to_bucket, to_name, fields, conditions)
            answer["resource"] = self._object(made, request.base)
        return _json(answer)

    # Buckets.

    def _make_bucket(self, request: Request) -> Response:
        asked = request.json()
        made = self._store.make_bucket(str(asked["name"]), str(asked["location"]))
        return _json(_bucket(made, request.base))

    def _get_bucket(self, request: Request, bucket: str) -> Response:
        return _json(_bucket(self._store.bucket(bucket), request.base))

    def _delete_bucket(self, request: Request, bucket: str) -> Response:
        self._store.delete_bucket(bucket)
        return Response(204)

    # Batches.

    def _batch(self, request: Request) -> Response:
        calls = multipart.read_batch(request.headers.get("content-type", ""), bytes(request.body))
        answers = []
        for call in calls:
            inner = Request(call.method, call.target, call.headers, request.base, call.body)
            response = self._call_in_batch(inner)
            status = f"{response.status} {phrase(response.status)}"
            headers = {**response.headers, "Content-Length": str(len(response.body))}
            answers.append((call.content_id, status, headers, bytes(response.body)))
        boundary = f"batch_{uuid.uuid4().hex}"
        body = multipart.write_batch(boundary, answers)
        return Response(200, {"Content-Type": f"multipart/mixed; boundary={boundary}"}, body)

    def _call_in_batch(self, request: Request) -> Response:
        verb, _ = self.describe(request)
        response = self.call(request)
        self._tally.add(verb, response.status)
        return response

    def _object(self, found: Object, base: str) -> dict[str, object]:
        name = quote(found.name, safe="")
        answer: dict[str, object] = {
            "kind": "storage#object",
            "id": f"{found.bucket}/{found.name}/{found.generation}",
            "selfLink": f"{base}/storage/v1/b/{found.bucket}/o/{name}",
            "mediaLink": f"{base}/download/storage/v1/b/{found.bucket}/o/{name}"
            f"?generation={found.generation}&alt=media",
            "name": found.name,
            "bucket": found.bucket,
            "generation": str(found.generation),
            "metageneration": str(found.metageneration),
            "storageClass": "STANDARD",
            "size": str(len(found.data)),
            "crc32c": found.content.crc32c,
            "md5Hash": found.content.md5,
            "etag": found.etag,
            "timeCreated": _time(found.created),
            "updated": _time(found.updated),
            "timeStorageClassUpdated": _time(found.created),
        }
        if self.omits_zero and not found.data:
            del answer["size"]
        return answer | {field: found.fields[field] for field in SETTABLE if field in found.fields}


def error(status: int, reason: str, message: str) -> Response:
    """Returns an error as the API writes it; those without a body have none."""
    if status in (304, 499):
        return Response(status)
    detail = {"message": message, "domain": "global", "reason": reason}
    return _json({"error": {"code": status, "message": message, "errors": [detail]}}, status)


def injected(status: int) -> Response:
    """Returns the error of a rule."""
    reason = "rateLimitExceeded" if status == 429 else "backendError"
    return error(status, reason, f"Injected: {phrase(status)}")


def phrase(status: int) -> str:
    """Returns the words that go with an HTTP status."""
    if status == 499:
        return "Client Closed Request"
    return http.HTTPStatus(status).phrase


def _json(answer: Mapping[str, object], status: int = 200) -> Response:
    body = json.dumps(answer).encode()
    return Response(status, {"Content-Type": "application/json; charset=UTF-8"}, body)


def _named(request: Request, fields: Mapping[str, object]) -> str:
    name = request.query.get("name") or fields.get("name")
    if not name:
        raise Refused(400, "required", "Required parameter: name")
    return str(name)


def _announced(request: Request) -> dict[str, object]:
    """Returns the hashes in the header x-goog-hash, by their JSON names."""
    found = {}
    for entry in request.headers.get("x-goog-hash", "").split(","):
        kind, _, value = entry.strip().partition("=")
        if kind in ("crc32c", "md5"):
            found["md5Hash" if kind == "md5" else kind] = value
    return found


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Returns first byte and end of a range, empty if none of it is there; None for no range."""
    match = _RANGE.fullmatch(header)
    if not match or not (match[1] or match[2]):
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first = int(match[1])
    if match[2] and int(match[2]) < first:
        return None
    return first, min(size, int(match[2]) + 1) if match[2] else size


def read_response(request: Request, headers: dict[str, str], data: bytes) -> Response | None:
    """Returns the answer to a read, of a range if one is asked for; None if none of it is there."""
    asked = byte_range(request.headers.get("range", ""), len(data))
    if asked is None:
        return Response(200, headers, data)
    first, end = asked
    if first >= end:
        return None
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
    return Response(206, headers, memoryview(data)[first:end])


def _time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _media_headers(found: Object) -> dict[str, str]:
    headers = {
        "Content-Type": str(found.fields.get("contentType", "application/octet-stream")),
        "ETag": found.etag,
        "Accept-Ranges": "bytes",
        "Last-Modified": email.utils.formatdate(found.updated, usegmt=True),
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Metageneration": str(found.metageneration),
        "X-Goog-Hash": f"crc32c={found.content.crc32c},md5={found.content.md5}",
        "X-Goog-Storage-Class": str(found.fields.get("storageClass", "STANDARD")),
        "X-Goog-Stored-Content-Length": str(len(found.data)),
        "X-Goog-Stored-Content-Encoding": str(found.fields.get("contentEncoding", "identity")),
    }
    if "contentEncoding" in found.fields:
        headers["Content-Encoding"] = str(found.fields["contentEncoding"])
    return headers


def _bucket(found: Bucket, base: str) -> dict[str, object]:
    return {
        "kind": "storage#bucket",
        "id": found.name,
        "name": found.name,
        "selfLink": f"{base}/storage/v1/b/{found.name}",
        "projectNumber": "1",
        "location": found.location,
        "storageClass": "STANDARD",
        "metageneration": "1",
        "etag": "CAE=",
        "timeCreated": _time(found.created),
        "updated": _time(found.created),
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
    }


def arrived(
    data: bytes | bytearray | memoryview, flip: int | None
) -> bytes | bytearray | memoryview:
    """Returns data with one bit of the byte at `flip` turned."""
    if flip is None or not len(data):
        return data
    data = bytearray(data)
    data[min(flip, len(data) - 1)] ^= 1
    return data
