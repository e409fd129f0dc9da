"""Leases: one holder at a time, freed at once by a death, and by a lapse where none can tell."""

import dataclasses
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from infra.processes.identity import ProcessIdentity
from infra.store.disk import Disk
from infra.store.lease import Lease, acquire_lease, hold_lease, list_leases
from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store
from tests.infra.store.faults import BROKEN, fail

STEP = Recipe(kind="checkpoint", name="train toy", code="c0de")
NAME = f"leases/{STEP.key}.json"
SPAWN = multiprocessing.get_context("spawn")
ELSEWHERE = ProcessIdentity(host="elsewhere", machine="another boot", pid=1, began=1)


def files_of(root: Path) -> Disk:
    return Disk(root, durable=False)


def leave(root: Path, holder: ProcessIdentity, ttl: float) -> bytes:
    """Leaves the lease of another process behind."""
    text = Lease(token="t", holder=holder, since="2026-11-22", ttl=ttl).to_json()
    assert files_of(root).create_if_absent(NAME, text)
    return text


def _hold(root: str, ready) -> None:
    with Store(root).lock(STEP.key) as scratch:
        (scratch.path / "progress").write_text("12")
        ready.set()
        signal.pause()


@pytest.fixture
def holder(tmp_path: Path):
    ready = SPAWN.Event()
    process = SPAWN.Process(target=_hold, args=(str(tmp_path), ready))
    process.start()
    assert ready.wait(30)
    yield process
    process.kill()
    process.join()


