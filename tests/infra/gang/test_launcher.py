"""A gang by a launcher: ranks, where rank 0 is, how each ended. Slurm itself: tests/e2e."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.gang.launcher import LauncherGang, launcher_rank, rendezvous_address
from infra.gang.messages import write_exit_code
from infra.gang.supervise import LAUNCHER, GangFailedError, supervise
from infra.progress import Progress

MPIRUN = f"{sys.executable} {Path(__file__).with_name('launcher.py')}"
"""Starts processes with their ranks as MPI does, passes its input and SIGTERM on."""


def started(folder: Path, code: str, size: int = 2) -> LauncherGang:
    folder.mkdir(exist_ok=True)
    return LauncherGang(MPIRUN, [sys.executable, "-c", code], size, folder, folder)


def supervised(root: Path, code: str) -> Iterator[Progress]:
    def start(place: str) -> LauncherGang:
        return LauncherGang(MPIRUN, [sys.executable, "-c", code], 2, place, root)

    return supervise(start, str(root / "gang"), root)


def ended(gang: LauncherGang) -> dict[int, int | None]:
    deadline = time.monotonic() + 30
    while None in gang.exit_codes().values() and time.monotonic() < deadline:
        time.sleep(0.02)
    return dict(gang.exit_codes())


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"SLURM_PROCID": "0"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "3"}, 3),
        ({"PMI_RANK": "12"}, 12),
    ],
)
def test_a_launcher_says_the_rank(environment: dict[str, str], rank: int | None):
    assert launcher_rank(environment) == rank


def test_rank_0_says_where_it_is_and_the_others_wait(tmp_path: Path):
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(rendezvous_address(tmp_path, 1, 30)))
    waiting.start()
    time.sleep(0.1)
    assert not found
    address = rendezvous_address(tmp_path, 0, 30)
    waiting.join()
    assert found == [address]
    assert address.rpartition(":")[2].isdecimal()


def test_a_rank_0_that_does_not_come_is_missed(tmp_path: Path):
    with pytest.raises(TimeoutError, match="rank 0 wrote nothing to"):
        rendezvous_address(tmp_path, 1, 0.1)


def test_each_member_says_how_it_ended(tmp_path: Path):
    code = f"""if True:
        import os, pathlib
        from infra.gang.messages import write_exit_code
        rank = int(os.environ["PMI_RANK"])
        write_exit_code(pathlib.Path({str(tmp_path)!r}), rank, 17 * rank)
        os._exit(17 * rank)"""
    gang = started(tmp_path, code)
    assert ended(gang) == {LAUNCHER: 17, 0: 0, 1: 17}
    gang.kill()


def test_of_one_that_could_not_say_the_launcher_tells(tmp_path: Path):
    gang = started(tmp_path, "import os; os.kill(os.getpid(), 9)")
    write_exit_code(tmp_path, 0, 0)
    assert ended(gang) == {LAUNCHER: 137, 0: 0}
    gang.kill()


@pytest.mark.slow
def test_a_lost_gang_cites_its_launcher_and_a_failed_one_fails(tmp_path: Path):
    words = "import sys; sys.exit('node-b: task 1: Killed')"  # And exit code 1.
    with pytest.raises(GangFailedError, match=r"^a process of the launcher: .*task 1: Killed"):
        list(supervised(tmp_path, words))
    killed = "import os; print('task 1: Killed', flush=True); os.kill(os.getpid(), 9)"
    found = supervised(tmp_path, killed)
    told = next(found)
    assert told.happened
    assert "(exit code 137: task 1: Killed" in told.note
    with pytest.raises(GangFailedError, match="lost 3 times"):
        list(found)


def test_members_end_with_their_input_and_leave_when_asked(tmp_path: Path):
    waits = "import os\nwhile os.read(0, 1): pass"
    gang = started(tmp_path, waits)
    assert gang.exit_codes() == {LAUNCHER: None}
    gang.kill()
    assert None not in gang.exit_codes().values()
    gang = started(tmp_path, "import time; time.sleep(60)")
    time.sleep(0.5)  # So that the launcher hears signals.
    began = time.monotonic()
    gang.notify_preemption(20)
    assert time.monotonic() - began < 15
    assert gang.exit_codes() == {LAUNCHER: 143}
    gang.kill()


def test_a_launcher_that_is_not_there_is_one_line(tmp_path: Path):
    with pytest.raises(GangFailedError, match=r"compute\.launcher 'srunn -N 2' .*not found"):
        LauncherGang("srunn -N 2", ["true"], 2, tmp_path, tmp_path)
