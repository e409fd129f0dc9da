"""Every fault, as a client sees it that repeats nothing."""

import errno
import http.client
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.gcs.client import Client, at
from tests.gcs.faults import Rule
from tests.gcs.objects import Content
from tests.gcs.server import GCS
from tests.gcs.uploads import STEP


def test_answer_comes_before_anything_is_done(gcs: GCS, client: Client):
    gcs.fail(Rule(action="answer", verb="upload", status=429, retry_after_s=7))
    answer = client.put("x", b"data")
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert answer.json["error"]["errors"][0]["reason"] == "rateLimitExceeded"
    assert client.get("x").status == 404
    assert client.put("x", b"data").status == 200


def test_stall_delays_the_answer(gcs: GCS, client: Client):
    client.put("x", b"data")
    gcs.fail(Rule(action="stall", verb="media", seconds=0.3))
    begin = time.monotonic()
    assert client.get("x").body == b"data"
    assert time.monotonic() - begin >= 0.3
    gcs.fail(Rule(action="stall", verb="media", seconds=2.0))
    with pytest.raises(TimeoutError):
        Client(gcs.url, timeout=0.2).get("x")


def test_late_reply_is_to_what_is_done(gcs: GCS, client: Client):
    gcs.fail(Rule(action="late", verb="upload", seconds=2.0))
    with pytest.raises(TimeoutError):
        Client(gcs.url, timeout=0.2).put("x", b"data")
    assert client.get("x").body == b"data"


def test_stalled_reply_stops_in_its_middle(gcs: GCS, client: Client):
    client.put("x", b"0123456789")
    gcs.fail(Rule(action="stall_reply", verb="media", at=4, seconds=0.4))
    connection = http.client.HTTPConnection(urlsplit(gcs.url).netloc)
    connection.request("GET", at("x") + "?alt=media")
    reply = connection.getresponse()
    begin = time.monotonic()
    assert reply.read(4) == b"0123"
    assert time.monotonic() - begin < 0.3
    assert reply.read() == b"456789"
    assert time.monotonic() - begin >= 0.3
    connection.close()


@pytest.mark.parametrize(
    "rule",
    [
        Rule(action="reset", verb="upload"),
        Rule(action="reset_request", verb="upload", at=100),
        Rule(action="reset_request", verb="upload"),
    ],
)
def test_reset_leaves_nothing_done(gcs: GCS, client: Client, rule: Rule):
    gcs.fail(rule)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        client.put("x", bytes(1 << 20))
    assert client.get("x").status == 404
    counts = gcs.requests()["upload"]
    assert counts["status_reset"] == 1
    assert counts["bytes_in"] < 1 << 20
    assert client.put("x", bytes(1 << 20)).status == 200


def test_reply_breaks_off(gcs: GCS, client: Client):
    client.put("x", b"0123456789")
    gcs.fail(Rule(action="reset_reply", verb="media", at=4))
    connection = http.client.HTTPConnection(urlsplit(gcs.url).netloc)
    connection.request("GET", at("x") + "?alt=media")
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("Content-Length")) == (200, "10")
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        reply.read()
    connection.close()
    assert gcs.requests()["media"]["bytes_out"] == 4


def test_torn_chunk_is_kept_in_part(gcs: GCS, client: Client):
    data = bytes(range(256)) * 4 * 1024  # Four steps.
    size = len(data)
    location = client.start("x").headers["location"]
    gcs.fail(Rule(action="tear", at=2 * STEP + 1000))
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        client.chunk(location, data, f"bytes 0-{size - 1}/{size}")
    asked = client.chunk(location, b"", f"bytes */{size}")
    assert (asked.status, asked.headers["range"]) == (308, f"bytes=0-{2 * STEP - 1}")
    rest = client.chunk(location, data[2 * STEP :], f"bytes {2 * STEP}-{size - 1}/{size}")
    assert rest.status == 200
    assert client.get("x").body == data


@pytest.mark.parametrize("farewell", ["FIN", "RST"])
def test_client_that_goes_away_leaves_part_of_its_chunk(gcs: GCS, client: Client, farewell: str):
    split = urlsplit(client.start("x").headers["location"])
    connection = http.client.HTTPConnection(split.netloc)
    connection.putrequest("PUT", f"{split.path}?{split.query}")
    connection.putheader("Content-Length", str(4 * STEP))
    connection.putheader("Content-Range", f"bytes 0-{4 * STEP - 1}/{4 * STEP}")
    connection.endheaders(bytes(STEP + 100))
    if farewell == "RST":
        time.sleep(0.1)  # What has not been read is lost with a reset.
        linger = struct.pack("ii", 1, 0)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()
    deadline = time.monotonic() + 5.0
    held = None
    while held is None and time.monotonic() < deadline:
        held = client.chunk(split.geturl(), b"", "bytes */*").headers.get("range")
    assert held == f"bytes=0-{STEP - 1}"
    assert client.get("x").status == 404


