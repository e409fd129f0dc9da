"""`kill -9` of the whole process tree at random moments loses nothing and changes nothing."""

import contextlib
import os
import random
import signal
import subprocess
import time
import uuid
from pathlib import Path

import psutil
import pytest

from infra.store.store import Artifact, Store
from tests.e2e.conftest import PARCEL, SMALLEST, Finished, environment, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.night]

KILLS = 3
MARK = "PARCEL_TEST_FAMILY"


def family(mark: str) -> list[int]:
    """Every process begun by a run, wherever its parent went: they inherit its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def kill_family(mark: str) -> None:
    while pids := family(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def files_of(table: Artifact) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(table.path.iterdir())}


def attempts(store: Path) -> dict[str, int]:
    return {a.key: len(a.manifest.attempts) for a in Store(store).artifacts()}


@pytest.mark.timeout(1500)
def test_killed_again_and_again_the_table_is_byte_identical(smallest: Finished, tmp_path: Path):
    store, moments = tmp_path / "store", random.Random(20261120)
    committed: set[str] = set()
    for _ in range(KILLS):
        mark = uuid.uuid4().hex
        run = subprocess.Popen(
            [PARCEL, "run", SMALLEST],
            env={**environment(store), MARK: mark},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # From the first seconds (imports, server start) to well into the work.
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(timeout=moments.uniform(3, 25))
        kill_family(mark)
        run.wait()
        done = {a.key for a in Store(store).artifacts()} if store.exists() else set()
        assert committed <= done, "a committed artifact was lost"
        committed = done
    before = attempts(store)
    last = parcel(store, "run", SMALLEST)
    assert last.returncode == 0, last.stdout[-2000:] + last.stderr[-2000:]
    (table,) = Store(store).artifacts("results")
    assert files_of(table) == files_of(Store(smallest.store).get(table.key))
    after = attempts(store)
    assert {key: after[key] for key in before} == before, "finished work was done again"
    assert parcel(store, "lineage", "verify").returncode == 0
