"""A signal ends the process with the right code, whatever it is doing."""

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import signal, sys, threading, time
from infra.processes import signals
signals.install_signal_handlers()
signals.add_exit_hook(lambda number: print("last words", number.name, flush=True))
{more}
print("ready", flush=True)
{work}
"""
BUSY = {
    "waits for a lock": "threading.Lock().acquire() and threading.Event().wait()",
    "computes": "while True: sum(range(10_000))",
    "sits in C": "import hashlib\nwhile True: hashlib.sha256(b'0' * 10_000_000)",
    "has another handler": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    "signal.signal(signal.SIGINT, lambda *_: None)\ntime.sleep(600)\ntime.sleep(600)",
    "waits for a thread": "t = threading.Thread(target=time.sleep, args=(600,)); t.start()\n"
    "try:\n    t.join()\nexcept BaseException:\n    pass",
}


def run(work: str, more: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(work=work, more=more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    return process


@pytest.mark.parametrize("work", BUSY.values(), ids=BUSY.keys())
def test_ctrl_c_ends_it_after_its_last_words(work: str):
    process = run(work)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    words, errors = process.communicate(timeout=20)
    assert (process.returncode, words) == (130, "last words SIGINT\n")
    assert "Traceback" not in errors
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_its_last_line_names_the_signal_and_how_to_go_on(number: signal.Signals):
    process = run("time.sleep(600)", "signals.end_with('continue: parcel run demo')")
    process.send_signal(number)
    words, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (128 + number, "")
    assert words.splitlines() == [
        f"last words {number.name}",
        f"ended by {number.name}; continue: parcel run demo",
    ]


def test_sigterm_has_its_own_code():
    process = run("time.sleep(600)")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "last words SIGTERM\n"
    assert process.returncode == 143


@pytest.mark.slow
def test_a_hook_that_was_taken_off_says_nothing():
    more = "signals.add_exit_hook(lambda number: print('of a run that is over', flush=True))()"
    process = run("time.sleep(600)", more)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "last words SIGTERM\n"


@pytest.mark.slow
def test_last_words_that_never_end_are_cut_off():
    process = run("time.sleep(600)", "signals.add_exit_hook(lambda number: time.sleep(600))")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_them():
    process = run("time.sleep(600)", "signals.add_exit_hook(lambda number: time.sleep(600))")
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert time.monotonic() - began < 1
