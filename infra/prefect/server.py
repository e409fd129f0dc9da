"""One Prefect server per store: the one that is there, or a new one that ends with its users.

<store>/prefect/users.lock    held, shared, by every command that uses the server
                start.lock    held by who starts one
                server.json   the server's address, process and auth string; readable by its owner

The kernel lets go of a lock when its holder is gone, killed outright or not: a server that gets
`users.lock` for itself has no users left, and ends.
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
"""Path of the pages that the server has beside Prefect's own."""

_START_TIMEOUT = 180.0
"""A loaded two-core machine takes 15-40 s to import the server [s]."""
_LOOK_EVERY = 1.0
"""Between two looks at whether the server lives [s]."""
_MAX_RESTARTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerNote:
    """A server that runs.

    Attributes:
      api: address of its API [URI].
      auth: what it asks for; None lets everybody on this machine in.
      process: it.
    """

    api: str
    auth: str | None
    process: ProcessNote

    @property
    def ui(self) -> str:
        """Where a browser finds it."""
        return ui_of(self.api)

    @property
    def pages(self) -> str:
        """Where a browser finds the pages beside the UI."""
        return f"{self.api.removesuffix('/api')}{PAGES}/"


class Beside(NamedTuple):
    """What a server has beside Prefect's own: pages below `PAGES`, and a check of our forms.

    Attributes:
      function: what makes the ASGI application, "module:name".
      argument: of the function.
      check: what says, before there is a run of a deployment of ours, what is wrong with its
        parameters, or None: "module:name"; "" for nothing.
    """

    function: str
    argument: str
    check: str = ""


class ServerConflict(ValueError):
    """The store has a server that runs with other options."""


def locks(store: Path) -> tuple[Path, Path, Path]:
    """Returns where a store's users lock, start lock and server note are."""
    folder = store / "prefect"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "users.lock", folder / "start.lock", folder / "server.json"


def folder_id(store: Path) -> list[int]:
    """Returns device and inode: they tell a folder from a copy of it, wherever it is moved."""
    found = store.stat()
    return [found.st_dev, found.st_ino]


def running(store: Path) -> ServerNote | None:
    """Returns the server of a store, if one lives."""
    try:
        values = json.loads(locks(store)[2].read_text())
        own = folder_id(store)
        if values.get("folder", own) != own:
            return None  # Of the store that this one is a copy of.
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
    """Yields the store's server, started if there is none, and has Prefect's client use it.

    A server started here is started again if it dies: work goes on without it meanwhile.

    Args:
      store: its folder.
      host: to listen on.
      port: to listen on; None takes any that is free.
      auth: what clients must send, "name:password"; None asks nothing.
      beside: pages that a server started here has beside Prefect's own.

    Raises:
      ServerConflict: if the store's server has other options.
      RuntimeError: if none could be started; its last words are in the message.
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
    """Yields where the UI of a command's runs is, and whether it stays after the command.

    Runs report to the server that the user named in `PREFECT_API_URL`, else to the store's.

    Args:
      store: its folder.
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
    """Has Prefect's client, once imported, use the server that is there already.

    That is the one that the user named in `PREFECT_API_URL`, else the store's.

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
    """Returns where a browser finds the UI of the server with an API [URI]."""
    return f"{api.rstrip('/').removesuffix('/api')}/v2"


def _check(note: ServerNote, host: str, port: int | None, auth: str | None) -> None:
    wanted = port is not None and not note.api.endswith(f":{port}/api")
    # Who asks for no auth string uses the server's: the note is readable by its owner only.
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
        # Not of this process's family: another command may come to use it and stay longer.
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
    """Starts the server again where it was when it dies, while the command runs."""
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
