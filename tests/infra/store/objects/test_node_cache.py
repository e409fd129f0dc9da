"""Copies on a node: filled once, bounded, and never taken from under a living process."""

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from infra.store.objects import node_cache
from infra.store.objects.node_cache import NodeCache

USER = """
import sys, time
from pathlib import Path
from infra.store.objects.node_cache import NodeCache
NodeCache(Path(sys.argv[1])).get("a/old", 600, lambda path: (path / "f").write_bytes(b"x" * 600))
print("using", flush=True)
time.sleep(600)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeCache:
    monkeypatch.setenv("PARCEL_CACHE_GB", "1e-6")  # 1000 bytes
    return NodeCache(tmp_path)


def fill(size: int):
    def write(path: Path) -> None:
        (path / "f").write_bytes(b"x" * size)

    return write


def there(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/f"))


def test_it_is_filled_once_and_found_by_others(cache: NodeCache, tmp_path: Path):
    path = cache.get("a/b", 3, fill(3))
    assert (path / "f").read_bytes() == b"xxx"
    assert cache.get("a/b", 3, fill(4)) == path
    assert NodeCache(tmp_path).get("a/b", 3, fill(4)) == path
    assert (path / "f").stat().st_size == 3
    assert cache.get("a/c", 4, fill(4)) != path


def test_a_filling_that_fails_leaves_nothing(cache: NodeCache, tmp_path: Path):
    def broken(path: Path) -> None:
        (path / "f").touch()
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        cache.get("a/b", 3, broken)
    assert there(tmp_path) == []
    assert cache.get("a/b", 3, fill(3)).is_dir()


def test_the_least_recently_used_goes_but_nothing_that_is_used(cache: NodeCache, tmp_path: Path):
    user = subprocess.Popen([sys.executable, "-c", USER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert user.stdout is not None
        assert user.stdout.readline() == b"using\n"
        cache.get("a/new", 600, fill(600))
        assert there(tmp_path) == ["a+new", "a+old"]  # Over the limit, and both in use.
    finally:
        user.kill()
        user.wait()
    other = NodeCache(tmp_path)
    other.get("a/newer", 300, fill(300))
    assert there(tmp_path) == ["a+new", "a+newer"]  # The dead one's went; ours is used still.


def test_what_was_made_here_is_taken_over(cache: NodeCache, tmp_path: Path):
    made = tmp_path / "work"
    made.mkdir()
    fill(5)(made)
    cache.adopt("a/b", made)
    assert not made.exists()
    assert (cache.get("a/b", 5, fill(7)) / "f").stat().st_size == 5
    made.mkdir()
    cache.adopt("a/b", made)  # It is there already.
    assert not made.exists()


def test_a_folder_that_another_thread_finishes_during_a_look_is_no_error(
    cache: NodeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The look lists what is being filled, and asks for the age of each folder a moment later. In
    # between another thread gives its folder the final name.
    partial = tmp_path / "being-filled.partial"
    partial.mkdir()

    def rename_and_tell_time() -> float:
        if partial.exists():
            partial.rename(tmp_path / "a+other")
        return time.time()

    clock = types.SimpleNamespace(time=rename_and_tell_time)
    monkeypatch.setattr(node_cache, "time", clock)
    assert (cache.get("a/b", 3, fill(3)) / "f").read_bytes() == b"xxx"
    assert (tmp_path / "a+other").is_dir()
