"""A shifted clock: waits until one of its times last as long as with the kernel's clock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificate.shim import Shim, compile_shim

WAITS = """
import ctypes, sys, time
class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
libc = ctypes.CDLL(None)
def until(seconds):
    at = time.time_ns() + int(seconds * 1e9)
    return ctypes.byref(Time(at // 10**9, at % 10**9))
word = ctypes.c_uint(0)
cond, mutex, semaphore = (ctypes.create_string_buffer(64) for _ in range(3))
libc.pthread_mutex_lock(mutex)
futex, wait_bitset_realtime = 202, 9 | 128 | 256
waits = {
    "futex": lambda: libc.syscall(
        ctypes.c_long(futex), ctypes.byref(word), ctypes.c_long(wait_bitset_realtime),
        ctypes.c_long(0), until(0.3), ctypes.c_long(0), ctypes.c_long(0xFFFFFFFF)),
    "condition": lambda: libc.pthread_cond_timedwait(cond, mutex, until(0.3)),
    "semaphore": lambda: libc.sem_timedwait(semaphore, until(0.3)),
}
print(time.time())
for name, wait in waits.items():
    begun = time.monotonic()
    wait()
    print(name, time.monotonic() - begun)
"""


@pytest.mark.parametrize("ahead", [0.0, -3600.0, 3600.0])
def test_waits_last_as_long_whatever_the_shift(ahead: float, tmp_path: Path):
    if (library := compile_shim(tmp_path)) is None:
        pytest.skip("no C compiler (cc): it makes what strikes disks and clocks")
    if os.uname().machine != "x86_64":
        pytest.skip("the number of a system call is that of x86_64")
    (tmp_path / "shim").mkdir()
    shim = Shim(library, tmp_path / "store", tmp_path / "shim")
    shim.set_clock_ahead(ahead)
    done = subprocess.run(
        [sys.executable, "-c", WAITS],
        env={**os.environ, **shim.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    now, *waits = done.stdout.splitlines()
    assert (shim.clock_calls > 0) == (ahead != 0), now
    assert [wait.split()[0] for wait in waits] == ["futex", "condition", "semaphore"]
    assert all(float(wait.split()[1]) > 0.25 for wait in waits), done.stdout
