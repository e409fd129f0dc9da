"""One Prefect server per store: the running one, or a new one that ends after its last user.

<store>/prefect/users.lock    shared lock of every command that uses the server
                start.lock    lock of the command that starts a server
                server.json   the server's address, process and auth string; readable by its owner

The kernel releases a lock when its holder ends, even by SIGKILL. So a server that gets `users.lock`
exclusively has no users left, and ends.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from infra.processes.family import MARK
from infra.processes.identity import ProcessNote
from infra.processes.signals import is_stopping

PAGES = "/parcel"
"""Path of the pages that are served next to Prefect's own."""

_START_TIMEOUT = 180.0
"""Longest start of a server [s]; a loaded two-core machine takes 15-40 s to import it."""
_LOOK_EVERY = 1.0
"""Interval between two looks at whether the server is alive [s]."""
_MAX_RESTARTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerNote:
    """A running server.

    Attributes:
      api: address of its API [URI].
      auth: auth string that it requires; None lets in everybody on this machine.
      process: the server's process.
    """

    api: str
    auth: str | None
    process: ProcessNote

    @property
    def ui(self) -> str:
        """Address of the UI for a browser [URI]."""
        return ui_of(self.api)

    @property
    def pages(self) -> str:
        """Address of the pages next to the UI, for a browser [URI]."""
        return f"{self.api.removesuffix('/api')}{PAGES}/"


class Beside(NamedTuple):
    """Additions to Prefect's own server: pages below `PAGES`, and a check of our forms.

    Attributes:
      function: "module:name" of the function that makes the pages' ASGI application.
      argument: argument of the function.
      check: "module:name" of the function that checks the parameters of a new run of our
        deployments and returns an error message, or None; "" for no check.
    """

    function: str
    argument: str
    check: str = ""


class ServerConflict(ValueError):
    """The store's running server has other options."""


def locks(store: Path) -> tuple[Path, Path, Path]:
    """Returns the paths of a store's users lock, start lock and server note."""
    folder = store / "prefect"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "users.lock", folder / "start.lock", folder / "server.json"


def folder_id(store: Path) -> list[int]:
    """Returns a folder's device and inode, which differ in a copy of it but not after a move."""
    found = store.stat()
    return [found.st_dev, found.st_ino]


def running(store: Path) -> ServerNote | None:
    """Returns the running server of a store; None if there is none."""
    try:
        values = json.loads(locks(store)[2].read_text())
        own = folder_id(store)
        if values.get("folder", own) != own:
            return None  # This store is a copy, and the note is the original's.
        note = ServerNote(
            api=values["api"], auth=values["auth"], process=ProcessNote.read(values["process"])
        )
    except (OSError, ValueError, KeyError):
        return None
    return note if note.process.is_alive() else None


@contextlib.contextmanager
def server_of(
    store: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    auth: str | None = None,
    beside: Beside | None = None,
) -> Iterator[ServerNote]:
    """Yields the store's server, starting one if there is none, and makes Prefect's client use it.

    A server started here is restarted if it dies; work continues without it meanwhile.

    Args:
      store: the store's folder.
      host: host name to listen on.
      port: port to listen on; None takes any that is free.
      auth: auth string that clients must send, "name:password"; None requires none.
      beside: additions to a server that is started here.

    Raises:
      ServerConflict: if the store's server has other options.
      RuntimeError: if none could be started; the message has the last line of its log.
    """
    users, starting, _ = locks(store)
    with users.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # Waits while a server that found no users ends.
        with starting.open("a") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            note = running(store)
            if note is not None:
                _check(note, host, port, auth)
            else:
                note = _start(store, host, port or 0, auth, beside)
                threading.Thread(
                    target=_keep_running, args=(store, host, note, held, beside), daemon=True
                ).start()
        _use(note)
        yield note


@contextlib.contextmanager
def reporting(store: Path, beside: Beside | None = None) -> Iterator[tuple[str, bool]]:
    """Yields the address of the UI with a command's runs, and whether it outlives the command.

    Runs report to the server that the user named in `PREFECT_API_URL`, else to the store's.

    Args:
      store: the store's folder.
      beside: as in `server_of`.
    """
    given = os.environ.get("PREFECT_API_URL")
    if given:
        yield ui_of(given), True
        return
    stays = running(store) is not None
    with server_of(store, beside=beside) as note:
        yield note.ui, stays


def connect(store: Path) -> bool:
    """Makes Prefect's client, which is imported later, use a server that is running already.

    It is the one that the user named in `PREFECT_API_URL`, else the store's.

    Returns:
      Whether there is one.
    """
    if os.environ.get("PREFECT_API_URL"):
        return True
    note = running(store)
    if note is not None:
        _use(note)
    return note is not None


def ui_of(api: str) -> str:
    """Returns the address of a server's UI, for a browser, from the address of its API [URI]."""
    return f"{api.rstrip('/').removesuffix('/api')}/v2"


def _check(note: ServerNote, host: str, port: int | None, auth: str | None) -> None:
    wanted = port is not None and not note.api.endswith(f":{port}/api")
    # Without an auth string the command uses the server's: only its owner can read the note.
    if wanted or (auth is not None and auth != note.auth) or not is_loopback(host):
        raise ServerConflict(
            f"the store has a server already, {note.ui}, started with other options: use it as "
            f"it is, without --host, --port and --auth, or end what started it."
        )


def is_loopback(host: str) -> bool:
    """Returns whether a host name means this machine only."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _use(note: ServerNote) -> None:
    os.environ["PREFECT_API_URL"] = note.api
    if note.auth is not None:
        os.environ["PREFECT_API_AUTH_STRING"] = note.auth


def _start(
    store: Path, host: str, port: int, auth: str | None, beside: Beside | None
) -> ServerNote:
    environment = {
        name: value
        for name, value in os.environ.items()
        # Without the family's mark: another command may use the server and end later than this one.
        if name not in (MARK, "PREFECT_API_URL", "PREFECT_API_AUTH_STRING")
    }
    if auth is not None:
        environment["PREFECT_SERVER_API_AUTH_STRING"] = auth
    log = store / "prefect" / "server.log"
    with log.open("w") as words:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "infra.prefect.app",
                str(store),
                host,
                str(port),
                *(beside or ()),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        if server.poll() is not None:
            said = log.read_text().strip().splitlines()
            raise RuntimeError(
                f"the Prefect server ended with code {server.returncode}: "
                f"{said[-1] if said else 'no output'}"
            )
        note = running(store)
        if note is not None and note.process.pid == server.pid and _is_healthy(note.api):
            return note
        time.sleep(0.1)
    server.kill()
    raise RuntimeError(
        f"the Prefect server was not ready in {_START_TIMEOUT:.0f} s; its log is {log}."
    )


def _keep_running(
    store: Path, host: str, note: ServerNote, held: IO[str], beside: Beside | None
) -> None:
    """Restarts the server at the same address when it dies, while the command runs."""
    port = int(note.api.removesuffix("/api").rpartition(":")[2])
    for _ in range(_MAX_RESTARTS):
        while note.process.is_alive():
            time.sleep(_LOOK_EVERY)
        if held.closed or is_stopping():
            return
        try:
            note = _start(store, host, port, note.auth, beside)
        except (RuntimeError, OSError):
            return


def _is_healthy(api: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
