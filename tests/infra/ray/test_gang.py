"""Members of a gang as workers of Ray Train, on a cluster that `ray start` made."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from infra.gang.launcher import LauncherGang
from infra.gang.messages import PREEMPTED, read_message, write_message
from infra.gang.supervise import LAUNCHER, GangFailedError, supervise
from tests.processes import end_family
from tests.ray_nodes import head_of, node

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with the checkout's rooms, without its tests."""
    made = tmp_path_factory.mktemp("home")
    for room in ("flows", "infra", "model", "parcel", "pipelines"):
        (made / room).symlink_to(CHECKOUT / room)
    return made


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[str]:
    with head_of(home, "--num-cpus=3") as head:
        yield head.address


_MEMBER = """
import os, pathlib, sys, time
from infra.gang.launcher import launcher_rank, rendezvous_address
from infra.gang.local import exit_on_stdin_close
from infra.gang.messages import ProgressWriter, read_message, write_exit_code, write_message
from infra.progress import Progress
place = sys.argv[1]
rank = launcher_rank(os.environ)
exit_on_stdin_close(17)
write_message(place, f"pid-{rank}", str(os.getpid()))
write_message(place, f"is-{rank}", f"{rendezvous_address(place, rank, 60)} {os.environ['NPROC']}")
if rank == 0:
    ProgressWriter(place).write(Progress(done=1, total=2))
while read_message(place, "end") is None:
    time.sleep(0.1)
write_exit_code(place, rank, 0)
"""


_LEAVES = """
import os, signal, sys, time
from infra.gang.launcher import launcher_rank
from infra.gang.local import exit_on_stdin_close
from infra.gang.messages import PREEMPTED, write_exit_code, read_message, write_message
place, rank = sys.argv[1], launcher_rank(os.environ)
exit_on_stdin_close(17)
signal.signal(signal.SIGTERM, lambda *_: write_message(place, "notice", str(rank)))
write_message(place, f"at-{rank}", os.environ["WHOSE"])
while read_message(place, "notice") is None:
    time.sleep(0.1)
write_exit_code(place, rank, PREEMPTED)
os._exit(PREEMPTED)
"""


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; a zombie, whose parent may be gone too, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.deep
def test_members_learn_their_ranks_and_begin_again_together(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    places = []

    def start(place: str) -> LauncherGang:
        places.append(place)
        command = ["python", "-c", _MEMBER, place]
        return LauncherGang("ray --cpus 1", command, 2, place, tmp_path / "logs")

    pids: list[int] = []

    def kill_second() -> None:
        until = time.monotonic() + 300
        # Of the gang that has begun: on a busy machine Ray may fail to start the first one.
        while not places or read_message(places[-1], "is-1") is None:
            assert time.monotonic() < until, "no gang began"
            time.sleep(0.05)
        place = places[-1]
        pids.extend(int(read_message(place, f"pid-{rank}") or 0) for rank in (0, 1))
        os.kill(pids[1], 9)
        while places[-1] == place:
            assert time.monotonic() < until, "no gang began again"
            time.sleep(0.05)
        write_message(places[-1], "end", "")

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_second)
        progress = [*supervise(start, str(tmp_path / "gang"), tmp_path / "logs")]
        killed.result()
    lost = [one.note for one in progress if one.happened]
    assert "rank 1 ended with -9" in lost[-1]
    assert not any(map(is_alive, pids))
    assert len(places) == len(lost) + 1
    words = [read_message(places[-1], f"is-{rank}") for rank in (0, 1)]
    assert words[0] == words[1]
    assert words[0] is not None
    assert words[0].endswith(" 1")
    assert not words[0].startswith("127.0.0.1:")


@pytest.mark.deep
def test_members_end_with_their_launcher(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    place = str(tmp_path / "0")
    gang = LauncherGang("ray", ["python", "-c", _MEMBER, place], 2, place, tmp_path)
    deadline = time.monotonic() + 90
    while read_message(place, "is-1") is None:
        assert time.monotonic() < deadline, (tmp_path / "launcher.log").read_text()
        assert gang.exit_codes() == {LAUNCHER: None}, (tmp_path / "launcher.log").read_text()
        time.sleep(0.1)
    pids = [int(read_message(place, f"pid-{rank}") or 0) for rank in (0, 1)]
    gang.kill()
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, pids))


@pytest.mark.deep
def test_more_than_there_is_room_for_is_a_line(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster)

    def start(place: str) -> LauncherGang:
        words = "ray --cpus 2 --wait 2"
        return LauncherGang(words, ["python", "-c", _MEMBER, place], 2, place, tmp_path / "logs")

    told = "room for 1 processes with 2 CPU each, of 2, beside the step's own core"
    with pytest.raises(GangFailedError, match=told):
        list(supervise(start, str(tmp_path / "gang"), tmp_path / "logs"))


