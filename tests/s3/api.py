"""The REST API of S3, as far as stores use it, over the objects of `tests.gcs`.

A condition is checked and the object written in one act, as the real one does. (moto, which other
tests ask for compatibility, checks first and writes later, so two creators may both win there.)

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/.
"""

import base64
import contextlib
import email.utils
import hashlib
import re
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.gcs.api import Request, Response, arrived, read_response
from tests.gcs.objects import MAX_PAGE, Conditions, Content, Object, Refused, Store

ACCESS_KEY, SECRET_KEY = "test-key", "test-secret-3f9c"
"""The only credentials that are accepted."""

REGION = "us-east-1"

_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/s3/aws4_request")

_CODES = {400: "BadRequest", 404: "NoSuchKey", 412: "PreconditionFailed"}

_NO_CONTENT_HASH = ("UNSIGNED-PAYLOAD", None)


class Api:
    """Answers requests.

    Attributes:
      read_only: whether writes are refused with 403.
      knows_conditions: whether writes look at If-None-Match and If-Match, as all should.
      etags_are_digests: whether ETags are digests of the bytes, as mostly; not with keys of KMS.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read_only, self.knows_conditions, self.etags_are_digests = False, True, True
        self._lock = threading.Lock()
        self._uploads: dict[str, dict[int, bytes]] = {}

    def describe(self, request: Request) -> tuple[str, str]:
        """Returns the verb of a request, one of `tests.gcs.faults`, and the object it names."""
        verb, _, _, key = self._route(request)
        return verb, key

    def call(self, request: Request) -> Response:
        """Does what a request asks, and answers it."""
        verb, handler, bucket, key = self._route(request)
        try:
            self._check_credentials(request)
            if self.read_only and verb not in ("media", "metadata", "list", "bucket"):
                return _error(403, "AccessDenied", "Access Denied")
            self._check_content(request)
            if not self._store.has_bucket(bucket):
                return _error(404, "NoSuchBucket", "The specified bucket does not exist")
            return handler(request, bucket, key)
        except _Error as refused:
            return _error(refused.status, refused.code, str(refused))
        except Refused as refused:
            return _error(refused.status, _CODES.get(refused.status, "Error"), refused.message)

    def _route(self, request: Request) -> tuple[str, Callable[..., Response], str, str]:
        bucket, _, key = unquote(request.path).removeprefix("/").partition("/")
        method, query, has = request.method, request.query, request.headers
        if not key:
            listing = method == "GET" and query.get("list-type") == "2"
            return (
                ("list", self._list, bucket, "")
                if listing
                else ("bucket", self._head_bucket, bucket, "")
            )
        routes: dict[tuple[str, bool, bool], tuple[str, Callable[..., Response]]] = {
            # method, with an upload's id, of a multipart upload's beginning
            ("GET", False, False): ("media", self._get),
            ("HEAD", False, False): ("metadata", self._get),
            ("PUT", False, False): ("upload", self._put),
            ("DELETE", False, False): ("delete", self._delete),
            ("POST", False, True): ("start", self._start),
            ("PUT", True, False): ("chunk", self._part),
            ("POST", True, False): ("compose", self._complete),
            ("DELETE", True, False): ("cancel", self._abort),
        }
        verb, handler = routes.get(
            (method, "uploadId" in query, "uploads" in query), ("other", self._unknown)
        )
        if verb == "upload" and "x-amz-copy-source" in has:
            return "copy", self._copy, bucket, key
        return verb, handler, bucket, key

    def _unknown(self, request: Request, bucket: str, key: str) -> Response:
        raise _Error(501, "NotImplemented", f"{request.method} {request.target} is not served")

    # What is wrong with a request as such.

    def _check_credentials(self, request: Request) -> None:
        match = _CREDENTIAL.search(request.headers.get("authorization", ""))
        if match is None:
            raise _Error(403, "AccessDenied", "Access Denied")
        if match[1] != ACCESS_KEY:
            raise _Error(
                403,
                "InvalidAccessKeyId",
                "The AWS Access Key Id you provided does not exist in our records.",
            )
        if match[2] != REGION:
            raise _Error(
                400,
                "AuthorizationHeaderMalformed",
                f"The authorization header is malformed; the region '{match[2]}' is wrong; "
                f"expecting '{REGION}'",
            )

    def _check_content(self, request: Request) -> None:
        """Takes the body as it arrived, and compares it with the digest that was signed."""
        request.body = bytes(arrived(request.body, request.flip))
        stated = request.headers.get("x-amz-content-sha256")
        if stated not in (*_NO_CONTENT_HASH, hashlib.sha256(request.body).hexdigest()):
            raise _Error(
                400,
                "XAmzContentSHA256Mismatch",
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            )

    def _condition(self, request: Request, bucket: str, key: str) -> Conditions:
        """Returns the condition of a write on the generation that is there now.

        An ETag is a digest of the content, so it is looked up first; the write is refused if the
        object was replaced since then.
        """
        if not self.knows_conditions:
            return Conditions()
        if request.headers.get("if-none-match") == "*":
            return Conditions(generation=0)
        etag = request.headers.get("if-match")
        if etag is None:
            return Conditions()
        there = self._store.get(bucket, key)  # 404 if it is gone, like the real one.
        if self._etag(there) != etag:
            raise _Error(412, "PreconditionFailed", "At least one of the preconditions failed")
        return Conditions(generation=there.generation)

    def _etag(self, there: Object) -> str:
        metadata = there.fields.get("metadata")
        if not self.etags_are_digests:
            return f'"{there.generation:032x}"'
        if isinstance(metadata, dict) and "etag" in metadata:
            return str(metadata["etag"])
        return f'"{base64.b64decode(there.content.md5).hex()}"'

    # Objects.

    def _get(self, request: Request, bucket: str, key: str) -> Response:
        there = self._store.get(bucket, key)
        headers = {
            "ETag": self._etag(there),
            "Last-Modified": email.utils.formatdate(int(there.updated), usegmt=True),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
        }
        if (answer := read_response(request, headers, there.data)) is None:
            raise _Error(416, "InvalidRange", "The requested range is not satisfiable")
        return answer

    def _put(self, request: Request, bucket: str, key: str) -> Response:
        condition = self._condition(request, bucket, key)
        made = self._store.put(bucket, key, Content.of(bytes(request.body)), None, condition)
        return Response(200, {"ETag": self._etag(made)})

    def _copy(self, request: Request, bucket: str, key: str) -> Response:
        source = unquote(request.headers["x-amz-copy-source"]).removeprefix("/")
        from_bucket, _, name = source.partition("/")
        there = self._store.get(from_bucket, name)
        made = self._store.copy(there, bucket, key, None, self._condition(request, bucket, key))
        return _xml("CopyObjectResult", f"<ETag>{escape(self._etag(made))}</ETag>")

    def _delete(self, request: Request, bucket: str, key: str) -> Response:
        with contextlib.suppress(Refused):  # Deleting what is not there succeeds.
            self._store.delete(bucket, key)
        return Response(204)

    def _head_bucket(self, request: Request, bucket: str, _: str) -> Response:
        return Response(200, {"x-amz-bucket-region": REGION})

    def _list(self, request: Request, bucket: str, _: str) -> Response:
        query = request.query
        page = self._store.listing(
            bucket,
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            token=query.get("continuation-token", ""),
            limit=int(query.get("max-keys", MAX_PAGE)),
            age=request.age,
        )
        contents = "".join(
            f"<Contents><Key>{escape(item.name)}</Key><LastModified>{_time(item.updated)}"
            f"</LastModified><ETag>{escape(self._etag(item))}</ETag><Size>{len(item.data)}</Size>"
            f"<StorageClass>STANDARD</StorageClass></Contents>"
            for item in page.items
        )
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>"
            for prefix in page.prefixes
        )
        rest = f"<NextContinuationToken>{page.token}</NextContinuationToken>" if page.token else ""
        count = f"<KeyCount>{len(page.items) + len(page.prefixes)}</KeyCount>"
        truncated = f"<IsTruncated>{'true' if page.token else 'false'}</IsTruncated>"
        return _xml("ListBucketResult", f"{count}{truncated}{contents}{prefixes}{rest}")

    # Uploads in parts.

    def _start(self, request: Request, bucket: str, key: str) -> Response:
        upload = uuid.uuid4().hex
        with self._lock:
            self._uploads[upload] = {}
        return _xml(
            "InitiateMultipartUploadResult",
            f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>",
        )

    def _part(self, request: Request, bucket: str, key: str) -> Response:
        data = bytes(request.body)
        # A part that was cut off is none: its length is announced.
        if request.part is not None and request.part < len(data):
            return _error(400, "IncompleteBody", "The request body terminated unexpectedly")
        with self._lock:
            parts = self._parts(request)
            parts[int(request.query["partNumber"])] = data
        return Response(200, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def _complete(self, request: Request, bucket: str, key: str) -> Response:
        document = ElementTree.fromstring(bytes(request.body))
        numbers = [int(n.text or 0) for n in document.iter() if n.tag.endswith("PartNumber")]
        with self._lock:
            parts = self._parts(request)
            found = [parts[number] for number in numbers]
        if any(len(part) < 5 << 20 for part in found[:-1]):
            raise _Error(400, "EntityTooSmall", "Your proposed upload is smaller than allowed")
        digests = b"".join(hashlib.md5(part).digest() for part in found)
        fields = {"metadata": {"etag": f'"{hashlib.md5(digests).hexdigest()}-{len(found)}"'}}
        condition = self._condition(request, bucket, key)
        made = self._store.put(bucket, key, Content.of(b"".join(found)), fields, condition)
        with self._lock:
            self._uploads.pop(request.query["uploadId"], None)
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(self._etag(made))}</ETag>")

    def _abort(self, request: Request, bucket: str, key: str) -> Response:
        with self._lock:
            self._uploads.pop(request.query["uploadId"], None)
        return Response(204)

    def _parts(self, request: Request) -> dict[int, bytes]:
        try:
            return self._uploads[request.query["uploadId"]]
        except KeyError:
            raise _Error(404, "NoSuchUpload", "The specified upload does not exist.") from None


class _Error(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def _time(seconds: float) -> str:
    """Returns a time as listings show it: with milliseconds, which are always 0."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _xml(kind: str, content: str, status: int = 200) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{kind}>{content}</{kind}>'
    return Response(status, {"Content-Type": "application/xml"}, text.encode())


def _error(status: int, code: str, message: str) -> Response:
    return _xml("Error", f"<Code>{code}</Code><Message>{escape(message)}</Message>", status)