def test_short_chunk_is_told(gcs: GCS, client: Client):
    data = bytes(2 * STEP)
    location = client.start("x").headers["location"]
    gcs.fail(Rule(action="short", at=STEP))
    answer = client.chunk(location, data, f"bytes 0-{2 * STEP - 1}/{2 * STEP}")
    assert (answer.status, answer.headers["range"]) == (308, f"bytes=0-{STEP - 1}")
    rest = client.chunk(location, data[STEP:], f"bytes {STEP}-{2 * STEP - 1}/{2 * STEP}")
    assert rest.json["size"] == str(2 * STEP)


def test_corrupt_download_keeps_its_hashes(gcs: GCS, client: Client):
    client.put("x", b"0123456789")
    gcs.fail(Rule(action="corrupt", at=3))
    bad, good = client.get("x"), client.get("x")
    assert good.body == b"0123456789"
    assert [index for index in range(10) if bad.body[index] != good.body[index]] == [3]
    assert bad.headers["x-goog-hash"] == good.headers["x-goog-hash"]
    gcs.fail(Rule(action="corrupt", at=99))
    assert client.get("x").body[:9] == b"012345678"  # The last byte, where `at` is behind it.


def test_lost_reply_leaves_the_write_done(gcs: GCS, client: Client):
    gcs.fail(Rule(action="lose", verb="upload"))
    with pytest.raises(ConnectionResetError) as reset:
        client.put("x", b"data", ifGenerationMatch=0)
    assert reset.value.errno == errno.ECONNRESET  # Not only closed, which has no number.
    assert client.get("x").body == b"data"
    assert client.put("x", b"data", ifGenerationMatch=0).status == 412
    gcs.fail(Rule(action="lose_answer", verb="delete", status=503))
    assert client.ask("DELETE", at("x")).status == 503
    assert client.get("x").status == 404


def test_lost_reply_to_the_last_chunk(gcs: GCS, client: Client):
    location = client.start("x", ifGenerationMatch=0).headers["location"]
    gcs.fail(Rule(action="lose", verb="chunk"))
    with pytest.raises(ConnectionResetError):
        client.chunk(location, b"data", "bytes 0-3/4")
    assert client.chunk(location, b"", "bytes */4").json["size"] == "4"


def test_rule_falls_on_what_it_names(gcs: GCS, client: Client):
    client.put("a/1", b"")
    gcs.fail(Rule(action="answer", verb="metadata", name="a/*", skip=1, times=2))
    asked = [client.ask("GET", at("a/1")).status for _ in range(5)]
    assert asked == [200, 503, 503, 200, 200]
    gcs.fail(Rule(action="answer", name="b/*", times=None), Rule(action="answer", method="PATCH"))
    assert client.put("a/2", b"").status == 200
    assert client.put("b/2", b"").status == 503
    assert client.start("b/3").status == 503
    assert client.get("b/2").status == 503
    assert client.get("a/2").status == 200
    assert client.ask("PATCH", at("a/2"), {}).status == 503
    assert client.ask("GET", "/storage/v1/b/testing/o").status == 200
    assert gcs.faults.fired() == [2, 3, 1]


def test_rule_sees_the_name_inside_of_a_multipart_body(gcs: GCS, client: Client):
    body = b'--cut\n\n{"name": "b/x"}\n--cut\n\n' + bytes(1 << 20) + b"\n--cut--"
    headers = {"Content-Type": "multipart/related; boundary=cut"}
    gcs.fail(Rule(action="answer", verb="upload", name="b/*"))
    target = "/upload/storage/v1/b/testing/o?uploadType=multipart"
    assert client.ask("POST", target, body, headers).status == 503
    assert client.ask("POST", target, body, headers).status == 200


def test_dice_fall_the_same_for_a_seed(gcs: GCS, client: Client):
    def falls(seed: int) -> list[int]:
        gcs.clear()
        gcs.fail(Rule(action="answer", times=None, probability=0.5, seed=seed))
        return [client.ask("GET", "/storage/v1/b/testing").status for _ in range(20)]

    assert falls(1) == falls(1)
    assert falls(1) != falls(2)
    assert 4 < falls(1).count(503) < 16


def test_parts_of_a_batch_fail_alone(gcs: GCS, client: Client):
    client.put("a", b"")
    client.put("b", b"")
    parts = [
        f"--cut\n\nDELETE /storage/v1/b/testing/o/{name} HTTP/1.1\n\n" for name in ("a", "b", "c")
    ]
    gcs.fail(
        Rule(action="answer", verb="delete", name="a"),
        Rule(action="lose_answer", verb="delete", name="b"),
        Rule(action="reset", verb="delete", name="c"),  # Has no connection of its own.
    )
    headers = {"Content-Type": "multipart/mixed; boundary=cut"}
    answer = client.ask("POST", "/batch", "".join([*parts, "--cut--"]).encode(), headers)
    statuses = [line.split()[1] for line in answer.body.split(b"\r\n") if b"HTTP/1.1" in line]
    assert statuses == [b"503", b"503", b"404"]
    assert [client.get(name).status for name in ("a", "b")] == [200, 404]


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "explode"},
        {"action": "corrupt", "verb": "list"},
        {"action": "tear", "verb": "upload"},
        {"action": "answer", "probability": 0.0},
    ],
)
def test_impossible_rules_are_refused(client: Client, wrong: dict):
    with pytest.raises(ValueError, match="must be"):
        Rule(**wrong)
    assert client.ask("POST", "/_control/faults", wrong).status == 400