@pytest.mark.deep
def test_half_of_the_members_start_where_fewer_may(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    place = str(tmp_path / "0")
    words = "ray --fewer --cpus 2 --wait 2"  # The node has room for one of these.
    gang = LauncherGang(words, ["python", "-c", _SIZE, place], 4, place, tmp_path)
    log = tmp_path / "launcher.log"
    wait_for(lambda: {rank for rank, code in gang.exit_codes().items() if code == 0}, 2, log)
    gang.kill()
    assert [read_message(place, f"of-{rank}") for rank in range(2)] == ["1", None]
    assert "1 of 4 processes: no more nodes came in 2 s" in log.read_text()


@pytest.mark.deep
def test_a_node_that_is_to_go_gives_its_member_notice(
    cluster: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    words = (f"--address={cluster}", "--node-ip-address=127.0.0.3", "--num-cpus=2")
    place = str(tmp_path / "0")
    second = node(home, *words, WHOSE="the second node's")
    gang = None
    try:
        # The first node has room for one of these, beside the step's core.
        command = ["python", "-c", _LEAVES, place]
        gang = LauncherGang("ray --cpus 2 --wait 20", command, 2, place, tmp_path)
        log = tmp_path / "launcher.log"
        wait_for(lambda: {read_message(place, f"at-{rank}") for rank in (0, 1)} - {None}, 2, log)
        drain(cluster, "127.0.0.3")
        wait_for(lambda: {r for r, c in gang.exit_codes().items() if c == PREEMPTED}, 3, log)
        notice = read_message(place, "notice")
        assert read_message(place, f"at-{notice}") == "the second node's"
    finally:
        if gang is not None:
            gang.kill()
        end_family(psutil.Process(second.pid))


_SIZE = """
import os, sys
from infra.gang.launcher import SIZE, launcher_rank
from infra.gang.messages import write_exit_code, write_message
place, rank = sys.argv[1], launcher_rank(os.environ)
write_message(place, f"of-{rank}", os.environ[SIZE])
write_exit_code(place, rank, 0)
"""


_OF_SLICE = """
import os, sys
from infra.gang.launcher import launcher_rank
from infra.gang.messages import write_exit_code, write_message
place, rank = sys.argv[1], launcher_rank(os.environ)
names = ("TPU_NAME", "MEGASCALE_SLICE_ID", "MEGASCALE_NUM_SLICES", "MEGASCALE_COORDINATOR_ADDRESS")
write_message(place, f"of-{rank}", " ".join(os.environ.get(name, "none") for name in names))
write_exit_code(place, rank, 0)
"""


@pytest.mark.night
def test_members_on_two_tpu_slices_learn_of_both(
    cluster: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    place, hosts = str(tmp_path / "0"), []
    try:
        for number, (name, worker) in enumerate([("l", 0), ("r", 0), ("l", 1), ("r", 1)]):
            # As GKE tells a host of its slice; the chips are said to be there.
            words = (f"--address={cluster}", f"--node-ip-address=127.0.0.{4 + number}")
            told = {
                "TPU_NAME": name,
                "TPU_WORKER_ID": str(worker),
                "TPU_ACCELERATOR_TYPE": "v4-16",
                "TPU_TOPOLOGY": "2x2x2",
                "MEGASCALE_NUM_SLICES": "9",
            }
            chips = {"TPU": 4} | ({} if worker else {"TPU-v4-16-head": 1})
            own = ("--num-cpus=2", f"--resources={json.dumps(chips)}")
            hosts.append(node(home, *words, *own, **told))
        launcher = "ray --gpus 4 --topology 2x2x2 --accelerator TPU-V4 --wait 20"
        gang = LauncherGang(launcher, ["python", "-c", _OF_SLICE, place], 4, place, tmp_path)
        log = tmp_path / "launcher.log"
        wait_for(lambda: {rank for rank, code in gang.exit_codes().items() if code == 0}, 5, log)
        found = [str(read_message(place, f"of-{rank}")).split() for rank in range(4)]
        with pytest.raises(GangFailedError, match="multiple of 2, "):
            list(
                supervise(
                    lambda at: LauncherGang(launcher, ["python"], 3, at, tmp_path / "3"),
                    str(tmp_path / "three"),
                    tmp_path / "3",
                )
            )
    finally:
        for one in hosts:
            end_family(psutil.Process(one.pid))
    assert [name for name, *_ in found] in (["l", "l", "r", "r"], ["r", "r", "l", "l"])
    assert [number for _, number, *_ in found] == ["0", "0", "1", "1"]
    assert {(size, address) for *_, size, address in found} == {("2", found[0][3])}
    assert found[0][3] in [f"127.0.0.{number}" for number in range(4, 8)]


def wait_for(look: Callable[[], set], size: int, log: Path) -> None:
    deadline = time.monotonic() + 90
    while len(look()) < size:
        assert time.monotonic() < deadline, f"{look()} {log.read_text()}"
        time.sleep(0.1)


def drain(cluster: str, address: str) -> None:
    """Tells a cluster that a node is to be taken away, as an autoscaler does."""
    script = (
        "import ray, subprocess, sys; ray.init(sys.argv[1], log_to_driver=False); "
        "print(*(n['NodeID'] for n in ray.nodes() if n['NodeManagerAddress'] == sys.argv[2]))"
    )
    asked = [sys.executable, "-c", script, cluster, address]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[-1]
    words = [
        "drain-node", "--address", cluster, "--node-id", found, "--reason",
        "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "its time is over",
        "--deadline-remaining-seconds", "600",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "ray.scripts.scripts", *words], check=True)
