"""A call in a child process: its output and its answer come out here, and its end is ours."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from infra.errors import ConfigError
from infra.processes.child import call_in_child

ROOT = Path(__file__).parents[3]


def add(left: int, right: int) -> int:
    print("left is", left, "and ünï\ud800")
    print("right is", right, file=sys.stderr)
    return left + right


def surroundings() -> dict[str, object]:
    try:
        asyncio.get_running_loop()
        loop = True
    except RuntimeError:
        loop = False
    return {
        "pid": os.getpid(),
        "argv": sys.argv,
        "backend": os.environ["MPLBACKEND"],
        "color": os.environ.get("FORCE_COLOR"),
        "loop": loop,
        "main": threading.current_thread() is threading.main_thread(),
        "folder": os.getcwd(),
        "file": sys.stdout.fileno(),
    }


def refuse() -> None:
    raise ConfigError("seeds must be at least 1, got 0.")


class OddError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail_oddly() -> None:
    raise OddError(1, 2)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave_a_process_that_keeps_the_output() -> int:
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


def wait_long(note: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(note).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def test_what_it_prints_and_returns_comes_out_here(capsys: pytest.CaptureFixture[str]):
    assert call_in_child(["add"], add, 2, right=3) == 5
    printed = capsys.readouterr()
    assert printed.out == "left is 2 and ünï\\ud800\n"
    assert "right is 3\n" in printed.err


def test_it_has_a_process_of_its_own_wherever_it_is_called_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.chdir(tmp_path)

    async def notebook() -> dict[str, object]:
        return call_in_child(["parcel.run", "two words"], surroundings)

    found = asyncio.run(notebook())
    assert found.pop("pid") != os.getpid()
    assert found == {
        "argv": ["parcel.run", "two words"],
        "backend": "agg",
        "color": None,
        "loop": False,
        "main": True,
        "folder": str(tmp_path),
        "file": 1,
    }
    assert os.environ["MPLBACKEND"].startswith("module://")


def test_its_error_is_raised_here():
    with pytest.raises(ConfigError, match=r"^seeds must be at least 1, got 0\.$"):
        call_in_child(["refuse"], refuse)
    # One that cannot be made again from its arguments.
    with pytest.raises(RuntimeError, match=r"^1 and 2$"):
        call_in_child(["odd"], fail_oddly)


def test_an_end_without_an_answer_is_an_error():
    with pytest.raises(RuntimeError, match=r"^parcel\.run x ended with code -9\.$"):
        call_in_child(["parcel.run", "x"], die)


def test_what_it_leaves_behind_keeps_nobody_waiting_and_ends(capsys: pytest.CaptureFixture[str]):
    began = time.monotonic()
    pid = call_in_child(["leave"], leave_a_process_that_keeps_the_output)
    assert time.monotonic() - began < 60
    wait_until_gone(pid)


CALLER = """
import sys, time
from infra.processes.child import call_in_child
from tests.infra.processes.test_child import wait_long
try:
    call_in_child(["wait"], wait_long, sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(600)
"""


def caller_of(note: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that waits in a call; it, and the pids of the child and of the child's child."""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(note)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    deadline = time.monotonic() + 60
    while not (note.exists() and len(note.read_text().split()) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return caller, [int(word) for word in note.read_text().split()]


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupt_ends_the_child_and_not_its_caller(tmp_path: Path):
    caller, pids = caller_of(tmp_path / "note")
    caller.send_signal(signal.SIGINT)
    assert caller.stdout is not None
    assert caller.stdout.readline() == "interrupted\n"
    wait_until_gone(*pids)
    assert caller.poll() is None
    caller.kill()
    caller.communicate()


def test_the_end_of_its_caller_is_its_own(tmp_path: Path):
    caller, pids = caller_of(tmp_path / "note")
    caller.kill()
    caller.communicate()
    wait_until_gone(*pids)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
