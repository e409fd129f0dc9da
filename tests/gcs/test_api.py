"""The API as it is spoken on the wire."""

import base64
import hashlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import google_crc32c
import pytest

from tests.gcs.client import Answer, Client, at
from tests.gcs.objects import MAX_PAGE, Content
from tests.gcs.server import GCS
from tests.gcs.uploads import STEP

UPLOAD = "/upload/storage/v1/b/testing/o"


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def test_object_is_described_in_full(gcs: GCS, client: Client):
    name = "a/b c+d#e?f%25é.txt"
    made = client.put(name, b"hello").json
    assert made == client.ask("GET", at(name)).json
    assert made["name"] == name
    assert made["id"] == f"testing/{name}/{made['generation']}"
    assert (made["bucket"], made["size"], made["metageneration"]) == ("testing", "5", "1")
    assert (made["crc32c"], made["md5Hash"]) == (crc32c(b"hello"), md5(b"hello"))
    assert made["timeCreated"] == made["updated"]
    link = urlsplit(made["mediaLink"])
    assert gcs.url.endswith(link.netloc)
    assert client.ask("GET", f"{link.path}?{link.query}").body == b"hello"


def test_media_tells_hashes_and_generation_also_of_a_part(client: Client):
    made = client.put("x", b"0123456789").json
    part = client.get("x", headers={"Range": "bytes=3-5"})
    assert (part.status, part.body) == (206, b"345")
    assert part.headers["content-range"] == "bytes 3-5/10"
    assert part.headers["x-goog-generation"] == made["generation"]
    assert part.headers["x-goog-hash"] == f"crc32c={made['crc32c']},md5={made['md5Hash']}"
    assert part.headers["etag"] == made["etag"]


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=7-", 206, b"789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=8-100", 206, b"89"),
        ("bytes=-100", 206, b"0123456789"),
        ("bytes=10-12", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=5-3", 200, b"0123456789"),
    ],
)
def test_ranges(client: Client, asked: str, status: int, body: bytes | None):
    client.put("x", b"0123456789")
    answer = client.get("x", headers={"Range": asked})
    assert answer.status == status
    if body is None:
        assert answer.headers["content-range"] == "bytes */10"
    else:
        assert answer.body == body


def test_head_has_the_length_and_no_body(gcs: GCS, client: Client):
    client.put("x", b"hello")
    answer = client.ask("HEAD", at("x"), alt="media")
    assert (answer.status, answer.headers["content-length"], answer.body) == (200, "5", b"")
    assert gcs.requests()["media"]["bytes_out"] == 0


def test_what_is_missing_is_told_as_json(client: Client):
    answer = client.get("none")
    assert answer.status == 404
    assert answer.json["error"]["code"] == 404
    assert answer.json["error"]["message"] == "No such object: testing/none"
    assert answer.json["error"]["errors"][0]["reason"] == "notFound"
    assert client.put("x", b"", bucket="nowhere").status == 404
    assert client.ask("GET", "/storage/v1/b/nowhere").status == 404
    assert client.ask("GET", "/storage/v1/strange").status == 404


def multipart(metadata: dict, data: bytes, line: bytes) -> bytes:
    return line.join(
        [
            b"--==0==",
            b"Content-Type: application/json; charset=UTF-8",
            b"",
            json.dumps(metadata).encode(),
            b"--==0==",
            b"Content-Type: text/plain",
            b"",
            data,
            b"--==0==--",
        ]
    )


@pytest.mark.parametrize("line", [b"\r\n", b"\n"])
@pytest.mark.parametrize("data", [b"", b"one\r\n\r\ntwo\r", b"\n\r\n", b"\r"])
def test_multipart_keeps_every_byte(gcs: GCS, client: Client, line: bytes, data: bytes):
    body = multipart({"name": "x", "metadata": {"key": "value"}}, data, line)
    headers = {"Content-Type": 'multipart/related; boundary="==0=="'}
    made = client.ask("POST", UPLOAD, body, headers, uploadType="multipart")
    assert made.status == 200
    assert (made.json["contentType"], made.json["metadata"]) == ("text/plain", {"key": "value"})
    assert gcs.store.get("testing", "x").data == data


