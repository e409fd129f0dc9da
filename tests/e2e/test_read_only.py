"""A store that may only be read: every command that reads works, and one that writes says so."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import CONFIG, PARCEL, Finished, environment

pytestmark = [pytest.mark.e2e]

_ENTER = (
    "unshare --mount --map-root-user sh -c "
    '\'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"\''
)
"""Runs a command where the folder $0 is read-only, for its owner and for root, too."""


def _read_only(folder: Path, *words: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec {_ENTER} "$@"', "sh", str(folder), *words],
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def store(finished: Finished) -> Path:
    if (
        not shutil.which("unshare")
        or _read_only(finished.store, "true", store=finished.store).returncode
    ):
        pytest.skip("this machine lets nobody mount a folder in a namespace")
    return finished.store


READING = [
    "results tiny --format csv",
    "results tiny --format latex",
    "status",
    "lineage trace tiny --cell chartqa:test_human/parcel/16",
    "lineage verify",
    f"run {CONFIG} --explain",
    "gc",
]


@pytest.mark.parametrize("words", READING)
def test_a_command_that_reads_works_where_it_cannot_write(store: Path, words: str):
    done = _read_only(store, PARCEL, *words.split(), store=store)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_writes_says_that_it_cannot(store: Path):
    done = _read_only(store, PARCEL, "gc", "--delete", store=store)
    assert done.returncode == 1
    assert done.stderr.startswith(f"parcel: {store}/")
    cure = "Read-only file system; this command writes there: make it writable, or name another"
    assert cure in done.stderr
    assert done.stderr.count("\n") == 1
