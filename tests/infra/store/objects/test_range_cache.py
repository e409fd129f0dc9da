"""Ranges that the processes of a machine share: read once, bounded, and never waited for long."""

import threading
import time
from pathlib import Path

import pytest

from infra.store.objects.range_cache import RangeCache

SHA = "a1" * 32


class Bucket:
    """Answers with what a range should hold, and counts."""

    def __init__(self, pause: float = 0.0) -> None:
        self.asked: list[tuple[int, int]] = []
        self._pause = pause

    def reading(self, start: int, length: int):
        def read() -> bytes:
            self.asked.append((start, length))
            time.sleep(self._pause)
            return bytes((start + i) % 251 for i in range(length))

        return read


def test_a_range_is_read_once_by_all_who_have_the_folder(tmp_path: Path):
    bucket = Bucket()
    for cache in (RangeCache(tmp_path, 1000), RangeCache(tmp_path, 1000)):
        for start, length in ((3, 7), (3, 8), (10, 0)):
            read = bucket.reading(start, length)
            assert cache.get(SHA, start, length, read, fresh=False) == read()
            bucket.asked.pop()
    assert bucket.asked == [(3, 7), (3, 8), (10, 0)]
    other = "b2" * 32
    assert (
        RangeCache(tmp_path, 1000).get(other, 3, 7, lambda: b"another", fresh=False) == b"another"
    )


def test_two_who_want_it_at_the_same_time_ask_once(tmp_path: Path):
    bucket, found = Bucket(pause=0.2), []

    def want() -> None:
        read = bucket.reading(5, 9)
        found.append(RangeCache(tmp_path, 1000).get(SHA, 5, 9, read, fresh=False))

    threads = [threading.Thread(target=want) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bucket.asked == [(5, 9)]
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / SHA).iterdir()] == ["5-9"]


def test_nobody_waits_for_a_process_that_was_stopped(tmp_path: Path):
    stopped, go_on = threading.Event(), threading.Event()

    def hang() -> bytes:
        stopped.set()
        go_on.wait(10)
        return b"late"

    cache = RangeCache(tmp_path, 1000, max_wait=0.05)
    thread = threading.Thread(target=cache.get, args=(SHA, 0, 4, hang), kwargs={"fresh": False})
    thread.start()
    stopped.wait(10)
    assert cache.get(SHA, 0, 4, lambda: b"soon", fresh=False) == b"soon"
    go_on.set()
    thread.join()


def test_what_was_wrong_or_cut_is_read_again(tmp_path: Path):
    cache = RangeCache(tmp_path, 1000)
    assert cache.get(SHA, 0, 3, lambda: b"bad", fresh=False) == b"bad"
    assert cache.get(SHA, 0, 3, lambda: b"new", fresh=True) == b"new"
    assert cache.get(SHA, 0, 3, lambda: b"bad", fresh=False) == b"new"
    (tmp_path / SHA / "0-3").write_bytes(b"n")  # The machine lost its power.
    assert cache.get(SHA, 0, 3, lambda: b"yet", fresh=False) == b"yet"
    with pytest.raises(OSError, match="no network"):
        cache.get(SHA, 3, 3, failing, fresh=False)
    assert cache.get(SHA, 3, 3, lambda: b"now", fresh=False) == b"now"


def failing() -> bytes:
    raise OSError("no network")


def test_it_stays_below_its_limit_and_leaves_large_folders_alone(tmp_path: Path):
    cache = RangeCache(tmp_path, 320)
    assert cache.accepts(160)
    assert not cache.accepts(161)
    assert not RangeCache(tmp_path, 0).accepts(1)
    for start in range(0, 2000, 20):
        cache.get(SHA, start, 20, lambda: b"x" * 20, fresh=False)
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 340
