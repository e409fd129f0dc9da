"""Folders that are kept below a size."""

import fcntl
import os
import threading
from pathlib import Path

from infra.store.objects.eviction import evict_oldest_files


def age(path: Path, seconds: float) -> None:
    now = path.stat().st_mtime
    os.utime(path, (now - seconds, now - seconds))


def written(folder: Path, **sizes: int) -> list[Path]:
    made = []
    for number, (name, size) in enumerate(sizes.items()):
        path = folder / "kind" / f"{name}-cache"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        age(path, 1000 - 100 * number)
        made.append(path)
    return made


def test_what_was_not_used_longest_goes_first(tmp_path: Path):
    old, used, new = written(tmp_path, old=30, used=20, new=11)
    os.utime(used, (used.stat().st_mtime + 500, used.stat().st_mtime))
    evict_oldest_files(tmp_path, 61)
    assert old.exists()
    evict_oldest_files(tmp_path, 32)
    assert [path.exists() for path in (old, used, new)] == [False, True, True]
    evict_oldest_files(tmp_path, 30)
    assert [path.exists() for path in (old, used, new)] == [False, True, False]


def test_an_empty_file_goes_unless_it_is_being_written(tmp_path: Path):
    cut, full, begun = written(tmp_path, cut=0, full=3, begun=0)
    os.utime(begun)
    evict_oldest_files(tmp_path, 100)
    assert [path.exists() for path in (cut, full, begun)] == [False, True, True]


def test_one_process_tidies_at_a_time(tmp_path: Path):
    (path,) = written(tmp_path, one=9)
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=evict_oldest_files, args=(tmp_path, 0))
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
        assert path.exists()
    evict_oldest_files(tmp_path, 0)
    assert not path.exists()
