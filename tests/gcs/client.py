"""A client that hides nothing: one request, and what came back."""

import dataclasses
import http.client
import json
from collections.abc import Mapping
from urllib.parse import quote, urlencode, urlsplit


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer of the server; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)


class Client:
    """Requests without retries.

    Args:
      url: of the server.
      timeout: for every wait on the socket [s].
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self._address, self._timeout = urlsplit(url).netloc, timeout

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | Mapping | list | None = None,
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Answer:
        """Sends a request on a connection of its own; a body that is no bytes goes as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if query:
            target += ("&" if "?" in target else "?") + urlencode(query)
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout)
        try:
            connection.request(method, target, body, dict(headers or {}))
            reply = connection.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, names, reply.read())
        finally:
            connection.close()

    def put(self, name: str, data: bytes, bucket: str = "testing", **query: object) -> Answer:
        return self.ask(
            "POST",
            f"/upload/storage/v1/b/{bucket}/o",
            data,
            uploadType="media",
            name=name,
            **query,
        )

    def get(
        self,
        name: str,
        bucket: str = "testing",
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Answer:
        return self.ask("GET", at(name, bucket), None, headers, alt="media", **query)

    def start(self, name: str, fields: Mapping | None = None, **query: object) -> Answer:
        """Begins a resumable upload."""
        return self.ask(
            "POST",
            "/upload/storage/v1/b/testing/o",
            {"name": name, **(fields or {})},
            uploadType="resumable",
            **query,
        )

    def chunk(self, location: str, data: bytes, content_range: str, **headers: str) -> Answer:
        split = urlsplit(location)
        sent = {"Content-Range": content_range} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.ask("PUT", f"{split.path}?{split.query}", data, sent)


def at(name: str, bucket: str = "testing") -> str:
    """Returns the path of an object."""
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