@pytest.mark.parametrize("cut", [10, 70, 150])
def test_cut_multipart_is_refused(client: Client, cut: int):
    body = multipart({"name": "x"}, b"data" * 10, b"\n")[:cut]
    headers = {"Content-Type": 'multipart/related; boundary="==0=="'}
    assert client.ask("POST", UPLOAD, body, headers, uploadType="multipart").status == 400
    assert client.get("x").status == 404


@pytest.mark.parametrize("field", ["crc32c", "md5Hash"])
def test_wrong_hash_stores_nothing(client: Client, field: str):
    right = crc32c(b"data") if field == "crc32c" else md5(b"data")
    wrong = crc32c(b"date") if field == "crc32c" else md5(b"date")
    headers = {"Content-Type": 'multipart/related; boundary="==0=="'}
    kind = field.removesuffix("Hash")
    for value, status in ((wrong, 400), (right, 200)):
        body = multipart({"name": "a", field: value}, b"data", b"\r\n")
        assert client.ask("POST", UPLOAD, body, headers, uploadType="multipart").status == status
        told = {"x-goog-hash": f"{kind}={value}"}
        assert (
            client.ask("POST", UPLOAD, b"data", told, uploadType="media", name="b").status == status
        )
        location = client.start("c", {field: value}).headers["location"]
        assert client.chunk(location, b"data", "bytes 0-3/4").status == status
        location = client.start("d").headers["location"]
        hashes = {"x-goog-hash": f"{kind}={value}"}
        assert client.chunk(location, b"data", "bytes 0-3/4", **hashes).status == status
        names = [
            item["name"]
            for item in client.ask("GET", "/storage/v1/b/testing/o").json.get("items", [])
        ]
        assert names == ([] if status == 400 else ["a", "b", "c", "d"])


def test_resumable_upload_tells_what_it_holds(gcs: GCS, client: Client):
    data = bytes(range(256)) * 3 * 1024  # Three steps.
    fields = {"contentType": "text/plain"}
    location = client.start("x", fields, ifGenerationMatch=0).headers["location"]
    assert "&ifGenerationMatch=0" in location  # Which gcsfs removes again.
    empty = client.chunk(location, b"", "bytes */*")
    assert (empty.status, empty.headers.get("range")) == (308, None)
    first = client.chunk(location, data[: STEP + 5], f"bytes 0-{STEP + 4}/*")
    assert (first.status, first.headers["range"]) == (308, f"bytes=0-{STEP - 1}")
    again = client.chunk(location, data[: 2 * STEP], f"bytes 0-{2 * STEP - 1}/*")
    assert (again.status, again.headers["range"]) == (308, f"bytes=0-{2 * STEP - 1}")
    asked = client.chunk(location, b"", f"bytes */{len(data)}")
    assert (asked.status, asked.headers["range"]) == (308, f"bytes=0-{2 * STEP - 1}")
    assert client.get("x").status == 404
    last = client.chunk(location, data[2 * STEP :], f"bytes {2 * STEP}-{len(data) - 1}/{len(data)}")
    assert (last.status, last.json["size"]) == (200, str(len(data)))
    assert gcs.store.get("testing", "x").data == data
    # A client whose reply was lost asks again, and is told of the object it made.
    assert client.chunk(location, b"", "bytes */*").json == last.json


def test_resumable_upload_ends_with_its_last_byte(client: Client):
    location = client.start("x").headers["location"]
    client.chunk(location, bytes(STEP), f"bytes 0-{STEP - 1}/*")
    assert client.chunk(location, b"", f"bytes */{STEP}").json["size"] == str(STEP)
    split = urlsplit(client.start("whole").headers["location"])
    assert client.ask("PUT", f"{split.path}?{split.query}", b"whole").json["size"] == "5"
    location = client.start("empty").headers["location"]
    assert client.chunk(location, b"", "bytes */0").json["size"] == "0"


