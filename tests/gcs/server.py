"""A Cloud Storage on the loopback for tests: real clients speak with it unmodified.

In a test:

    with GCS() as gcs:
        gcs.bucket("name")
        ...  # Clients with `gcs.environment` in their environment.

It keeps what the real one promises (generations, preconditions, hashes, what is visible when) and
breaks what it is told to: see faults.py and `GCS.fail`.
"""

import contextlib
import email.utils
import http.server
import itertools
import os
import socket
import socketserver
import struct
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Self

from tests.gcs.api import Api, Request, Response, error, injected, phrase
from tests.gcs.faults import HARMLESS, Faults, Rule
from tests.gcs.objects import Bucket, Content, Store
from tests.gcs.tally import Tally

_HEAD = 64 * 1024
"""Of a body, what is read before a fault is chosen: the object's name may be in it [bytes]."""


class GCS:
    """The server, from entering it as a context to leaving it.

    Args:
      host: address to listen on.

    Attributes:
      scheme: of addresses in its buckets.
      skew_s: how far the server's clock is ahead of this machine's [s].
      store: the buckets, to look at without a request.
      faults: the rules in force.
      tally: counts of requests and bytes.
      damages: numbers of the answers that rules damaged.
      broken: tracebacks of the server's own mistakes; leaving the context raises the first.
    """

    scheme = "gs"

    def __init__(self, *, host: str = "127.0.0.1") -> None:
        self.skew_s = 0.0
        self.store = Store(self.now)
        self.faults = Faults()
        self.tally = Tally()
        self.api = Api(self.store, self.tally)
        self.broken: list[str] = []
        self.damages = itertools.count()
        self._server = _Server((host, 0), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self.broken and kind is None:
            raise RuntimeError(f"The server itself failed:\n{self.broken[0]}")

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}"

    @property
    def uri(self) -> str:
        """Address of the bucket `testing`."""
        return f"{self.scheme}://testing"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for clients; of a server apart, see the function."""
        return environment(self.url)

    def now(self) -> float:
        """Returns the server's time [s since 1970]."""
        return time.time() + self.skew_s

    def bucket(self, name: str, location: str = "US-CENTRAL1") -> Bucket:
        """Makes a bucket."""
        return self.store.make_bucket(name, location)

    def upload(self, folder: Path, prefix: str) -> None:
        """Puts the files below a folder into the bucket `testing`, under prefix/."""
        for path in filter(Path.is_file, folder.rglob("*")):
            name = f"{prefix}/{path.relative_to(folder).as_posix()}"
            self.store.put("testing", name, Content.of(path.read_bytes()))

    def fail(self, *rules: Rule) -> None:
        """Puts rules in force."""
        for rule in rules:
            self.faults.add(rule)

    def requests(self) -> dict[str, dict[str, int]]:
        """Returns counts by verb: requests, bytes_in, bytes_out, status_200 and so on."""
        return self.tally.read()

    def clear(self) -> None:
        """Forgets rules and counts, not objects."""
        self.faults.clear()
        self.tally.clear()

    def remember(self) -> None:
        """Keeps the exception at hand, a mistake of the server's own, for the end of the test."""
        self.broken.append(traceback.format_exc())
        traceback.print_exc()


def environment(url: str) -> dict[str, str]:
    """Returns the environment variables with which clients find a server, and no other."""
    return {
        "STORAGE_EMULATOR_HOST": url,  # gcsfs, google-cloud-storage.
        "TENSORSTORE_GCS_HTTP_URL": url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "test",  # TensorStore; else it looks for one.
        "NO_GCE_CHECK": "true",  # Nobody asks for the metadata server of a cloud machine.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # Else it asks by gRPC, for minutes.
        "EPATH_USE_TF": "false",  # TensorFlow knows no other address than Google's.
    }


