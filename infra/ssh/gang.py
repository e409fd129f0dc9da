"""Starts the members of a gang on the hosts of TPU VMs by ssh, as `srun` does on hosts of Slurm.

    python -m infra.ssh.gang --name NAME --zone ZONE -n 4 python -m …

`gcloud` says which hosts a TPU VM has; rank i runs on its worker i, whose chips libtpu numbers the
same way. A member sees the same as under any other launcher (see `infra.gang.launcher`): its rank
in the environment, and an input that closes when its starter ends.

ssh starts `infra.ssh.host` on each host, and nothing else: what to run there, and in which
environment, goes through the connection and not through a command line, where every user of the
host would see it and a shell would read it.
"""

import argparse
import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from infra.gang.launcher import ADDRESS, MPI_RANK
from infra.ray.devices import slice_environment, worker_environment
from infra.ssh.host import PREEMPTION, READY
from infra.ssh.tpu_vm import Host, LaunchError, hosts_of, ready_node
from infra.store.environment import package_versions
from infra.store.variables import recorded_variables

_CONNECT_TIMEOUT = 10
"""Longest wait for a host to answer once [s]; it is asked again until `--wait` is over."""
_HEARTBEAT = 5.0
"""Interval between two signs of life to every host [s]."""
_SILENCE = 60.0
"""A host that hears none for this long ends its member [s]."""
_END_TIMEOUT = 8.0
"""Time for members to end when their inputs close, before the connections are killed [s]."""
_POLL_INTERVAL = 0.05
"""Interval between two looks at the members [s]."""
_SSH_FAILED = 255
"""Exit code of ssh where the connection failed, and not the command."""


def main() -> None:
    """Starts the members, and waits for them; exits with the code of one that failed, or 0."""
    try:
        args = _parse_ssh_gang_arguments(sys.argv[1:])
        nodes = [ready_node(name, args.zone, args.project, args.wait) for name in args.name]
        hosts = hosts_of(nodes, args.internal_ip)
        if args.n != len(hosts):
            raise LaunchError(
                f"compute.processes_per_stage and processes_per_cell must be {len(hosts)}, the "
                f"hosts of {' and '.join(args.name)}, or 1; got {args.n}."
            )
        members = [_Member(rank, host, args) for rank, host in enumerate(hosts)]
        code = _supervise_ssh_members(
            members, [request_for(rank, hosts, args) for rank in range(args.n)]
        )
    except LaunchError as error:
        sys.exit(str(error))  # With code 1, and the error as the last line of the log.
    sys.exit(code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"launcher tpu-vm: {message}; its options are {_OPTIONS}.")


_OPTIONS = (
    "--name NAME … --zone ZONE [--project PROJECT] [--internal-ip] [--python PATH] [-o OPTION …]"
)


def check_options(options: str) -> None:
    """Refuses options that no launcher could be started with.

    Args:
      options: what a config has after the launcher's name.

    Raises:
      LaunchError: if one is missing or not known.
    """
    try:
        words = shlex.split(options)
    except ValueError as error:
        _Parser().error(str(error))
    if command := _parse_ssh_gang_arguments(words).command:
        _Parser().error(f"unknown option: {command[0]}")


def _parse_ssh_gang_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("--name", nargs="+", required=True, help="TPU VMs, each of them a slice")
    parser.add_argument("--zone", required=True)
    parser.add_argument("--project", help="default: that of gcloud")
    parser.add_argument(
        "--internal-ip", action="store_true", help="reach hosts at their internal addresses"
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="path on every host, from the home folder on; default: the path of this one",
    )
    parser.add_argument(
        "-o", action="append", default=[], help="option of ssh, such as User=me; may be repeated"
    )
    parser.add_argument("--cpus", type=int, default=1, help="cores of each member")
    parser.add_argument("--gpus", type=int, default=0, help="chips of each host; 0: the CPU alone")
    parser.add_argument("--wait", type=float, default=900.0, help="longest wait for a host [s]")
    parser.add_argument("-n", type=int, default=1, help="members")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="command of each member, from `python` on"
    )
    return parser.parse_args(words)


def ssh_command(host: Host, args: argparse.Namespace) -> list[str]:
    """Returns the command that starts `infra.ssh.host` on a host."""
    # ssh takes the first value of an option, so the user's win. The key is the one that gcloud
    # makes and that TPU VMs know. A host's own key is unknown when it first answers, and must stay
    # the same afterwards, as with gcloud.
    options = [
        *args.o,
        "BatchMode=yes",  # A password is never asked for.
        f"ConnectTimeout={_CONNECT_TIMEOUT}",
        f"ConnectionAttempts={max(1, math.ceil(args.wait / _CONNECT_TIMEOUT))}",
        "ServerAliveInterval=10",
        "IdentityFile=~/.ssh/google_compute_engine",
        "UserKnownHostsFile=~/.ssh/google_compute_known_hosts",
        "StrictHostKeyChecking=accept-new",
        f"HostKeyAlias={host.alias}",
        "LogLevel=ERROR",
    ]
    # ssh starts in the home folder. The shell there gets this one line, and no value in it but the
    # path.
    python = shlex.quote(args.python.removeprefix("~/"))
    return [
        *("ssh", "-T", *(word for option in options for word in ("-o", option))),
        *(host.ssh_address, f"{python} -P -m infra.ssh.host"),
    ]


