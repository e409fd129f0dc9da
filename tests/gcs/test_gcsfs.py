"""gcsfs, which speaks multipart with bare LF and sends its chunks by POST."""

import random
import threading

import pytest
from gcsfs.core import GCSFileSystem  # The package's own name asks for bucket types by gRPC.

from tests.gcs.faults import Rule
from tests.gcs.server import GCS

LARGE = 20 << 20


@pytest.fixture
def files(gcs: GCS) -> GCSFileSystem:
    return GCSFileSystem(token="anon", skip_instance_cache=True, use_listings_cache=False)


def test_small_files_come_back(files: GCSFileSystem):
    name = "testing/a/b c+d#e?f%25é.txt"
    files.pipe_file(name, b"data\r")
    assert files.cat_file(name) == b"data\r"
    assert files.info(name)["size"] == 5
    assert files.ls("testing/a", detail=False) == [name]
    assert files.find("testing") == [name]
    assert not files.exists("testing/a/none")
    with pytest.raises(FileNotFoundError):
        files.cat_file("testing/a/none")


def test_large_file_is_there_once_closed(gcs: GCS, files: GCSFileSystem):
    data = random.Random(0).randbytes(LARGE)
    with files.open("testing/x", "wb", block_size=5 << 20) as file:
        file.write(data[: LARGE // 2])
        assert not files.exists("testing/x")
        file.write(data[LARGE // 2 :])
    assert files.cat_file("testing/x") == data
    assert files.cat_file("testing/x", LARGE - 10, LARGE) == data[-10:]
    with files.open("testing/x", "rb", block_size=1 << 20) as file:
        file.seek(12_345_678)
        assert file.read(100) == data[12_345_678:12_345_778]
    requests = gcs.requests()
    assert requests["start"]["requests"] == 1
    assert requests["chunk"]["bytes_in"] == LARGE
    assert requests["media"]["bytes_out"] < 2 * LARGE


def test_of_twelve_creators_one_wins(gcs: GCS, files: GCSFileSystem):
    line, outcomes = threading.Barrier(12), []

    def create(own: int) -> None:
        line.wait()
        try:
            with files.open("testing/x", "xb") as file:
                file.write(b"%d" % own)
            outcomes.append(b"%d" % own)
        except FileExistsError:
            outcomes.append(None)

    threads = [threading.Thread(target=create, args=(own,)) for own in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 12
    assert [winner for winner in outcomes if winner] == [files.cat_file("testing/x")]


def test_refused_request_is_repeated(gcs: GCS, files: GCSFileSystem):
    gcs.fail(Rule(action="answer", verb="upload", status=503))
    files.pipe_file("testing/x", b"data")
    assert files.cat_file("testing/x") == b"data"
    counts = gcs.requests()["upload"]
    assert (counts["status_503"], counts["status_200"]) == (1, 1)


@pytest.mark.slow
def test_torn_chunk_is_sent_again(gcs: GCS, files: GCSFileSystem):
    data = random.Random(0).randbytes(4 << 20)
    gcs.fail(Rule(action="tear", skip=1, at=1 << 19), Rule(action="short", skip=1, at=1 << 19))
    with files.open("testing/x", "wb", block_size=1 << 20) as file:
        for begin in range(0, len(data), 1 << 20):
            file.write(data[begin : begin + (1 << 20)])
    assert files.cat_file("testing/x") == data
    assert gcs.faults.fired() == [1, 1]


def test_corrupt_download_is_not_noticed(gcs: GCS, files: GCSFileSystem):
    """A limit of gcsfs: it checks the hashes of uploads only."""
    files.pipe_file("testing/x", b"data")
    gcs.fail(Rule(action="corrupt"))
    assert files.cat_file("testing/x") != b"data"


@pytest.mark.slow
def test_lost_reply_to_a_creation_looks_like_a_lost_race(gcs: GCS, files: GCSFileSystem):
    """A limit of gcsfs: it repeats the request, and then finds its own object there."""
    gcs.fail(Rule(action="lose", verb="upload"))
    with pytest.raises(FileExistsError):
        files.pipe_file("testing/x", b"data", mode="create")
    assert files.cat_file("testing/x") == b"data"
