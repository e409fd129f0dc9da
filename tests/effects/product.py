"""The product as its users have it: commands in processes of their own, and a server over HTTP.

Nothing here imports the product.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

PARCEL = str(Path(sys.executable).with_name("parcel"))
SMALLEST = str(Path(__file__).parents[1] / "e2e" / "smallest.yaml")
"""A study whose whole run takes well under a minute."""

_START_TIMEOUT = 300.0
"""Longest wait for a server, and then for its forms, on a busy machine [s]."""

T = TypeVar("T")


def environment(store: Path, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a command on a store: nothing leads to the user's own servers.

    Args:
      store: folder of the store.
      own: variables that the command has beside.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    return {
        **others,
        "PARCEL_STORE": str(store),
        "JAX_PLATFORMS": "cpu",
        "COLUMNS": "160",
        "XLA_FLAGS": f"{quick} {os.environ.get('XLA_FLAGS', '')}",
        **(own or {}),
    }


def parcel(store: Path, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs a command on a store to its end."""
    return subprocess.run(
        [PARCEL, *words], env=environment(store), capture_output=True, text=True, timeout=timeout
    )


def wait_for(
    look: Callable[[], T | None], timeout: float, told: Callable[[], str] = lambda: ""
) -> T:
    """Looks twice a second until there is something to see; returns it.

    Args:
      look: returns what is waited for, or a false value.
      timeout: longest wait [s].
      told: returns what the failure says.
    """
    until = time.monotonic() + timeout
    while not (seen := look()):
        assert time.monotonic() < until, f"not within {timeout:.0f} s: {told()}"
        time.sleep(0.5)
    return seen


@dataclasses.dataclass(frozen=True)
class Served:
    """A running `parcel serve`.

    Attributes:
      url: address of its server [URI].
      store: folder of its store.
      log: file with what the command printed.
      began: time at which the command was started [s], by the monotonic clock.
      command: its process.
    """

    url: str
    store: Path
    log: Path
    began: float
    command: subprocess.Popen[bytes] | None = None

    @property
    def auth(self) -> str:
        """The name and password of its users."""
        return (self.store / "prefect" / "auth").read_text().strip()

    def link(self, path: str) -> str:
        """Returns the address of a page that logs a browser in."""
        token = hmac.new(self.auth.encode(), b"a browser of parcel", hashlib.sha256).hexdigest()
        return f"{self.url}{path}{'&' if '?' in path else '?'}token={token}"

    def ask(self, path: str, body: Any = None, method: str = "") -> Any:
        """Returns the API's answer: to a POST if there is a body, else to a GET.

        Raises:
          urllib.error.HTTPError: if the server refuses.
        """
        method = method or ("GET" if body is None else "POST")
        headers = {"content-type": "application/json"}
        if method != "GET":
            token = self._send("/csrf-token?client=tests", None, {}, "GET")["token"]
            headers |= {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
        return self._send(path, None if body is None else json.dumps(body), headers, method)

    def runs(self) -> list[dict[str, Any]]:
        """Returns the flow runs, those that begin first first."""
        return self.ask("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC", "limit": 200})

    def page(self, path: str) -> str:
        """Returns one of the pages beside Prefect's own."""
        request = urllib.request.Request(f"{self.url}{path}", headers=self._login)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    @property
    def _login(self) -> dict[str, str]:
        return {"Authorization": f"Basic {base64.b64encode(self.auth.encode()).decode()}"}

    def _send(self, path: str, body: str | None, headers: Mapping[str, str], method: str) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api{path}",
            None if body is None else body.encode(),
            {**headers, **self._login},
            method=method,
        )
        for again in range(10):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if error.code != 503 or again == 9:  # 503 asks for it: the database was locked.
                    raise
                time.sleep(1)
        return None


@contextlib.contextmanager
def serving(folder: Path, own: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Runs `parcel serve` on an empty store in a folder; ready when entered.

    Args:
      folder: folder of the store and of what the command prints.
      own: variables that the command has beside.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store, printed = folder / "store", folder / "serve.log"
    began = time.monotonic()
    with printed.open("w") as log:
        command = subprocess.Popen(
            [PARCEL, "serve", "--port", str(port), "--store", str(store)],
            cwd=Path(__file__).parents[2],
            env=environment(store, own),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        served = Served(f"http://127.0.0.1:{port}", store, printed, began, command)
        wait_for(lambda: "UI: " in printed.read_text(), _START_TIMEOUT, printed.read_text)
        # The forms are there once both flows are deployed.
        forms = functools.partial(served.ask, "/deployments/filter", {})
        wait_for(lambda: len(forms()) == 2, _START_TIMEOUT, printed.read_text)
        yield served
    finally:
        _end(command)


def _end(command: subprocess.Popen[bytes]) -> None:
    """Ends a command as Ctrl-C does, and after a while what is left of it and its children."""
    if command.poll() is not None:
        return
    family = psutil.Process(command.pid).children(recursive=True)
    command.send_signal(signal.SIGINT)
    try:
        command.wait(timeout=30)
    except subprocess.TimeoutExpired:
        command.kill()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