def request_for(rank: int, hosts: Sequence[Host], args: argparse.Namespace) -> dict[str, Any]:
    """Returns the command and environment of a member, as `infra.ssh.host` reads them."""
    host, num_slices = hosts[rank], hosts[-1].slice + 1
    return {
        "command": args.command[1:],
        "environment": {
            # Nothing else of this process's environment, which may hold secrets, but "variables": a
            # host has its own way to the store.
            **worker_environment(args.cpus, 0, args.gpus, {}),
            **slice_environment(hosts[0].address, num_slices, host.slice),
            MPI_RANK: str(rank),
            ADDRESS: host.address,
        },
        "variables": recorded_variables(os.environ),
        "packages": package_versions(),
        "silence": _SILENCE,
    }


class _Member:
    """A member, and the connection to its host."""

    def __init__(self, rank: int, host: Host, args: argparse.Namespace) -> None:
        self._name = f"rank {rank} on {host.ssh_address}"
        self._python = args.python
        self._is_ready, self._last_line = False, ""
        self._ssh = subprocess.Popen(
            ssh_command(host, args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._output = threading.Thread(target=self._print_output, args=(rank,), daemon=True)
        self._output.start()

    def _print_output(self, rank: int) -> None:
        """Prints what the member prints; what came before it is kept for an error only."""
        assert self._ssh.stdout is not None
        for line in self._ssh.stdout:
            if self._is_ready:
                sys.stdout.buffer.write(f"rank {rank}: ".encode() + line)
                sys.stdout.flush()
            self._is_ready = self._is_ready or line.rstrip() == READY.encode()
            self._last_line = line.decode(errors="replace").strip() or self._last_line

    def send(self, line: str) -> None:
        """Sends a line to the host; one whose connection is lost is noticed by `exit_code`."""
        assert self._ssh.stdin is not None
        with contextlib.suppress(OSError):
            self._ssh.stdin.write(f"{line}\n".encode())
            self._ssh.stdin.flush()

    def exit_code(self) -> int | None:
        """Returns how the member ended, as a shell gives it; None while it lives."""
        code = self._ssh.poll()
        return 128 - code if code is not None and code < 0 else code  # ssh itself may be killed.

    def close(self) -> None:
        """Closes the input, at which the host ends the member."""
        assert self._ssh.stdin is not None
        with contextlib.suppress(OSError):
            self._ssh.stdin.close()

    def wait(self, deadline: float) -> None:
        """Waits until the connection has ended; kills it after a deadline."""
        try:
            self._ssh.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        self._output.join(1.0)

    def failure(self) -> str:
        """Returns how the member failed.

        Raises:
          LaunchError: if it was never started.
        """
        code = self.exit_code()
        if self._is_ready:
            lost = f": the connection was lost: {self._last_line}" if code == _SSH_FAILED else ""
            return f"{self._name} ended with {code}{lost}"
        if code == _SSH_FAILED:
            raise LaunchError(
                f"{self._name} cannot be reached (compute.node_wait): {self._last_line}"
            )
        if code in (126, 127):
            raise LaunchError(
                f"{self._name} has no Python {self._python}; set --python of launcher tpu-vm to "
                f"its path there."
            )
        raise LaunchError(
            f"{self._name} cannot start a member (exit code {code}): {self._last_line}"
        )


def _supervise_ssh_members(
    members: Sequence[_Member], requests: Sequence[Mapping[str, Any]]
) -> int:
    """Starts the members, and ends all when one fails or this process's starter ends.

    Returns:
      The exit code of the member that failed first; 0 if all ended well.

    Raises:
      LaunchError: if one of them cannot be started.
    """
    notices: list[int] = []
    # The handler only notes the signal: a write could interrupt another one.
    signal.signal(signal.SIGTERM, lambda number, _: notices.append(number))
    has_starter = threading.Event()
    has_starter.set()
    threading.Thread(target=_await_end_of_input, args=(has_starter,), daemon=True).start()
    for member, request in zip(members, requests, strict=True):
        member.send(json.dumps(request))
    next_beat, codes = 0.0, [member.exit_code() for member in members]
    while None in codes and not any(codes) and has_starter.is_set():
        if notices or time.monotonic() >= next_beat:
            for member in members:
                member.send(PREEMPTION if notices else "")
            notices.clear()
            next_beat = time.monotonic() + _HEARTBEAT
        time.sleep(_POLL_INTERVAL)
        codes = [member.exit_code() for member in members]
    # None can go on without the rest: the others' inputs close, and each host ends its member.
    for member in members:
        member.close()
    deadline = time.monotonic() + _END_TIMEOUT
    for member in members:
        member.wait(deadline)
    # A killed member (128 and its signal) before those that ended because of it.
    worst = max(range(len(members)), key=lambda rank: codes[rank] or 0)
    if codes[worst]:
        print(members[worst].failure(), flush=True)
    return (codes[worst] or 0) if has_starter.is_set() else 1


def _await_end_of_input(has_starter: threading.Event) -> None:
    # Not `sys.stdin`: a thread blocked in it makes Python abort at its exit.
    while os.read(0, 1024):
        continue
    has_starter.clear()


if __name__ == "__main__":
    main()
