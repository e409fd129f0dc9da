"""A gang on hosts that ssh reaches: what runs there, how it ends, and what a user is told.

The hosts are two addresses of a real sshd on loopback; what gcloud says of a TPU VM is given, but
for one test that asks gcloud itself, with a server on loopback in the place of the Cloud TPU API.
"""

import argparse
import contextlib
import http.server
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.gang.launcher import LauncherGang
from infra.gang.supervise import GangFailedError, supervise
from infra.ssh.gang import check_options, request_for
from infra.ssh.tpu_vm import LaunchError, hosts_of
from tests.infra.ssh.sshd import HOSTS, ROOT, gcloud, node, sshd
from tests.processes import command_line

pytestmark = pytest.mark.slow

HELLO = """
import json, os, sys
names = ("PMI_RANK", "PARCEL_ADDRESS", "JAX_PLATFORMS", "NPROC", "MY_SECRET")
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]), flush=True)
"""

LEAVES = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(143))\n"


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sshd(tmp_path_factory.mktemp("sshd")) as options:
        yield options


class Launcher(subprocess.Popen[bytes]):
    """A launcher that was started, with its output in a file."""

    def __init__(self, log: Path, command: list[str], environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as out:
            super().__init__(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment
            )

    def ended(self) -> tuple[int, list[str]]:
        """Waits; returns the exit code, and the lines of the output."""
        code = self.wait(60)
        return code, self._log.read_text().splitlines()


@pytest.fixture
def start(launcher: str, tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Starts a member on each host of a TPU VM."""
    launchers: list[Launcher] = []

    def starts(
        code: str, *words: str, options: str = "", external: tuple[str, ...] = HOSTS, size: int = 2
    ) -> Launcher:
        environment = {**gcloud(tmp_path / "bin", node(*external)), "MY_SECRET": "hunter2"}
        own = shlex.split(f"{launcher} {options}")[1:]
        member = ["python", "-c", code, *words]
        command = [sys.executable, "-m", "infra.ssh.gang", *own, "-n", str(size), *member]
        launchers.append(Launcher(tmp_path / "log", command, environment))
        return launchers[-1]

    yield starts
    for process in launchers:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to this"
        time.sleep(0.02)


def waits(folder: Path) -> str:
    """Code of a member that notes its process, and ends with its input as members do."""
    return f"""if True:
        import os, pathlib, time
        from infra.gang.local import exit_on_stdin_close
        from infra.gang.messages import PEER_LOST, write_message
        exit_on_stdin_close(PEER_LOST)
        write_message({str(folder)!r}, os.environ["PMI_RANK"], str(os.getpid()))
        time.sleep(600)"""


def started(folder: Path) -> list[psutil.Process]:
    """Waits for two members; returns their processes, by rank."""
    files = [folder / "0", folder / "1"]
    wait_for(lambda: all(file.exists() for file in files))
    return [psutil.Process(int(file.read_text())) for file in files]


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # It went between the two questions.
        return True


def test_each_host_runs_the_member_of_its_number(start: Callable[..., Launcher], tmp_path: Path):
    hostile = f"$(touch {tmp_path}/made) `touch {tmp_path}/made`; touch {tmp_path}/made 'a\"b'"
    process = start(HELLO, hostile, "--zone", options="--wait 0 --internal-ip")
    # Internal addresses: 127.0.1.0 and 127.0.1.1, where no sshd listens.
    code, out = process.ended()
    assert code == 1
    assert re.match(r"rank ([01]) on 127.0.1.\1 cannot be reached", out[0])
    code, out = start(HELLO, hostile, "--zone", options="--cpus 3").ended()
    assert code == 0, out
    lines = dict(line.split(": ", 1) for line in out)
    for rank in (0, 1):
        words, variables = json.loads(lines[f"rank {rank}"])
        assert words == [hostile, "--zone"]
        assert variables == {
            "PMI_RANK": str(rank),
            "PARCEL_ADDRESS": f"127.0.1.{rank}",
            "JAX_PLATFORMS": "cpu",
            "NPROC": "3",
            "MY_SECRET": None,
        }
    assert not (tmp_path / "made").exists()
    words = (tmp_path / "bin/words").read_text().split()
    assert words == shlex.split(
        "compute tpus tpu-vm describe pod --zone=us-central2-b --format=json"
    )


def test_a_killed_member_ends_the_others_and_is_named(
    start: Callable[..., Launcher], tmp_path: Path
):
    process = start(waits(tmp_path))
    members = started(tmp_path)
    # Nothing of the member's command is on the command line of ssh.
    connections = [command_line(child) for child in psutil.Process(process.pid).children()]
    assert [line.endswith(f"{sys.executable} -P -m infra.ssh.host") for line in connections] == [
        True,
        True,
    ]
    members[1].kill()
    code, out = process.ended()
    assert code == 137
    assert out[-1] == "rank 1 on 127.0.0.2 ended with 137"
    assert is_gone(members[0])


@pytest.mark.parametrize("end", ["input", "launcher", "connection", "host"])
def test_members_end_with_what_they_are_watched_by(
    end: str, start: Callable[..., Launcher], tmp_path: Path
):
    process = start(waits(tmp_path))
    members = started(tmp_path)
    connections = psutil.Process(process.pid).children()
    if end == "input":
        assert process.stdin is not None
        process.stdin.close()
    elif end == "launcher":
        process.kill()
    else:
        # Of one member alone; the other one ends because of it.
        one = connections[1] if end == "connection" else members[1].parent()
        assert one is not None
        one.kill()
    wait_for(lambda: all(map(is_gone, members)))
    assert process.wait(30) != 0
    wait_for(lambda: all(map(is_gone, connections)))


def test_a_host_that_hears_nothing_more_ends_its_member(tmp_path: Path):
    host = subprocess.Popen(
        [sys.executable, "-m", "infra.ssh.host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    request = {
        "command": ["-c", "import time; time.sleep(600)"],
        "environment": {},
        "variables": {},
        "packages": {},
        "silence": 1.0,
    }
    assert host.stdin is not None
    host.stdin.write(json.dumps(request).encode() + b"\n")
    host.stdin.flush()
    # Its input stays open, as that of a connection whose other side has vanished; the member does
    # not look at its own, so it is killed.
    assert host.wait(60) == 137
    host.stdin.close()
    assert host.stdout is not None
    host.stdout.close()


def test_a_preemption_reaches_all_members(start: Callable[..., Launcher], tmp_path: Path):
    process = start(f"{LEAVES}{waits(tmp_path)}")
    members = started(tmp_path)
    process.send_signal(signal.SIGTERM)
    code, out = process.ended()
    assert code == 143, out
    assert all(map(is_gone, members))


def test_a_host_that_is_told_to_end_tells_its_member(
    start: Callable[..., Launcher], tmp_path: Path
):
    process = start(f"{LEAVES}{waits(tmp_path)}")
    parent = started(tmp_path)[1].parent()
    assert parent is not None
    assert command_line(parent).endswith("infra.ssh.host")
    parent.terminate()
    code, out = process.ended()
    assert code == 143, out
    assert out[-1] == "rank 1 on 127.0.0.2 ended with 143"


@pytest.mark.parametrize(
    ("options", "external", "size", "said"),
    [
        ("--wait 0", (HOSTS[0], "127.0.0.3"), 2,
         r"rank 1 on 127.0.0.3 cannot be reached \(compute.node_wait\): ssh: connect to host "),
        ("-o ProxyCommand=/nowhere", HOSTS, 2, "rank [01] on 127.0.0.[12] cannot be reached"),
        ("--python '/no where/python;true'", HOSTS, 2,
         "rank [01] on 127.0.0.[12] has no Python /no where/python;true; set --python of launcher"),
        ("--python /bin/false", HOSTS, 2,
         r"rank [01] on 127.0.0.[12] cannot start a member \(exit code 1\): "),
        ("", HOSTS, 3,
         "compute.processes_per_stage and processes_per_cell must be 2, the hosts of pod, or 1; "
         "got 3."),
    ],
)  # fmt: skip
def test_what_cannot_start_is_one_line(
    options: str,
    external: tuple[str, ...],
    size: int,
    said: str,
    start: Callable[..., Launcher],
):
    process = start("pass", options=options, external=external, size=size)
    code, (line,) = process.ended()
    assert code == 1
    assert re.match(said, line), line


def test_a_gang_that_cannot_start_fails_at_once(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", gcloud(tmp_path / "bin", node(*HOSTS))["PATH"])
    starts: list[str] = []

    def start(place: str) -> LauncherGang:
        starts.append(place)
        return LauncherGang(f"{launcher} --python none", ["python"], 2, place, tmp_path)

    with pytest.raises(GangFailedError, match=r": rank . on .* has no"):
        list(supervise(start, str(tmp_path / "gang"), tmp_path))
    assert len(starts) == 1


def test_a_host_with_other_versions_is_refused(tmp_path: Path):
    request = {"packages": {"jax": "0.0.1", "no-such-package": "1"}}
    done = subprocess.run(
        [sys.executable, "-m", "infra.ssh.host"],
        input=f"{json.dumps(request)}\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("jax is ")
    assert re.search(r"\b0\.0\.1 .*constraints\.txt", line)


def test_a_tpu_vm_that_is_not_ready_is_named(tmp_path: Path):
    environment = gcloud(tmp_path / "bin", node(*HOSTS, state="PREEMPTED"))
    words = ["-m", "infra.ssh.gang", "--name", "pod", "--zone", "z", "-n", "2", "python"]
    done = subprocess.run([sys.executable, *words], capture_output=True, env=environment)
    assert done.returncode == 1
    assert done.stderr == b"TPU VM pod must be READY, but is PREEMPTED.\n"
    environment["PATH"] = str(tmp_path)
    done = subprocess.run([sys.executable, *words], capture_output=True, env=environment)
    assert done.returncode == 1
    assert b"launcher tpu-vm needs gcloud where the run is started" in done.stderr


def test_hosts_are_the_first_endpoints_of_each_machine():
    described = node("34.1.0.1", "", "34.1.0.2", "")
    described["networkConfigs"] = [{"network": "first"}, {"network": "second"}]
    first, second = hosts_of([described], False)
    assert (first.ssh_address, first.address) == ("34.1.0.1", "127.0.1.0")
    assert (second.ssh_address, second.address) == ("34.1.0.2", "127.0.1.2")
    assert first.alias == "tpu.8161626364656667686-0"
    described["networkConfigs"] = []
    # The second has no external address.
    outside = [host.ssh_address for host in hosts_of([described], False)]
    assert outside == ["34.1.0.1", "127.0.1.1", "34.1.0.2", "127.0.1.3"]
    inside = [host.ssh_address for host in hosts_of([described], True)]
    assert inside == [f"127.0.1.{number}" for number in range(4)]


def test_hosts_of_several_tpu_vms_know_their_slice():
    hosts = hosts_of([node(*HOSTS), node(*HOSTS)], False)
    options = argparse.Namespace(cpus=2, gpus=4, command=["python", "-m", "flows.steps.member"])
    requests = [request_for(rank, hosts, options) for rank in range(4)]
    assert {request["environment"]["JAX_PLATFORMS"] for request in requests} == {"tpu,cpu"}
    slices = [request["environment"]["MEGASCALE_SLICE_ID"] for request in requests]
    assert slices == ["0", "0", "1", "1"]
    (first,) = {request["environment"]["MEGASCALE_COORDINATOR_ADDRESS"] for request in requests}
    assert first == "127.0.1.0"
    assert requests[3]["command"] == ["-m", "flows.steps.member"]
    with pytest.raises(LaunchError, match=r"^TPU VMs that train together .*got 2, 1\.$"):
        hosts_of([node(*HOSTS), node(HOSTS[0])], False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--name pod",
            "launcher tpu-vm: the following arguments are required: --zone; its options",
        ),
        ("pod --zone z", "launcher tpu-vm: the following arguments are required: --name, --zone"),
        ("--name pod --zone z --user me", "launcher tpu-vm: unrecognized arguments: --user"),
        ("--name pod --zone", "launcher tpu-vm: argument --zone: expected one argument"),
        ("--name 'pod", "launcher tpu-vm: No closing quotation"),
    ],
)
def test_wrong_options_are_refused(options: str, said: str):
    with pytest.raises(ValueError, match=f"^{said}"):
        check_options(options)


class _Api(http.server.BaseHTTPRequestHandler):
    """The Cloud TPU API, of one TPU VM."""

    def do_GET(self) -> None:
        found = self.path.startswith("/v2/projects/lab/locations/us-central2-b/nodes/pod?")
        answer = node("34.1.0.1") if found else {"error": {"code": 404, "message": "no such node"}}
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_gcloud_itself_describes_a_tpu_vm(tmp_path: Path):
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not installed")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CLOUDSDK_CONFIG": str(tmp_path),
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"http://127.0.0.1:{server.server_port}/",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        }
        said = {}
        for name in ("pod", "other"):
            words = f"--name {name} --zone us-central2-b --project lab -n 2 python".split()
            done = subprocess.run(
                [sys.executable, "-m", "infra.ssh.gang", *words],
                capture_output=True,
                text=True,
                env=environment,
            )
            assert done.returncode == 1
            said[name] = done.stderr
        with contextlib.suppress(OSError):
            server.shutdown()
    assert re.search("must be 1, .*got 2", said["pod"])
    assert said["other"].startswith("TPU VM other: ERROR: (gcloud.compute.tpus.tpu-vm.describe)")
    assert len(said["other"].splitlines()) == 1