@pytest.mark.parametrize(
    ("size", "content_range"),
    [
        (100, "bytes 0-99/*"),  # Less than a step, and not the last.
        (100, "bytes 0-99/1000"),
        (STEP, f"bytes {STEP}-{2 * STEP - 1}/*"),  # Leaves a gap.
        (STEP, f"bytes 0-{STEP}/*"),  # Not what the range says.
        (STEP, f"bytes 0-{STEP - 1}/{STEP - 1}"),  # More than there is to be.
        (STEP, "bytes=0-1"),
    ],
)
def test_bad_chunks_are_refused(client: Client, size: int, content_range: str):
    location = client.start("x").headers["location"]
    assert client.chunk(location, bytes(size), content_range).status == 400
    assert client.chunk(location, b"", "bytes */*").headers.get("range") is None


def test_upload_is_as_long_as_announced(client: Client):
    announced = {"X-Upload-Content-Length": "5"}
    target = UPLOAD + "?uploadType=resumable&name=x"
    location = client.ask("POST", target, b"", announced).headers["location"]
    assert client.chunk(location, b"four", "bytes 0-3/4").status == 400
    assert client.chunk(location, b"fives", "bytes 0-4/5").json["size"] == "5"


def test_cancelled_upload_stays_so(client: Client):
    location = client.start("x").headers["location"]
    split = urlsplit(location)
    assert client.ask("DELETE", f"{split.path}?{split.query}").status == 499
    assert client.chunk(location, b"data", "bytes 0-3/4").status == 499
    assert client.get("x").status == 404
    assert client.chunk(location[:-3] + "xyz", b"", "bytes */*").status == 404


def test_precondition_of_a_resumable_upload_holds_at_its_end(client: Client):
    late = client.start("x", ifGenerationMatch=0).headers["location"]
    client.put("x", b"first")
    assert client.start("x", ifGenerationMatch=0).status == 412
    assert client.chunk(late, b"late", "bytes 0-3/4").status == 412
    assert client.chunk(late, b"", "bytes */*").status == 412
    assert client.get("x").body == b"first"


Write = Callable[[Client, dict], Answer]
WRITES: dict[str, Write] = {
    "upload": lambda client, query: client.put("x", b"new", **query),
    "start": lambda client, query: client.start("x", **query),
    "compose": lambda client, query: client.ask(
        "POST", at("x") + "/compose", {"sourceObjects": [{"name": "other"}]}, **query
    ),
    "rewrite": lambda client, query: client.ask(
        "POST", at("other") + "/rewriteTo/b/testing/o/x", **query
    ),
    "copy": lambda client, query: client.ask(
        "POST", at("other") + "/copyTo/b/testing/o/x", **query
    ),
    "move": lambda client, query: client.ask("POST", at("other") + "/moveTo/o/x", **query),
}
CHANGES: dict[str, Write] = {
    "patch": lambda client, query: client.ask("PATCH", at("x"), {"metadata": {"a": "b"}}, **query),
    "delete": lambda client, query: client.ask("DELETE", at("x"), **query),
}


@pytest.mark.parametrize("act", WRITES)
def test_creation_asks_for_absence(client: Client, act: str):
    client.put("other", b"other")
    assert WRITES[act](client, {"ifGenerationMatch": 5}).status == 412
    assert WRITES[act](client, {"ifGenerationNotMatch": 0}).status == 412
    assert WRITES[act](client, {"ifGenerationMatch": 0}).status == 200
    client.put("x", b"there")
    client.put("other", b"other")
    assert WRITES[act](client, {"ifGenerationMatch": 0}).status == 412
    assert client.get("x").body == b"there"


@pytest.mark.parametrize("act", [*WRITES, *CHANGES])
def test_change_asks_for_what_is_there(client: Client, act: str):
    client.put("other", b"other")
    there = int(client.put("x", b"there").json["generation"])
    write = (WRITES | CHANGES)[act]
    assert write(client, {"ifGenerationMatch": there - 1}).status == 412
    assert write(client, {"ifGenerationNotMatch": there}).status == 412
    assert write(client, {"ifMetagenerationMatch": 2}).status == 412
    assert write(client, {"ifMetagenerationNotMatch": 1}).status == 412
    assert client.get("x", ifMetagenerationMatch=1).body == b"there"
    query = {"ifGenerationMatch": there, "ifMetagenerationMatch": 1}
    assert write(client, query).status in (200, 204)


