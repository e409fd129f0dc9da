"""Downloads from a server on loopback that breaks off, changes, redirects and refuses."""

import contextlib
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.download import DownloadError, download

BODY = bytes(range(256)) * 20_000


@dataclasses.dataclass
class Origin:
    """State of the server: its files, and the `Range` header of every request.

    `breaks`: for each of the next connections, the number of bytes after which it is cut.
    `busy`: for each of the next requests, the `Retry-After` of its 429.
    """

    files: dict[str, bytes] = dataclasses.field(default_factory=lambda: {"/a.bin": BODY})
    tag: str = '"one"'
    states_length: bool = True
    ranges: bool = True
    breaks: list[int] = dataclasses.field(default_factory=list)
    refuse: int = 0
    busy: list[str] = dataclasses.field(default_factory=list)
    asked: list[str] = dataclasses.field(default_factory=list)


@pytest.fixture
def origin():
    """Yields (what the server has, its address)."""
    state = Origin()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            state.asked.append(asked)
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/a.bin")
                self.end_headers()
                return
            if self.path == "/elsewhere":
                self.send_response(302)
                self.send_header("Location", "ftp://127.0.0.1/a.bin")
                self.end_headers()
                return
            if state.busy:
                self.send_response(429)
                self.send_header("Retry-After", state.busy.pop(0))
                self.end_headers()
                return
            if state.refuse or self.path not in state.files:
                self.send_error(state.refuse or 404)
                return
            body, begin = state.files[self.path], 0
            same = self.headers.get("If-Range") in (None, state.tag)
            if asked and state.ranges and same:
                begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin and begin >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if begin else 200)
            if state.states_length:
                self.send_header("Content-Length", str(len(body) - begin))
            if state.tag:
                self.send_header("ETag", state.tag)
            self.end_headers()
            end = begin + state.breaks.pop(0) if state.breaks else len(body)
            with contextlib.suppress(OSError):  # Of a client that has enough.
                self.wfile.write(body[begin:end])
            if end < len(body):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def get(tmp_path, origin) -> Callable[..., str]:
    def run(name: str = "/a.bin", **more: str) -> str:
        return download(origin[1] + name, tmp_path / "out/a.bin", pause=0.001, **more)  # type: ignore[arg-type]

    return run


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "out").iterdir())


SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.mark.parametrize("name", ["/a.bin", "/moved"])
def test_whole_file_has_its_name_and_digest(tmp_path, get, name):
    assert get(name, digest=f"sha256:{SHA256}") == SHA256
    assert (tmp_path / "out/a.bin").read_bytes() == BODY
    assert left(tmp_path) == ["a.bin"]


def test_goes_on_where_a_connection_broke(tmp_path, get, origin):
    origin[0].breaks = [100_000, 0, 1_000_000]
    assert get(digest=f"md5:{hashlib.md5(BODY).hexdigest()}") == SHA256
    assert origin[0].asked == ["", "bytes=100000-", "bytes=100000-", "bytes=1100000-"]


def test_later_command_goes_on_unless_the_file_changed(tmp_path, get, origin):
    origin[0].breaks = [100_000] + [0] * 10
    with pytest.raises(DownloadError, match=r"early. 100000 bytes are kept"):
        get()
    assert left(tmp_path) == ["a.bin.partial", "a.bin.partial-version"]
    origin[0].breaks = []
    assert get() == SHA256
    assert origin[0].asked[-1] == "bytes=100000-"

    (tmp_path / "out/a.bin").unlink()
    origin[0].breaks = [100_000] + [0] * 10
    with pytest.raises(DownloadError):
        get()
    origin[0].breaks, origin[0].tag = [], '"two"'
    origin[0].files["/a.bin"] = BODY[::-1]
    assert get() == hashlib.sha256(BODY[::-1]).hexdigest()


def test_server_without_ranges_begins_again(get, origin):
    origin[0].ranges, origin[0].breaks = False, [100_000]
    assert get() == SHA256


def test_shorter_file_than_what_is_kept(tmp_path, get, origin):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.bin.partial").write_bytes(BODY + b"more")
    (tmp_path / "out/a.bin.partial-version").write_text('"\\"one\\""')
    assert get() == SHA256


def test_wrong_digest_is_not_kept(tmp_path, get):
    with pytest.raises(DownloadError, match=rf"sha256 {SHA256}, expected 00"):
        get(digest="sha256:00")
    assert left(tmp_path) == []


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (403, 1), (503, 5)])
def test_refusals_are_told_and_tried_again_where_that_may_help(get, origin, code, tries):
    origin[0].refuse = code
    with pytest.raises(DownloadError, match=rf"cannot be fetched: {code}"):
        get()
    assert len(origin[0].asked) == tries


def test_a_digest_is_enough_to_go_on_by(get, origin):
    origin[0].tag, origin[0].breaks = "", [100_000]
    assert get(digest=f"sha256:{SHA256}") == SHA256
    assert origin[0].asked == ["", "bytes=100000-"]


def test_git_knows_a_file_by_its_size_and_bytes(get, origin):
    origin[0].files["/a.bin"] = b"hello\n"
    git_sha1 = (
        "ce013625030ba8dba906f756967f9e9ca394464a"  # printf 'hello\n' | git hash-object --stdin
    )
    assert get(digest=f"git-sha1:{git_sha1}") == hashlib.sha256(b"hello\n").hexdigest()


@pytest.mark.parametrize("states_length", [True, False])
def test_a_file_larger_than_it_may_be_is_not_kept(tmp_path, get, origin, states_length):
    origin[0].states_length = states_length
    with pytest.raises(DownloadError, match=r"larger than the 1000 bytes"):
        get(max_size=1000)
    assert left(tmp_path) == []


def test_a_busy_server_says_when_to_come_again(get, origin):
    origin[0].busy = ["1", "Fri, 31 Dec 1999 23:59:59 GMT"]
    begin = time.monotonic()
    assert get() == SHA256
    assert time.monotonic() - begin >= 1
    origin[0].busy = ["601"]
    with pytest.raises(DownloadError, match=r"429 .* 601 s"):
        get()


def test_redirects_lead_nowhere_but_to_http(get, origin):
    with pytest.raises(DownloadError, match=r"redirects to ftp:.*, which is neither"):
        get("/elsewhere")
    assert len(origin[0].asked) == 1


def test_no_server(tmp_path):
    with pytest.raises(DownloadError, match=r"cannot be fetched: .*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a", pause=0.001)
