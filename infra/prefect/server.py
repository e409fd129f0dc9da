"""A Prefect server on loopback, as a child process."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

_START_TIMEOUT = 180.0
"""A loaded two-core machine takes 15-40 s to import the server [s]."""


@contextlib.contextmanager
def running_server(port: int) -> Iterator[str]:
    """Starts the server and yields its API address; ends it on the way out.

    Raises:
      RuntimeError: if it ends, or is not ready in time; its last words are in the message.
    """
    # Its module, not the `prefect` script: the environment's bin may not be on PATH.
    command = [sys.executable, "-m", "prefect", "server", "start"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        command,
        env={**os.environ, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until_ready(server, port)
        yield f"http://127.0.0.1:{port}/api"
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_ready(server: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        if server.poll() is not None:
            words = (server.stderr.read() if server.stderr else "").strip().splitlines()
            raise RuntimeError(
                f"the Prefect server ended with code {server.returncode}: "
                f"{words[-1] if words else 'no output'}; is port {port} in use?"
            )
        if _is_healthy(port):
            return
        time.sleep(0.2)
    raise RuntimeError(
        f"the Prefect server was not ready on port {port} in {_START_TIMEOUT:.0f} s."
    )


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