def test_reads_take_conditions(client: Client):
    there = int(client.put("x", b"there").json["generation"])
    for query in ({}, {"alt": "media"}):
        assert client.ask("GET", at("x"), ifGenerationMatch=there, **query).status == 200
        assert client.ask("GET", at("x"), ifGenerationMatch=there + 1, **query).status == 412
        unchanged = client.ask("GET", at("x"), ifGenerationNotMatch=there, **query)
        assert (unchanged.status, unchanged.body) == (304, b"")
        assert client.ask("GET", at("x"), ifMetagenerationNotMatch=1, **query).status == 304
        assert client.ask("GET", at("none"), ifGenerationMatch=there, **query).status == 412
        assert client.ask("GET", at("none"), ifGenerationNotMatch=there, **query).status == 404
    assert client.get("x", generation=there).body == b"there"
    assert client.get("x", generation=there + 1).status == 404
    assert client.get("x", ifGenerationMatch="one").status == 400


@pytest.mark.parametrize("resumable", [False, True])
def test_of_twelve_racers_one_wins(gcs: GCS, client: Client, resumable: bool):
    racers, won = 12, []
    line = threading.Barrier(racers)

    def race(own: int) -> None:
        data = b"%d" % own
        if resumable:
            location = client.start("x", ifGenerationMatch=0).headers["location"]
            line.wait()
            answer = client.chunk(location, data, f"bytes 0-{len(data) - 1}/{len(data)}")
        else:
            line.wait()
            answer = client.put("x", data, ifGenerationMatch=0)
        assert answer.status in (200, 412)
        if answer.status == 200:
            won.append(data)

    threads = [threading.Thread(target=race, args=(own,)) for own in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verb = gcs.requests()["chunk" if resumable else "upload"]
    assert (verb["status_200"], verb["status_412"]) == (1, racers - 1)
    assert [client.get("x").body] == won


def test_patch_changes_metadata_only(client: Client):
    made = client.put("x", b"data").json
    client.ask("PATCH", at("x"), {"metadata": {"a": "1", "b": "2"}, "cacheControl": "no-store"})
    patched = client.ask("PATCH", at("x"), {"metadata": {"a": None, "c": "3"}}).json
    assert patched["metadata"] == {"b": "2", "c": "3"}
    assert (patched["metageneration"], patched["generation"]) == ("3", made["generation"])
    assert (patched["cacheControl"], patched["timeCreated"]) == ("no-store", made["timeCreated"])
    updated = client.ask("PUT", at("x"), {"contentType": "text/plain"}).json
    assert updated["contentType"] == "text/plain"
    assert "metadata" not in updated
    assert client.get("x").body == b"data"


def test_compose_joins_and_counts(client: Client):
    first = client.put("a", b"one").json
    client.put("b", b"two")
    sources = [
        {"name": "a", "generation": first["generation"]},
        {"name": "b", "objectPreconditions": {"ifGenerationMatch": "1"}},
    ]
    asked = {"sourceObjects": sources, "destination": {"contentType": "text/plain"}}
    assert client.ask("POST", at("c") + "/compose", asked).status == 412
    del sources[1]["objectPreconditions"]
    made = client.ask("POST", at("c") + "/compose", asked).json
    assert (made["componentCount"], made["contentType"]) == (2, "text/plain")
    assert (made["crc32c"], made.get("md5Hash")) == (crc32c(b"onetwo"), None)
    twice = client.ask("POST", at("d") + "/compose", {"sourceObjects": [{"name": "c"}] * 2}).json
    assert twice["componentCount"] == 4
    read = client.get("d")
    assert (read.body, read.headers["x-goog-hash"]) == (b"onetwo" * 2, f"crc32c={twice['crc32c']}")
    assert (
        client.ask("POST", at("e") + "/compose", {"sourceObjects": [{"name": "no"}]}).status == 404
    )
    many = {"sourceObjects": [{"name": "a"}] * 33}
    assert client.ask("POST", at("e") + "/compose", many).status == 400


def test_rewrite_goes_on_by_its_token(client: Client):
    data = bytes(range(250)) * 10486  # A little over 2.5 MiB.
    made = client.put("x", data).json
    rewrite = at("x") + "/rewriteTo/b/testing/o/y"
    query = {"maxBytesRewrittenPerCall": 1 << 20, "ifSourceGenerationMatch": made["generation"]}
    told = []
    answer = client.ask("POST", rewrite, **query).json
    while not answer["done"]:
        told.append(answer["totalBytesRewritten"])
        assert client.get("y").status == 404
        answer = client.ask("POST", rewrite, rewriteToken=answer["rewriteToken"], **query).json
    assert told == [str(1 << 20), str(2 << 20)]
    assert (answer["resource"]["name"], answer["objectSize"]) == ("y", str(len(data)))
    assert client.get("y").body == data
    assert client.ask("POST", rewrite, rewriteToken="other").status == 400
    assert client.ask("POST", rewrite, ifGenerationMatch=0, **query).status == 412
    begun = client.ask("POST", rewrite, maxBytesRewrittenPerCall=1 << 20).json
    client.put("x", data[::-1])
    assert client.ask("POST", rewrite, rewriteToken=begun["rewriteToken"]).status == 400
    assert client.ask("POST", rewrite, maxBytesRewrittenPerCall=1000).status == 400


@pytest.mark.parametrize("act", ["copy", "move", "rewrite"])
def test_copies_guard_their_source(client: Client, act: str):
    there = int(client.put("other", b"other").json["generation"])
    assert WRITES[act](client, {"ifSourceGenerationMatch": there + 1}).status == 412
    assert WRITES[act](client, {"ifSourceMetagenerationMatch": 2}).status == 412
    assert WRITES[act](client, {"sourceGeneration": there + 1}).status == 404
    assert WRITES[act](client, {"ifSourceGenerationMatch": there}).status == 200
    assert client.get("x").body == b"other"
    assert client.get("other").status == (404 if act == "move" else 200)


def test_listing_pages_through_names_and_prefixes(gcs: GCS, client: Client):
    names = ["a", "b/1", "b/2", "b0", "c/", "c/d/e", "é", "z"]
    for name in names:
        client.put(name, b"")

    def pages(**query: object) -> list[list[str]]:
        found, token = [], {}
        while True:
            answer = client.ask("GET", "/storage/v1/b/testing/o", **query, **token).json
            items = [item["name"] for item in answer.get("items", [])]
            found.append(sorted(items + answer.get("prefixes", [])))
            if "nextPageToken" not in answer:
                return found
            token = {"pageToken": answer["nextPageToken"]}

    in_order = sorted(names, key=str.encode)
    assert pages() == [in_order]
    assert pages(maxResults=3) == [in_order[:3], in_order[3:6], in_order[6:]]
    assert pages(delimiter="/", maxResults=2) == [["a", "b/"], ["b0", "c/"], ["z", "é"]]
    assert pages(prefix="c/", delimiter="/") == [["c/", "c/d/"]]
    assert pages(prefix="c", delimiter="/", includeTrailingDelimiter="true") == [["c/", "c/"]]
    assert pages(startOffset="b/2", endOffset="c/d") == [["b/2", "b0", "c/"]]
    assert pages(prefix="none") == [[]]
    assert client.ask("GET", "/storage/v1/b/testing/o", matchGlob="*").status == 501


def test_page_has_a_thousand_names_unless_fewer_are_asked_for(gcs: GCS, client: Client):
    for index in range(MAX_PAGE + 1):
        gcs.store.put("testing", f"x/{index:04}", Content.of(b""))
    answer = client.ask("GET", "/storage/v1/b/testing/o", prefix="x/", maxResults=5000).json
    assert len(answer["items"]) == MAX_PAGE
    rest = client.ask(
        "GET", "/storage/v1/b/testing/o", prefix="x/", pageToken=answer["nextPageToken"]
    ).json
    assert [item["name"] for item in rest["items"]] == ["x/1000"]
    assert client.ask("GET", "/storage/v1/b/testing/o", pageToken="é").status == 400


def test_buckets_know_where_they_are(gcs: GCS, client: Client):
    gcs.bucket("european", location="eu")
    home = client.ask("GET", "/storage/v1/b/testing").json
    assert (home["location"], home["locationType"]) == ("US-CENTRAL1", "region")
    other = client.ask("GET", "/storage/v1/b/european/storageLayout").json
    assert (other["location"], other["locationType"]) == ("EU", "multi-region")
    assert not other["hierarchicalNamespace"]["enabled"]
    asked = {"name": "third", "location": "europe-west4"}
    made = client.ask("POST", "/storage/v1/b", asked, project="p").json
    assert made["location"] == "EUROPE-WEST4"
    assert client.ask("POST", "/storage/v1/b", asked, project="p").status == 409
    assert client.ask("POST", "/storage/v1/b", {"name": "ab"}).status == 400
    listed = client.ask("GET", "/storage/v1/b", project="p").json["items"]
    assert [bucket["name"] for bucket in listed] == ["european", "testing", "third"]
    client.put("x", b"", bucket="third")
    assert client.ask("DELETE", "/storage/v1/b/third").status == 409
    client.ask("DELETE", at("x", "third"))
    assert client.ask("DELETE", "/storage/v1/b/third").status == 204


@pytest.mark.parametrize("path", ["/batch", "/batch/storage/v1"])
@pytest.mark.parametrize("line", ["\r\n", "\n"])
def test_batch_answers_each_part(client: Client, path: str, line: str):
    client.put("x", b"")
    client.put("y", b"")

    def part(call: str, name: str, rest: str) -> str:
        target = f"/storage/v1/b/testing/o/{name}"
        head = "--cut\nContent-Type: application/http\nContent-ID: <id+1>\n\n"
        return (head + f"{call} {target} HTTP/1.1\n{rest}\n").replace("\n", line)

    delete = part("DELETE", "x", "Accept: application/json\n\n")
    patch = part("PATCH", "y", '\n{"contentType": "text/plain"}')
    body = delete + part("DELETE", "none", "") + patch + "--cut--"
    headers = {"Content-Type": "multipart/mixed; boundary=cut"}
    answer = client.ask("POST", path, body.encode(), headers)
    boundary = answer.headers["content-type"].split("=")[1]
    first, second, third = answer.body.decode().split(boundary)[1:-1]
    assert "HTTP/1.1 204 No Content" in first
    assert "<response-id+1>" in first
    assert "HTTP/1.1 404 Not Found" in second
    assert "No such object" in second
    assert "HTTP/1.1 200 OK" in third
    assert client.get("x").status == 404
    assert client.get("y").headers["content-type"] == "text/plain"
    many = delete * 101 + "--cut--"
    assert client.ask("POST", path, many.encode(), headers).status == 400


def test_clock_can_be_skewed_and_generations_still_grow(gcs: GCS, client: Client):
    before = int(client.put("x", b"").json["generation"])
    gcs.skew_s = -3600.0
    answer = client.put("x", b"")
    assert int(answer.json["generation"]) > before
    hour_ago = time.strftime("%Y-%m-%dT%H:", time.gmtime(time.time() - 3600))
    assert answer.json["updated"].startswith(hour_ago)
    assert f" {hour_ago[11:]}" in answer.headers["date"]


def test_chunked_body_is_read(client: Client, gcs: GCS):
    connection = http.client.HTTPConnection(gcs.url.removeprefix("http://"))
    target = UPLOAD + "?uploadType=media&name=x"
    connection.request("POST", target, iter([b"one", b"two"]), encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert client.get("x").body == b"onetwo"


@pytest.mark.parametrize("name", ["..", "a\nb", "x" * 1025])
def test_bad_names_are_refused(client: Client, name: str):
    assert client.put(name, b"").status == 400