def test_latency_is_on_every_request(gcs: GCS, client: Client):
    gcs.latency_s = 0.1
    begin = time.monotonic()
    client.put("x", b"")
    client.get("x")
    assert time.monotonic() - begin >= 0.2


def test_requests_and_bytes_are_counted(gcs: GCS, client: Client):
    client.put("x", b"12345")
    client.put("y", b"123")
    client.get("x", headers={"Range": "bytes=0-2"})
    client.get("none")
    counts = gcs.requests()
    assert counts["upload"]["requests"] == 2
    assert counts["upload"]["bytes_in"] == 8
    assert counts["media"]["status_206"] == counts["media"]["status_404"] == 1
    assert counts["media"]["bytes_out"] > 3
    assert set(counts) == {"upload", "media"}


def break_and_ask(server: GCS) -> int:
    with server:
        server.api._store = None
        return Client(server.url).ask("GET", "/storage/v1/b").status


def test_failure_of_its_own_is_not_hidden():
    with pytest.raises(RuntimeError, match="AttributeError"):
        break_and_ask(GCS())


@pytest.fixture
def process() -> Iterator[str]:
    """The address of a server that is a process of its own."""
    command = [sys.executable, "-m", "tests.gcs.server", "--latency-ms", "50"]
    with subprocess.Popen(
        [*command, "--bucket", "testing", "--location", "eu"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def test_own_process_is_told_over_http(process: str):
    client = Client(process)
    assert client.ask("GET", "/storage/v1/b/testing").json["location"] == "EU"
    begin = time.monotonic()
    client.put("x", b"data")
    assert time.monotonic() - begin >= 0.05
    rules = [{"action": "lose_answer", "verb": "upload"}, {"action": "corrupt"}]
    client.ask("POST", "/_control/faults", rules)
    assert client.put("y", b"data").status == 503
    assert client.ask("GET", "/_control/faults").json == [1, 0]
    client.ask("POST", "/_control/settings", {"latency_s": 0.0, "skew_s": 86400.0})
    assert client.get("y").body != b"data"
    tomorrow = time.strftime("%d %b %Y", time.gmtime(time.time() + 86400))
    assert tomorrow in client.get("y").headers["date"]
    counts = client.ask("GET", "/_control/requests").json
    assert (counts["upload"]["requests"], counts["media"]["requests"]) == (2, 2)
    client.ask("POST", "/_control/clear")
    assert client.ask("GET", "/_control/requests").json == {}


@pytest.mark.parametrize("kind", ["media", "multipart"])
def test_corrupt_upload_is_stored_unless_its_hash_was_announced(
    gcs: GCS, client: Client, kind: str
):
    def sent(**fields: str) -> int:
        gcs.fail(Rule(action="corrupt_upload", at=3))
        if kind == "media":
            headers = {"x-goog-hash": f"crc32c={fields['crc32c']}"} if fields else {}
            return client.ask("POST", AT, b"01234567", headers, uploadType="media", name="x").status
        body = related({"name": "x", **fields}, b"01234567")
        headers = {"Content-Type": "multipart/related; boundary=line"}
        return client.ask("POST", AT, body, headers, uploadType="multipart").status

    assert sent(crc32c=Content.of(b"01234567").crc32c) == 400
    assert client.get("x").status == 404
    assert sent() == 200
    assert client.get("x").body != b"01234567"


def test_stale_listing_shows_what_was_there(gcs: GCS, client: Client):
    client.put("old", b"1")
    client.put("gone", b"2")
    time.sleep(0.3)
    client.put("new", b"3")
    client.put("old", b"1234")
    client.ask("DELETE", at("gone"))
    gcs.fail(Rule(action="stale", seconds=0.2))
    shown = client.ask("GET", "/storage/v1/b/testing/o").json["items"]
    assert [(item["name"], item["size"]) for item in shown] == [("gone", "1"), ("old", "1")]
    now = client.ask("GET", "/storage/v1/b/testing/o").json["items"]
    assert [(item["name"], item["size"]) for item in now] == [("new", "1"), ("old", "4")]


def test_bytes_are_counted_by_object(gcs: GCS, client: Client):
    client.put("x", b"12345")
    client.put("y", b"1")
    client.get("x")
    client.get("x")
    moved = gcs.tally.moved()
    assert (moved["x", "in"], moved["y", "in"]) == (5, 1)
    assert moved["x", "out"] - moved["y", "out"] == 10  # But for the replies to the uploads.
    gcs.clear()
    assert gcs.tally.moved() == {}


AT = "/upload/storage/v1/b/testing/o"


def related(fields: dict[str, str], data: bytes) -> bytes:
    """A body of two parts: metadata, and the bytes."""
    head = f"--line\r\nContent-Type: application/json\r\n\r\n{json.dumps(fields)}\r\n--line\r\n"
    return head.encode() + b"Content-Type: text/plain\r\n\r\n" + data + b"\r\n--line--"