def test_step_of_a_killed_process_is_free_at_once_and_its_progress_is_kept(tmp_path: Path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    began = time.monotonic()
    with Store(tmp_path).lock(STEP.key) as scratch:
        assert time.monotonic() - began < 15  # Of 120 until it would lapse.
        assert (scratch.path / "progress").read_text() == "12"
    with Store(tmp_path).lock(STEP.key) as scratch:
        assert (scratch.path / "progress").read_text() == "12"


def test_killed_process_that_nobody_has_waited_for_is_gone(tmp_path: Path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    stat = Path(f"/proc/{holder.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert acquire_lease(files_of(tmp_path), NAME, keep_waiting=lambda: False) is not None


def test_who_holds_what_is_told(tmp_path: Path, holder):
    (held,) = Store(tmp_path).leases()
    assert held.key == STEP.key
    assert (held.lease.holder.host, held.lease.holder.pid) == (os.uname().nodename, holder.pid)
    assert held.is_live()
    assert 0 <= held.age < 60
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert not Store(tmp_path).leases()[0].is_live()


def test_number_of_a_process_given_to_another_one_is_not_the_holder(tmp_path: Path):
    here = ProcessIdentity.of_this_process()
    leave(tmp_path, dataclasses.replace(here, began=here.began - 1), ttl=1000)
    assert acquire_lease(files_of(tmp_path), NAME, keep_waiting=lambda: False) is not None


def test_process_of_another_container_is_not_looked_up_here(tmp_path: Path):
    leave(
        tmp_path,
        dataclasses.replace(ProcessIdentity.of_this_process(), machine="another", began=1),
        ttl=1000,
    )
    assert acquire_lease(files_of(tmp_path), NAME, keep_waiting=lambda: False) is None


def test_lease_of_another_machine_is_taken_once_it_lapses(tmp_path: Path):
    leave(tmp_path, ELSEWHERE, ttl=0.6)
    began = time.monotonic()
    with hold_lease(files_of(tmp_path), NAME):
        assert 0.5 < time.monotonic() - began < 60


def test_lease_of_a_holder_that_is_known_to_be_lost_is_taken_at_once(tmp_path: Path):
    leave(tmp_path, ELSEWHERE, ttl=1000)
    files = files_of(tmp_path)
    assert acquire_lease(files, NAME, keep_waiting=lambda: False, lost=["another"]) is None
    held = acquire_lease(files, NAME, keep_waiting=lambda: False, token="mine", lost=["t"])
    assert held is not None
    assert held.token == json.loads(files.read(NAME))["token"] == "mine"
    held.release()


def test_lapsed_lease_whose_holder_wakes_is_left_to_it(tmp_path: Path):
    # After a laptop's sleep both are awake again, and the lease looks old to whoever is first.
    files = files_of(tmp_path)
    text = leave(tmp_path, ELSEWHERE, ttl=30)
    os.utime(tmp_path / NAME, (0, 0))
    looks = iter(range(1000))
    lease = Lease(token="t", holder=ELSEWHERE, since="2026-11-22", ttl=30, renewals=1)

    def waiting() -> bool:
        if next(looks) == 0:
            assert files.compare_and_swap(
                NAME, text, lease.to_json()
            )  # It renews, a moment after our look.
        return next(looks) < 6

    assert acquire_lease(files, NAME, keep_waiting=waiting) is None
    assert json.loads((tmp_path / NAME).read_text())["renewals"] == 1


def test_holder_renews_its_lease(tmp_path: Path):
    files = files_of(tmp_path)
    with hold_lease(files, NAME, ttl=0.6) as held:
        first = files.stat(NAME).modified
        deadline = time.monotonic() + 20
        while files.stat(NAME).modified == first and time.monotonic() < deadline:
            time.sleep(0.02)
        assert files.stat(NAME).modified > first
        assert not held.lost
    assert files.listing("leases") == {}


def test_renewal_whose_reply_was_lost_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with hold_lease(files_of(tmp_path), NAME) as held:
        with monkeypatch.context() as failing:
            fail(failing, "replace", BROKEN, when=lambda path: path.endswith(NAME), after=True)
            with pytest.raises(OSError, match=STEP.key):
                held.renew()
        assert held.renew()


def test_holder_that_was_stopped_learns_that_it_lost(tmp_path: Path):
    files = files_of(tmp_path)
    with hold_lease(files, NAME) as held:
        assert files.compare_and_swap(NAME, files.read(NAME), b"another's")
        assert not held.renew()
        assert held.lost
    assert files.read(NAME) == b"another's"  # It is not given back by who lost it.


def test_half_of_a_lease_left_by_a_power_cut_lapses(tmp_path: Path):
    files = files_of(tmp_path)
    files.create_if_absent(NAME, b'{"token"')
    assert acquire_lease(files, NAME, keep_waiting=lambda: False) is None
    (held,) = list_leases(files, "leases")
    assert held.is_live()
    os.utime(tmp_path / NAME, (0, 0))
    assert not list_leases(files, "leases")[0].is_live()


def _count(root: str, rounds: int, barrier) -> None:
    """Adds to a number in a file, which loses some if two do so at once."""
    barrier.wait()
    for _ in range(rounds):
        with hold_lease(files_of(Path(root)), NAME):
            number = Path(root, "number")
            value = int(number.read_text())
            time.sleep(0.001)
            number.write_text(str(value + 1))


@pytest.mark.slow
def test_two_never_hold_it_at_once(tmp_path: Path):
    (tmp_path / "number").write_text("0")
    barrier = SPAWN.Barrier(4)
    counters = [SPAWN.Process(target=_count, args=(str(tmp_path), 10, barrier)) for _ in range(4)]
    for counter in counters:
        counter.start()
    for counter in counters:
        counter.join(60)
    assert (tmp_path / "number").read_text() == "40"


def test_of_many_that_find_a_dead_holder_one_takes_its_place(tmp_path: Path):
    here = ProcessIdentity.of_this_process()
    leave(tmp_path, dataclasses.replace(here, began=here.began - 1), ttl=1000)
    got, barrier = [], threading.Barrier(8)

    def race() -> None:
        barrier.wait()
        if held := acquire_lease(files_of(tmp_path), NAME, keep_waiting=lambda: False):
            got.append(held)

    racers = [threading.Thread(target=race) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(got) == 1
    got[0].release()


def test_who_lost_its_lease_writes_no_more_to_its_scratch(tmp_path: Path):
    store, other = Store(tmp_path), Store(tmp_path)
    with store.lock(STEP.key) as mine:
        (mine.path / "progress").write_text("5")
        leases = tmp_path / NAME
        text = leases.read_bytes()
        lost = dataclasses.replace(
            ProcessIdentity.of_this_process(), began=1
        )  # As if it were of a dead process.
        dead = Lease(token=json.loads(text)["token"], holder=lost, since="", ttl=1)
        assert store.volatile.compare_and_swap(NAME, text, dead.to_json())
        with other.lock(STEP.key) as theirs:
            assert (theirs.path / "progress").read_text() == "5"
            with pytest.raises(FileNotFoundError):
                (mine.path / "progress").write_text("6")
            mine.clear()
            assert (theirs.path / "progress").read_text() == "5"


def test_of_two_that_think_they_hold_it_the_commit_decides(tmp_path: Path):
    first, second = Attempt(Store(tmp_path), STEP), Attempt(Store(tmp_path), STEP)
    for text, attempt in (("first", first), ("second", second)):
        (attempt.path / "a.txt").write_text(text)
    winners = [attempt.commit({}).path for attempt in (second, first)]
    assert winners == [second.path] * 2
    assert not first.path.exists()


def test_scratch_is_gone_when_cleared_and_leaves_no_folders(tmp_path: Path):
    store = Store(tmp_path)
    with store.lock(STEP.key) as scratch:
        (scratch.path / "progress").write_text("5")
        scratch.clear()
        assert not scratch.path.exists()
    assert list((tmp_path / "scratch").iterdir()) == []