class _Reset(Exception):
    """The connection is to be reset."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Server"

    def _serve(self) -> None:
        gcs = self.server.gcs
        headers = {name.lower(): value for name, value in self.headers.items()}
        base = f"http://{headers.get('host') or gcs.url.removeprefix('http://')}"
        self._request = Request(self.command, self.path, headers, base)
        self._verb, self._name, self._in, self._counted = "other", "", 0, False
        try:
            # Room for the body, into which `_read` reads it.
            self._body = bytearray(int(headers.get("content-length", 0)))
            self._answer()
        except _Reset:
            self._count(None)
            self._reset()
        except ConnectionError:
            self._count(None)
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self) -> None:
        """Answers a request to the API, as well or as badly as the rules say."""
        gcs, request = self.server.gcs, self._request
        self._read(_HEAD)
        request.body = self._body[: self._in]
        self._verb, self._name = gcs.api.describe(request)
        rule = gcs.faults.take(self._verb, self._name)
        action, size = rule.action, len(self._body)
        if action == "reset":
            raise _Reset
        if action == "stall":
            time.sleep(rule.seconds)
        cut = rule.place(size) if action in ("reset_request", "tear") else size
        self._read(cut)
        request.body = self._body
        if self._in < cut:
            self._keep(self._in)
            raise ConnectionAbortedError
        if action == "tear":
            self._keep(cut)
        if action in ("reset_request", "tear"):
            raise _Reset
        if action == "short":
            request.part = rule.place(size)
        if action == "corrupt_upload":
            request.flip = rule.place(size)
        if action == "stale":
            request.age = rule.seconds
        response = None if action == "answer" else self._call(request)
        if action == "lose":
            raise _Reset
        if action == "late":
            time.sleep(rule.seconds)
        if response is None or action == "lose_answer":
            response = injected(rule.status)
        self._reply(response, rule)

    def _call(self, request: Request) -> Response:
        try:
            return self.server.gcs.api.call(request)
        except Exception:
            self.server.gcs.remember()
            return error(500, "internalError", "The server itself failed.")

    def _keep(self, size: int) -> None:
        """Takes as much of a resumable chunk as has come, which the real one does too."""
        if self._verb == "chunk":
            self._request.part = size
            self._call(self._request)

    # Bodies.

    def _read(self, size: int) -> None:
        """Reads until that much of the body is there, or all of it, or the client has gone."""
        room = memoryview(self._body)[:size]
        with contextlib.suppress(ConnectionError):
            while self._in < len(room):
                count = self.rfile.readinto1(room[self._in :])
                if not count:
                    break
                self._in += count

    def _reply(self, response: Response, rule: Rule = HARMLESS) -> None:
        action, body = rule.action, response.body
        if action == "corrupt" and len(body):
            body = bytearray(body)
            # No two are damaged alike, unless the rule says where.
            moved = next(self.server.gcs.damages) if rule.at is None else 0
            body[min(rule.place(len(body)) + moved, len(body) - 1)] ^= 1
        shown = memoryview(b"" if self.command == "HEAD" else body)
        breaks = rule.place(len(shown)) if action in ("stall_reply", "reset_reply") else len(shown)
        # Before the client has the answer: it may ask for the counts next.
        self._count(response.status, breaks if action == "reset_reply" else len(shown))
        self.send_response_only(response.status, phrase(response.status))
        self.send_header("Date", email.utils.formatdate(self.server.gcs.now(), usegmt=True))
        self.send_header("Server", "UploadServer")
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(shown[:breaks])
        if action == "reset_reply":
            raise _Reset
        if action == "stall_reply":
            time.sleep(rule.seconds)
        self.wfile.write(shown[breaks:])

    def _count(self, status: int | None, out: int = 0) -> None:
        """Counts the request, once."""
        if not self._counted:
            self._counted = True
            self.server.gcs.tally.add(self._verb, status, self._in, out, self._name)

    def _reset(self) -> None:
        """Closes the connection with RST rather than FIN: nothing is left to wait for."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # By its number, as the reader and writer hold the socket too.
        os.close(self.connection.detach())

    def log_message(self, *args: object) -> None:
        """Says nothing: there are thousands of requests."""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], gcs: GCS) -> None:
        self.gcs = gcs
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Binds without asking for the name of the host, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: socket.socket, client_address: object) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Remembers what went wrong, unless it is a client that went away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            self.gcs.remember()

    def server_close(self) -> None:
        """Closes kept connections too: a client must not find yesterday's server in them."""
        super().server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
