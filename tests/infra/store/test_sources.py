"""Source trees: kept file by file, read back with a check."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.store import Store

TREE = {"model/a.py": b"a = 1\n", "model/b.py": b"b = 2\n", "flows/c.py": b"a = 1\n"}
PATHS = st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3}){0,2}\.py", fullmatch=True)


@pytest.mark.slow
@given(st.dictionaries(PATHS, st.binary(max_size=9), max_size=5))
def test_tree_comes_back(tree: dict[str, bytes]):
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        digest = store.save_source(tree)
        assert dict(store.open_source(digest)) == tree
        assert store.save_source(dict(reversed(tree.items()))) == digest


def test_unchanged_files_are_kept_once(tmp_path: Path):
    store = Store(tmp_path)
    first = store.save_source(TREE)
    kept = set((tmp_path / "sources").iterdir())
    assert len(kept) == 2 + 1  # Two of the three are equal, and there is the listing.
    second = store.save_source({**TREE, "model/b.py": b"b = 3\n"})
    assert second != first
    assert len(set((tmp_path / "sources").iterdir()) - kept) == 2
    assert store.open_source(first)["model/b.py"] == b"b = 2\n"


def test_changed_file_is_told_when_it_is_read(tmp_path: Path):
    store = Store(tmp_path)
    digest = store.save_source(TREE)
    tree = store.open_source(digest)
    (tmp_path / "sources" / tree.digests["model/b.py"]).write_bytes(b"b = 7\n")
    assert tree["model/a.py"] == b"a = 1\n"
    with pytest.raises(ValueError, match="holds other bytes than its name says"):
        tree["model/b.py"]
    (tmp_path / "sources" / tree.digests["model/b.py"]).unlink()
    with pytest.raises(FileNotFoundError):
        tree["model/b.py"]


def test_unknown_and_malformed_digests_are_refused(tmp_path: Path):
    store = Store(tmp_path)
    with pytest.raises(KeyError, match="no source 0000"):
        store.open_source("0" * 64)
    for digest in ("../store.json", "", "0" * 63):
        with pytest.raises(ValueError, match="must be 64 hex digits"):
            store.open_source(digest)


@pytest.mark.parametrize("path", ["../a.py", "/a.py", "", "a//b.py", "./a.py"])
def test_path_out_of_the_tree_is_refused(tmp_path: Path, path: str):
    with pytest.raises(ValueError, match="plain path below its folder"):
        Store(tmp_path).save_source({path: b""})
