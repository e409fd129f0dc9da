"""Tests that the descendants of a process end with it, orphans in other sessions included."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from infra.processes.family import MARK, family_processes
from tests.processes import command_line

FOUNDER = """
import subprocess, sys, time
from infra.processes.family import Family
Family()
{before}
# A grandchild in a session of its own, whose parent is gone: nobody's child any more.
go = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; " \
     "time.sleep(600)'], start_new_session=True, stdout=-3, stderr=-3); print(p.pid)"
done = subprocess.run([sys.executable, "-c", go], capture_output=True, text=True)
print(done.stdout.strip(), flush=True)
{after}
"""


def started(before: str = "", after: str = "time.sleep(600)") -> tuple[subprocess.Popen[str], int]:
    code = FOUNDER.format(before=before, after=after)
    # A test that ran a command in this process has made this process a founder, too.
    env = {name: value for name, value in os.environ.items() if name != MARK}
    founder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env
    )
    assert founder.stdout is not None
    return founder, int(founder.stdout.readline())


def ended(pid: int, within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def test_an_orphan_of_a_killed_founder_is_ended(tmp_path: Path):
    founder, orphan = started()
    assert psutil.pid_exists(orphan)
    children = psutil.Process(founder.pid).children()
    guardian = next(child for child in children if "family.py" in command_line(child))
    founder.kill()
    founder.wait()
    assert ended(orphan)
    assert ended(guardian.pid)


def test_so_is_that_of_a_founder_that_ends_well():
    founder, orphan = started(after="")
    assert founder.wait(20) == 0
    assert ended(orphan)


def test_a_family_within_a_family_ends_alone(tmp_path: Path):
    founder, orphan = started(
        before="import os; "
        "outer = os.environ['PARCEL_FAMILY']; Family(); "
        "assert os.environ['PARCEL_FAMILY'].startswith(outer + ':')"
    )
    outer, inner = psutil.Process(orphan).environ()[MARK].split(":")
    assert {orphan} <= {process.pid for process in family_processes(outer)}
    assert {process.pid for process in family_processes(inner)} == {orphan}
    founder.kill()
    founder.wait()
    assert ended(orphan)
