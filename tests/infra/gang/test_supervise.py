"""A gang is watched, told of, and begun again as one; its members are processes without JAX."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.gang.local import LocalGang, member_environment
from infra.gang.supervise import GangFailedError, supervise
from infra.progress import Progress

MEMBER = Path(__file__).with_name("member.py")


def gang(root: Path, *plan: str, size: int = 2) -> Iterator[Progress]:
    """A supervised gang; each of `plan` is what its members do at one start, see `member.py`."""

    def start(place: str) -> LocalGang:
        number = starts(root)
        (root / "starts").write_text(str(number + 1))
        words = plan[min(number, len(plan) - 1)]
        member = [sys.executable, str(MEMBER), place]
        after = [str(number), words, str(root)]
        return LocalGang(lambda rank, _: [*member, str(rank), *after], size, root / "logs")

    return supervise(start, str(root / "gang"), root / "logs")


def starts(root: Path) -> int:
    path = root / "starts"
    return int(path.read_text()) if path.exists() else 0


def alive(root: Path) -> list[int]:
    pids = [int(path.read_text()) for path in root.glob("pid-?")]
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_progress_is_passed_on_and_all_end(tmp_path: Path):
    found = list(gang(tmp_path, "tell, tell, point, tell"))
    assert [(p.done, p.resumable) for p in found] == [
        (1, False),
        (2, False),
        (3, True),
        (4, False),
    ]
    assert starts(tmp_path) == 1
    assert not alive(tmp_path)


def test_a_gang_waits_at_a_point_until_that_was_dealt_with(tmp_path: Path):
    told = tmp_path / "gang/0/told"
    for progress in gang(tmp_path, "tell, point, tell"):
        if progress.resumable:  # As where the folder is copied to a bucket.
            time.sleep(0.3)
            assert len(list(told.iterdir())) == 2
    assert progress.done == 3


def test_when_one_is_lost_all_begin_again_at_once(tmp_path: Path):
    began, times = time.monotonic(), []
    found = []
    for progress in gang(tmp_path, "point, kill 1, sleep 60", "tell, tell"):
        found.append(progress)
        times.append(time.monotonic() - began)
    assert [p.note for p in found] == [
        "start 0",
        "rank 1 was lost (SIGKILL); all members are restarted",
        "start 1",
        "start 1",
    ]
    assert found[1].done == 1
    assert not found[1].resumable
    assert times[-1] < 10


def test_a_fault_of_its_own_is_told_and_not_tried_again(tmp_path: Path):
    with pytest.raises(GangFailedError, match=r"^rank 1: the batch does not fit$"):
        list(gang(tmp_path, "fail 1, sleep 60"))
    assert starts(tmp_path) == 1
    assert not alive(tmp_path)


def test_a_gang_that_gets_no_further_is_given_up(tmp_path: Path):
    with pytest.raises(GangFailedError, match=r"SIGKILL\); .*lost 3 times"):
        list(gang(tmp_path, "point 4, kill 0, sleep 60"))
    assert starts(tmp_path) == 4  # The first one got to the point.


@pytest.mark.slow
def test_a_gang_that_gets_further_each_time_is_not(tmp_path: Path):
    lost = [f"point {n}, kill 0, sleep 60" for n in (1, 2, 3, 4)]
    found = list(gang(tmp_path, *lost, "tell"))
    assert starts(tmp_path) == 5
    assert found[-1].note == "start 4"


def test_a_gang_whose_machine_is_taken_away_begins_again(tmp_path: Path):
    found = list(gang(tmp_path, "tell, preempted", "tell"))
    # Whichever is gone first is named, and may be gone before the other has told of its start.
    lost, again = [p.note for p in found][-2:]
    assert lost.partition(" was lost ")[0] in ("rank 0", "rank 1")
    assert re.search("taken away; the state was saved.*restarted", lost)
    assert again == "start 1"


def test_members_may_save_when_their_reader_leaves(tmp_path: Path):
    following = gang(tmp_path, "leave, tell, sleep 60")
    next(following)
    began = time.monotonic()
    following.close()  # type: ignore[attr-defined]
    assert (tmp_path / "saved").exists()
    assert time.monotonic() - began < 5
    assert not alive(tmp_path)


def supervisor(root: Path, plan: str) -> subprocess.Popen[bytes]:
    """A process that looks after a gang, whose members have begun."""
    program = (
        "import signal, sys\nfrom pathlib import Path\n"
        "from tests.infra.gang.test_supervise import gang\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "for _ in gang(Path(sys.argv[1]), sys.argv[2]): pass"
    )
    checkout = Path(__file__).parents[3]
    found = subprocess.Popen([sys.executable, "-c", program, str(root), plan], cwd=checkout)
    while len(list(root.glob("pid-?"))) < 2:
        assert found.poll() is None
        time.sleep(0.02)
    return found


@pytest.mark.slow
def test_members_end_with_a_supervisor_that_is_killed(tmp_path: Path):
    watching = supervisor(tmp_path, "tell, sleep 60")
    members = alive(tmp_path)
    assert len(members) == 2
    watching.kill()
    watching.wait()
    deadline = time.monotonic() + 5
    while alive(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = alive(tmp_path)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left


def test_members_may_save_when_their_supervisor_is_told_to_stop(tmp_path: Path):
    watching = supervisor(tmp_path, "leave, ready, sleep 60")
    while len(list(tmp_path.glob("ready-*"))) < 2:
        time.sleep(0.02)
    watching.terminate()
    assert watching.wait(timeout=20) == 143
    assert (tmp_path / "saved").exists()
    assert not alive(tmp_path)


def test_members_share_cores_and_gpus():
    own = {"NPROC": "5", "XLA_FLAGS": "--a=1", "CUDA_VISIBLE_DEVICES": "4,6,7,9"}
    second = member_environment(1, 2, own)
    assert (second["NPROC"], second["OMP_NUM_THREADS"]) == ("2", "2")
    assert second["XLA_FLAGS"] == "--a=1 --xla_cpu_multi_thread_eigen=true"
    assert second["CUDA_VISIBLE_DEVICES"] == "7,9"
    assert second["NCCL_SOCKET_IFNAME"] == "lo"
    assert (
        member_environment(0, 2, own | {"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"
    )
    assert member_environment(0, 4, own)["XLA_FLAGS"].endswith("eigen=false")
    with pytest.raises(ValueError, match=r"processes .* 4, got 3"):
        member_environment(0, 3, own)
