"""Images of a bucket come before they are asked for, neighbours in one request."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from infra.store.raw_path import raw_path
from pipelines.records.schema import BadInput
from pipelines.sources.reading.item import Item, Media
from pipelines.sources.reading.media_reader import MediaReader
from tests.gcs.objects import Content

DATA = bytes(range(256)) * 1000


def media(offset: int, size: int, path: str = "web/0.tar", **more: int) -> Media:
    return Media(path=path, offset=offset, size=size, **more)


def items(*shown: Media) -> list[Item]:
    said = {"part": "web", "prefix": "caption en", "suffixes": ("a cat",), "task": "caption"}
    return [Item(id=f"web/{number}", media=(one,), **said) for number, one in enumerate(shown)]


@pytest.fixture
def reader(server) -> MediaReader:
    for name in ("0.tar", "1.tar"):
        server.store.put("testing", f"raw/web/{name}", Content.of(DATA))
    server.store.put("testing", "raw/web/plain.jpg", Content.of(b"plain"))
    return MediaReader(raw_path(f"{server.uri}/raw"))


def ranges(server) -> int:
    return server.requests().get("media", {}).get("requests", 0)


def read(reader: MediaReader, shown: list[Item]) -> list[bytes]:
    return [reader.read(item.media[0]) for item in reader.expected(shown)]


def test_neighbours_come_in_one_request(server, reader):
    shown = [media(at, 30) for at in range(0, 900, 100)]
    assert read(reader, items(*shown)) == [DATA[m.offset : m.offset + 30] for m in shown]
    assert ranges(server) == 1


def test_what_lies_elsewhere_comes_by_itself(server, reader):
    shown = [
        media(0, 30),
        media(40, 30),
        media(200_000, 30),
        media(20, 30),
        media(60, 30, "web/1.tar"),
        Media(path="web/plain.jpg"),
        media(0, 30),
    ]
    found = read(reader, items(*shown))
    assert found[5] == b"plain"
    del shown[5], found[5]
    assert found == [DATA[m.offset : m.offset + 30] for m in shown]
    assert ranges(server) == 5


def test_a_request_brings_no_more_than_a_run(server, reader):
    data = DATA * 120
    server.store.put("testing", "raw/web/0.tar", Content.of(data))
    # A run has 2 MiB, and 16 items wait however large they are, or as many as have 8 MiB.
    shown = [media(at * 950_000, 900_000) for at in range(27)] + [media(27 * 950_000, 3_000_000)]
    given = []
    for item in reader.expected(items(*shown)):
        assert reader._bytes <= 17 * 900_000 + 3_000_000
        given.append(reader.read(item.media[0]))
    assert given == [data[m.offset : m.offset + m.size] for m in shown]
    assert ranges(server) == 15  # Two by two, of 27; and one that is larger than a run.
    assert (reader._bytes, reader._requests, reader._waiting_uses) == (0, {}, {})


def test_of_neighbours_the_damaged_one_alone_is_refused(reader):
    shown = [
        media(0, 30),
        media(40, 30, crc32c=1),
        media(len(DATA) - 10, 30),
        media(0, 30, "web/2.tar"),
        media(40, 30, "web/2.tar"),
    ]
    found = []
    for item in reader.expected(items(*shown)):
        try:
            found.append(reader.read(item.media[0]))
        except (BadInput, RuntimeError) as error:
            found.append(str(error).partition(":")[0].partition(" came")[0])
    missing = "No such file or directory"
    assert found == [DATA[:30], "web/0.tar", "truncated", missing, missing]


@pytest.mark.parametrize(
    ("number", "told"), [(errno.EACCES, BadInput), (errno.EMFILE, OSError), (errno.EIO, OSError)]
)
def test_an_error_of_the_machine_is_no_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: type[Exception]
):
    def fails(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises((BadInput, OSError), match=os.strerror(number)) as raised:
        MediaReader(tmp_path).read(media(0, 30))
    assert isinstance(raised.value, told)
