"""Names that are taken once, on file systems without hard links; locks are in tests/effects."""

import errno
import os
import threading
from pathlib import Path

import pytest

from infra.file_locks import take_name
from infra.store.disk import Disk


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("has_links", [True, False])
def test_of_many_writers_at_once_one_gets_the_name(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    disks = [Disk(tmp_path, durable=False) for _ in range(8)]
    start, won = threading.Barrier(len(disks)), []

    def write(number: int) -> None:
        for record in range(40):
            start.wait()
            if disks[number].create_if_absent(f"records/{record}", f"{number}".encode()):
                won.append((record, number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(disks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record for record, _ in won) == [*range(40)]
    for record, number in won:
        assert (tmp_path / "records" / f"{record}").read_text() == f"{number}"
    assert [*(tmp_path / "partial").iterdir()] == []


def test_another_error_of_a_link_takes_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A disk that fails may have made the link of another writer: nothing may be renamed over it.
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", fail)
    (tmp_path / "partial").write_text("new")
    with pytest.raises(OSError, match="Input/output"):
        take_name(tmp_path / "partial", tmp_path / "name", lock=pytest.fail)
    assert not (tmp_path / "name").exists()
