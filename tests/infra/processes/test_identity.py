"""Whether a process runs: certain where it is seen, and unknown where it is not."""

import ctypes
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.processes.identity import NOBODY, ProcessIdentity
from tests.several_users import FIRST, SECOND, SharedMachine, line_of, shared_machine

NOTE = """
import dataclasses, json, sys, time
from infra.processes.identity import ProcessIdentity
print(json.dumps(dataclasses.asdict(ProcessIdentity.of_this_process())), flush=True)
time.sleep(600)
"""
ASK = """
import json, sys
from infra.processes.identity import ProcessIdentity
for text in sys.argv[1:]:
    print(ProcessIdentity.read(json.loads(text)).state)
"""


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], ProcessIdentity]]:
    process = subprocess.Popen(
        [sys.executable, "-c", NOTE],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    yield process, ProcessIdentity.read(json.loads(line_of(process)))
    process.kill()
    process.communicate()


def test_a_process_runs_until_it_is_killed(other: tuple[subprocess.Popen[str], ProcessIdentity]):
    process, identity = other
    assert identity.state == "running"
    assert ProcessIdentity.of_this_process().state == "running"
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert identity.state == "ended"  # Though nobody has waited for it.
    process.wait()
    assert identity.state == "ended"


def test_a_later_process_with_the_same_pid_is_another_one():
    here = ProcessIdentity.of_this_process()
    assert dataclasses.replace(here, began=here.began - 1).state == "ended"


@pytest.mark.parametrize("pid", [2**22 + 1, 2**31, 2**70])
def test_a_pid_that_no_process_can_have_is_that_of_none(pid: int):
    assert dataclasses.replace(ProcessIdentity.of_this_process(), pid=pid).state == "ended"


def test_what_runs_elsewhere_is_unknown():
    here = ProcessIdentity.of_this_process()
    assert dataclasses.replace(here, machine="another boot").state == "unknown"
    assert NOBODY.state == "unknown"


def test_a_process_may_have_any_name():
    libc = ctypes.CDLL(None)
    before, after = ctypes.create_string_buffer(16), b"gr\xc3) R 1 \xff"
    libc.prctl(16, before)  # PR_GET_NAME
    here = ProcessIdentity.of_this_process()
    libc.prctl(15, after)  # PR_SET_NAME, of this thread
    try:
        assert here.state == "running"
        assert ProcessIdentity.of_this_process() == here
    finally:
        libc.prctl(15, before)


def test_a_note_of_an_earlier_version_is_understood(
    other: tuple[subprocess.Popen[str], ProcessIdentity],
):
    process, identity = other
    began = psutil.Process(process.pid).create_time()
    note = {"pid": process.pid, "began": began, "host": os.uname().nodename}
    assert ProcessIdentity.read(note) == identity
    assert ProcessIdentity.read(note | {"began": began - 60}).state == "ended"
    assert ProcessIdentity.read(note | {"host": "another"}).state == "unknown"
    process.kill()
    process.wait()
    assert ProcessIdentity.read(note).state == "ended"


@pytest.mark.parametrize(
    "wrong",
    [{}, {"pid": "7"}, {"pid": None}, {"host": 7}, {"machine": None}, {"began": "long ago"}],
)
def test_what_is_no_process_is_refused(wrong: dict[str, object]):
    values = vars(ProcessIdentity.of_this_process()) | wrong
    if not wrong:
        del values["pid"]
    with pytest.raises((KeyError, TypeError, ValueError)):
        ProcessIdentity.read(values)


def notes_of(machine: SharedMachine) -> tuple[subprocess.Popen[str], list[str]]:
    """A process of the first user, and the notes of it and of others."""
    process = machine.python(FIRST, NOTE)
    note = line_of(process)
    values = json.loads(note)
    earlier = {"pid": process.pid, "host": os.uname().nodename}
    earlier["began"] = psutil.Process(process.pid).create_time()
    reused = values | {"began": values["began"] - 1}
    none = values | {"pid": 2**22 + 1}
    return process, [note, *map(json.dumps, (earlier, reused, none))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidepid", "seen"),
    [
        (0, ["running", "running", "ended", "ended"]),
        # Nobody can tell whether a hidden process is the one that was noted.
        (1, ["unknown", "unknown", "unknown", "ended"]),
        (2, ["unknown", "unknown", "unknown", "ended"]),
        (4, ["unknown", "unknown", "unknown", "ended"]),
    ],
)
def test_another_users_process_may_be_running_where_it_is_hidden(hidepid: int, seen: list[str]):
    with shared_machine(hidepid) as machine:
        process, notes = notes_of(machine)
        ask = (sys.executable, "-c", ASK, *notes)
        assert machine.run(SECOND, *ask).split() == seen
        # Who may see it is as certain as everywhere.
        for uid in (FIRST, 0):
            assert machine.run(uid, *ask).split() == ["running", "running", "ended", "ended"]
        process.kill()
        process.wait()
        assert machine.run(SECOND, *ask).split() == ["ended"] * 4


@pytest.mark.slow
def test_a_proc_of_another_process_space_tells_nothing_of_this_one():
    # Processes of a pid namespace that see the /proc of the machine, where their pids are others'.
    code = f"""
import dataclasses, os, subprocess, sys
from infra.processes.identity import ProcessIdentity
here = ProcessIdentity.of_this_process()
assert os.getpid() == 1 and here.machine
child = subprocess.Popen([sys.executable, "-c", {NOTE!r}], stdout=subprocess.PIPE, text=True)
note = child.stdout.readline()
import json
of_child = ProcessIdentity.read(json.loads(note))
print(here.state, of_child.state)
child.kill(); child.wait()
print(of_child.state, of_child.machine == here.machine)
"""
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    if "unshare" in done.stderr:
        pytest.skip(f"namespaces need root here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["unknown", "unknown", "ended", "True"]
