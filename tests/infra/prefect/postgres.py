"""A PostgreSQL of Debian's, and a Prefect server on it that can be killed and started again."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PREFECT = str(Path(sys.executable).with_name("prefect"))


def programs() -> Path:
    """Returns where PostgreSQL's programs are; skips the test where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("no PostgreSQL: install Debian's package `postgresql`")
    return found[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Yields the address of an empty database of a PostgreSQL on loopback [SQLAlchemy URL]."""
    binaries, port = programs(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    # It refuses to run as root; Debian's package brings a user for it.
    is_root = os.getuid() == 0
    if is_root:
        shutil.chown(folder, "postgres", "postgres")
    user = ["runuser", "-u", "postgres", "--"] if is_root else []

    def run(program: str, *words: str) -> None:
        command: Sequence[str] = [*user, str(binaries / program), *words]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120)

    data = str(folder / "data")
    run("initdb", "-D", data, "-U", "prefect", "-A", "trust", "--no-sync")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c fsync=off -k {folder}"
    try:
        run("pg_ctl", "-D", data, "-w", "-o", options, "-l", str(folder / "log"), "start")
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


class PrefectServer:
    """`prefect server start`, on a database and a port that stay when it is killed.

    Args:
      database: its address [SQLAlchemy URL].
      home: Prefect's own folder.
    """

    def __init__(self, database: str, home: Path) -> None:
        self.port = free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self._home, self._database = home, database
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        self._home.mkdir(parents=True, exist_ok=True)
        with (self._home / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(self.port)],
                env=kept
                | {
                    "PREFECT_HOME": str(self._home),
                    "PREFECT_SERVER_DATABASE_CONNECTION_URL": self._database,
                    "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
                    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                    "DO_NOT_TRACK": "1",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 180
        while not self._answers():
            assert self._process.poll() is None, (self._home / "server.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.5)

    def kill(self) -> None:
        """Ends it and all it started, as `kill -9` does."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.api}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False
