"""Starts N processes of a command, as `mpirun -n N COMMAND…` does on one host."""

import os
import signal
import subprocess
import sys

assert sys.argv[1] == "-n"
members = [
    subprocess.Popen(sys.argv[3:], env={**os.environ, "PMI_RANK": str(rank)})
    for rank in range(int(sys.argv[2]))
]
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda n, _: [member.send_signal(n) for member in members])
codes = [member.wait() for member in members]
worst = max(codes, key=abs)
sys.exit(128 - worst if worst < 0 else worst)
