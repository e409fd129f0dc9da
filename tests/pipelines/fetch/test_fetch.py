"""`parcel data fetch`: a catalogue, archives unpacked for their readers, what is noted and told."""

import functools
import hashlib
import io
import json
import shutil
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from infra.download import DownloadError
from infra.errors import ConfigError
from parcel.cli.main import app
from pipelines.fetch.catalogue import DataSet, RemoteFile, load_catalogue
from pipelines.fetch.fetch import fetch_data_sets, read_licence, unpack_archive
from pipelines.sources.registry import SOURCES


@pytest.fixture
def shop(tmp_path):
    """Yields (a folder, the address it is served at)."""
    folder = tmp_path / "shop"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            del format, args

    handler = functools.partial(Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def zipped(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "/"), text)
    return buffer.getvalue()


def tarred(name: str, text: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return buffer.getvalue()


@pytest.fixture
def fetch(tmp_path, shop):
    """Returns a function: words of the command -> its lines; errors are raised."""
    folder, address = shop
    (folder / "rows.json").write_text("[]")
    (folder / "pictures.zip").write_bytes(zipped(train2014__1="a", train2014__2="b"))
    (folder / "more.tgz").write_bytes(tarred("train2014/3", b"c"))
    catalogue = {
        "pictures": {
            "folder": "coco", "licence": "CC BY 4.0", "page": address,
            "files": [
                {"address": f"{address}/{name}", "unpack": "."}
                for name in ("pictures.zip", "more.tgz")
            ],
        },
        "asked": {
            "folder": "asked", "licence": "MIT", "page": address, "also": ["pictures"],
            "terms": "Not for sale.", "by_hand": "Ask for the rest.",
            "files": [{
                "address": f"{address}/rows.json", "path": "data/rows.json", "size": 2,
                "digest": f"sha256:{hashlib.sha256(b'[]').hexdigest()}",
            }],
        },
    }  # fmt: skip
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump(catalogue))

    def run(*words: str) -> list[str]:
        where = ["--to", str(tmp_path / "data"), "--catalogue", str(tmp_path / "catalogue.yaml")]
        done = CliRunner().invoke(app, ["data", "fetch", *words, *where])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stdout.splitlines()

    return run


def test_files_are_fetched_unpacked_and_noted(tmp_path, fetch):
    lines = fetch("asked")
    data = tmp_path / "data"
    assert (data / "asked/data/rows.json").read_text() == "[]"
    assert sorted(p.name for p in (data / "coco/train2014").iterdir()) == ["1", "2", "3"]
    assert sorted(p.name for p in (data / "coco").iterdir()) == ["fetched.json", "train2014"]
    notes = json.loads((data / "asked/fetched.json").read_text())
    assert notes["data/rows.json"]["sha256"] == hashlib.sha256(b"[]").hexdigest()
    licence = read_licence(data / "asked")
    assert (licence.licence, licence.address.partition("//")[0]) == ("MIT", "http:")
    assert read_licence(data / "coco").licence == "CC BY 4.0"
    assert not read_licence(data).is_stated
    assert "asked: 1 file, 0.00 GB; some by hand; needs pictures; licence: MIT" in lines
    assert "  terms: Not for sale." in lines
    assert "  by hand: Ask for the rest." in lines
    again = fetch("asked")
    assert sum("is there already" in line for line in again) == 3


def test_nothing_is_fetched_to_list_or_try(tmp_path, fetch):
    assert len(fetch("--list")) == 2
    lines = fetch("asked", "--dry-run")
    assert any(line.endswith("data/asked/data/rows.json") for line in lines)
    assert not (tmp_path / "data").exists()


def test_what_fails_is_told_after_the_rest_is_there(tmp_path, fetch, shop):
    (shop[0] / "rows.json").write_text("{}")
    (shop[0] / "more.tgz").write_bytes(b"no archive")
    with pytest.raises(DownloadError) as failed:
        fetch("asked")
    assert "rows.json has sha256" in str(failed.value)
    assert "more.tgz cannot be unpacked" in str(failed.value)
    data = tmp_path / "data"
    assert sorted(p.name for p in (data / "coco/train2014").iterdir()) == ["1", "2"]
    assert list((data / "asked/data").iterdir()) == []
    (shop[0] / "more.tgz").write_bytes(tarred("train2014/3", b"c"))
    (shop[0] / "rows.json").write_text("[]")
    fetch("asked")
    assert (data / "coco/train2014/3").read_text() == "c"


