"""Runs a member on a host that ssh reached, and ends it when the connection does.

    ssh HOST python -m infra.ssh.host

`infra.ssh.gang` starts it and writes to its input: first a line of JSON, which says what to run;
then an empty line every few seconds, or the sign of `PREEMPTION`, since ssh passes on no signals.
A connection may also be lost without a word to this side, when the other machine or the network
goes away: so the member is ended when the input closes, and also when nothing came for a while.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

from infra.gang.launcher import RANKS
from infra.store.environment import package_versions
from infra.store.variables import with_variables

READY = "infra.ssh.host: ready"
"""Line after which all output is the member's."""
PREEMPTION = "!"
"""Sign at which the member gets SIGTERM, the notice that JAX knows; one byte, so never in parts."""
_END_TIMEOUT = 5.0
"""Time for the member to end when its input closes, before it is killed [s]."""
_POLL_INTERVAL = 0.05
"""Interval between two looks at the member [s]."""


def main() -> None:
    """Runs the member; exits with its code, as a shell gives it."""
    # Unbuffered: what comes after the line is read by `os.read`.
    with open(0, "rb", buffering=0, closefd=False) as source:
        request = json.loads(source.readline())
    here = package_versions()
    differing = [
        f"{name} is {here[name]} there and {version} where the run was started"
        for name, version in request["packages"].items()
        if here.get(name, version) != version
    ]
    if differing:
        sys.exit(f"{', '.join(differing)}; install both from one constraints.txt.")
    print(READY, flush=True)
    # The settings of a multi-slice host may name other slices than this gang's.
    inherited = {
        name: value
        for name, value in with_variables(os.environ, request["variables"]).items()
        if name not in RANKS and not name.startswith("MEGASCALE_")
    }
    member = subprocess.Popen(
        [sys.executable, "-P", *request["command"]],
        stdin=subprocess.PIPE,
        env={**inherited, **request["environment"]},
    )
    signal.signal(signal.SIGTERM, lambda number, _: member.send_signal(number))
    _await_end(member, request["silence"])
    if member.stdin is not None:
        member.stdin.close()
    try:
        code = member.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        member.kill()
        code = member.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _await_end(member: subprocess.Popen[bytes], silence: float) -> None:
    """Returns when the member has ended, or must.

    Args:
      member: the member.
      silence: longest time without a word from the other side [s].
    """
    last_word = time.monotonic()
    while member.poll() is None and time.monotonic() - last_word < silence:
        if not select.select([0], [], [], _POLL_INTERVAL)[0]:
            continue
        words = os.read(0, 1024)
        if not words:
            return
        last_word = time.monotonic()
        if PREEMPTION.encode() in words:
            member.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