@pytest.mark.parametrize("name", ["none.zip", "none.tar"])
def test_an_empty_archive_is_refused(tmp_path: Path, name: str):
    archive = tmp_path / name
    zipfile.ZipFile(archive, "w").close() if name.endswith("zip") else tarfile.open(
        archive, "w"
    ).close()
    with pytest.raises(DownloadError, match=f"{name} cannot be unpacked: .*empty"):
        unpack_archive(archive, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_members_cannot_leave_the_folder(tmp_path, fetch, shop):
    (shop[0] / "more.tgz").write_bytes(tarred("../../evil", b"c"))
    with pytest.raises(DownloadError, match=r"more.tgz cannot be unpacked"):
        fetch("asked")
    assert not list(tmp_path.rglob("evil"))


def test_an_archive_brings_no_notes_of_its_own(tmp_path: Path):
    notes = json.dumps({"a.txt": {"licence": {"licence": "CC0"}}})
    (tmp_path / "x.zip").write_bytes(zipped(**{"a.txt": "a", "fetched.json": notes}))
    with pytest.raises(DownloadError, match=r"cannot be unpacked: .*fetched\.json"):
        unpack_archive(tmp_path / "x.zip", tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_an_archive_larger_than_the_disk_is_not_unpacked(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=600))
    for name, data in (
        ("x.zip", zipped(**{"a.txt": "text" * 200})),
        ("x.tar.gz", tarred("a.txt", b"text" * 200)),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DownloadError, match="0 GB are free"):
            unpack_archive(tmp_path / name, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_two_that_fetch_into_one_folder_do_so_one_after_the_other(tmp_path: Path):
    begun, release, waits = (threading.Event() for _ in range(3))
    fetched = list[Path]()

    def slow(address: str, path: Path, **options: object) -> str:
        fetched.append(path)
        begun.set()
        assert release.wait(60)
        path.write_bytes(b"[]")
        return hashlib.sha256(b"[]").hexdigest()

    def fetch() -> None:
        one = DataSet(
            licence="MIT", page="", folder="one", files=(RemoteFile(address="http://x/a.json"),)
        )
        fetch_data_sets({"one": one}, tmp_path, download=slow, on_wait=lambda folder: waits.set())

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch)
        assert begun.wait(60)
        second = pool.submit(fetch)
        waited = waits.wait(60)
        release.set()
        first.result()
        second.result()
    assert waited
    assert fetched == [tmp_path / "one" / "a.json"]  # The second saw that it was there.


def test_requests_are_checked(tmp_path, fetch):
    with pytest.raises(ConfigError, match=r"NAME .*asked, pictures, got 'nope'"):
        fetch("nope")
    with pytest.raises(ConfigError, match=r"data fetch needs .*--list"):
        fetch()
    path = tmp_path / "bad.yaml"
    entry = {"folder": "a", "licence": "b", "page": "c", "files": [{"address": "ftp://x"}]}
    path.write_text(yaml.safe_dump({"a": entry}))
    with pytest.raises(ConfigError, match=r"bad.yaml: a.files.0.address: "):
        load_catalogue(path)
    entry["files"] = [{"address": "http://x/y.zip", "unpack": "../.."}]
    path.write_text(yaml.safe_dump({"a": entry}))
    with pytest.raises(ConfigError, match=r"must lie in the folder"):
        load_catalogue(path)
    for address in ("http://x", "http://x/..", "http://x/%2e%2e", "http://x/y/%2e%2e/."):
        entry["files"] = [{"address": address}]
        path.write_text(yaml.safe_dump({"a": entry}))
        with pytest.raises(ConfigError, match=r"path must be stated"):
            load_catalogue(path)


def test_own_catalogue_names_every_benchmark_and_what_to_do():
    known = load_catalogue()
    folders = {data_set.folder for data_set in known.values()}
    ours = {
        "images",
        "videos",
        "web",
        "jsonl",
        "csv",
        "tfrecord",
        "tfds",
        "msrvtt_cap",
        "msrvtt_qa",
    }
    assert {spec.folder for spec in SOURCES.values()} - ours <= folders
    for name, data_set in known.items():
        assert data_set.files or data_set.by_hand or data_set.hub, name
        assert not Path(data_set.folder).is_absolute()
