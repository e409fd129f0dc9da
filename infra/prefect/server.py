"""One Prefect server per store: the running one, or a new one that ends after its last user.

<store>/prefect/users.lock    shared lock of every command that uses the server
                start.lock    lock of the command that starts a server
                server.json   the server's address, process and auth string
                auth          the auth string, "parcel:<password>", drawn once for the store
                key           the key of an owner without a home; see `encryption`
                runner/       temporary files of `parcel serve`
                server.log    what the server prints, and its errors; see `server_log`

Who may call the server may run programs as its user. So it always asks for its auth string, and the
folder is its owner's alone: every command of theirs finds the string there, nobody else does.

The kernel releases a lock when its holder ends, even by SIGKILL. So a server that gets `users.lock`
exclusively has no users left, and ends.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from infra.errors import ConfigError
from infra.file_locks import lock_file
from infra.prefect.best_effort import is_healthy
from infra.prefect.database import put_damaged_database_aside
from infra.prefect.encryption import VARIABLE, read_or_draw_key
from infra.prefect.owner import HEADERS
from infra.prefect.private import ModeRefusedError, make_private, open_private, owner_of
from infra.prefect.server_log import ServerErrors, log_file, open_log, read_errors
from infra.prefect.settings import SETTINGS, drop_unusable_proxies, import_prefect
from infra.processes.family import MARK
from infra.processes.identity import ProcessIdentity
from infra.processes.module import module_command, python_path
from infra.processes.signals import is_stopping

PAGES = "/parcel"
"""Path of the pages that are served next to Prefect's own."""
ABOUT = "about"
"""Path below `PAGES` that leads on to the page about what the page that links to it shows."""

TOGETHER = "/artifacts/bulk"
"""Path below the API at which a server of ours takes several of Prefect's artifacts at once."""

LOGIN_TOKEN = "token"
"""Parameter of an address that logs a browser in."""

_START_TIMEOUT = 180.0
"""Longest start of a server [s]; a loaded two-core machine takes 15-40 s to import it."""
_MAX_STARTS = 3
"""Starts of a server that a signal ends before it is ready, until the command gives up."""
_ANSWER_TIMEOUT = 10.0
"""Longest wait for the server that the user named to answer, before anything starts [s]."""
_LOOK_EVERY = 1.0
"""Interval between two looks at whether the server is alive [s]."""
_RESTART_AFTER = 10.0
"""Wait after a start that failed in place of a server that died [s]."""
_MAX_RESTARTS = 3
"""Starts in place of a server that died, until the command goes on without one."""
_CLIENT_VARIABLES = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", HEADERS)
"""Variables that tell Prefect's client its server, and what to send to it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerNote:
    """A running server.

    Attributes:
      api: address of its API [URI].
      auth: auth string that it requires, "name:password".
      process: the server's process.
    """

    api: str
    auth: str
    process: ProcessIdentity

    @property
    def ui(self) -> "UI":
        """Its UI, for a browser."""
        return UI(ui_of(self.api), self.auth)

    @property
    def pages(self) -> "UI":
        """The pages next to the UI, for a browser."""
        return UI(f"{self.api.removesuffix('/api')}{PAGES}/", self.auth)


@dataclasses.dataclass(frozen=True)
class UI:
    """Pages that a server has for a browser.

    Attributes:
      address: where they are [URI].
      auth: auth string of a server of ours, whose links can log a browser in; None for another's.
    """

    address: str
    auth: str | None = None

    def link(self, path: str = "") -> str:
        """Returns the address of a page; on a terminal, one that also logs its reader in.

        Elsewhere the output may be a log that others read.
        """
        page = f"{self.address}{path}"
        if self.auth is None or not sys.stdout.isatty():
            return page
        return f"{page}?{LOGIN_TOKEN}={token_of(self.auth)}"


class Sidecar(NamedTuple):
    """Additions to Prefect's own server: pages below `PAGES`, and a check of our forms.

    Attributes:
      function: "module:name" of the function that makes the pages' ASGI application.
      argument: argument of the function.
      check: "module:name" of the function that checks the parameters of runs of our deployments,
        see `infra.prefect.doors.Doors`; "" for no check.
      forms: beginning of the entry points of these deployments' flows.
    """

    function: str
    argument: str
    check: str = ""
    forms: str = ""


def locks(store: Path) -> tuple[Path, Path, Path]:
    """Returns the paths of a store's users lock, start lock and server note."""
    folder = store / "prefect"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "users.lock", folder / "start.lock", folder / "server.json"


def auth_file(store: Path) -> Path:
    """Returns the path of the auth string of a store's server."""
    return store / "prefect" / "auth"


def token_of(auth: str) -> str:
    """Returns the token that lets a browser see a server's pages, in a link or a cookie.

    The password does not follow from it.
    """
    return hmac.new(auth.encode(), b"a browser of parcel", hashlib.sha256).hexdigest()


def folder_id(store: Path) -> list[int]:
    """Returns a folder's device and inode, which differ in a copy of it but not after a move."""
    found = store.stat()
    return [found.st_dev, found.st_ino]


def running(store: Path) -> ServerNote | None:
    """Returns the running server of a store; None if there is none on this machine."""
    note = _read_note(store)
    # Only one that is seen to run: the address of another machine's server may be that of some
    # other program here.
    return note if note is not None and note.process.is_running else None


def _read_note(store: Path) -> ServerNote | None:
    """Returns what the newest server of a store noted of itself; None if there is no note."""
    try:
        values = json.loads(locks(store)[2].read_text())
        own = folder_id(store)
        if values.get("folder", own) != own:
            return None  # This store is a copy, and the note is the original's.
        api, auth = values["api"], values["auth"] or ""
        if not (isinstance(api, str) and isinstance(auth, str)):
            return None
        return ServerNote(api=api, auth=auth, process=ProcessIdentity.read(values["process"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # AttributeError: it is JSON, but no object.


def service_errors(store: Path) -> ServerErrors | None:
    """Returns the errors of a store's server that runs; None if none runs or it had none."""
    return read_errors(store) if running(store) else None


@contextlib.contextmanager
def server_of(
    store: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    auth: str | None = None,
    sidecar: Sidecar | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[ServerNote]:
    """Yields the store's server, starting one if there is none, and makes Prefect's client use it.

    A server started here is restarted if it dies; work continues without it meanwhile.

    Args:
      store: the store's folder.
      host: host name to listen on.
      port: port to listen on; None takes any that is free.
      auth: auth string that clients must send, "name:password"; None takes that of
        `PREFECT_SERVER_API_AUTH_STRING`, or else one that is drawn once for the store.
      sidecar: additions to a server that is started here.
      meanwhile: work for this process while such a server starts, which takes seconds.

    Raises:
      ConfigError: if the store's server has other options, or is another user's; or if it can have
        no key, see `infra.prefect.encryption`.
      RuntimeError: if none could be started; the message has the last line of its log.
    """
    # First the lock of a user, which keeps a server alive, and only then the look for one: so the
    # server that is seen cannot end. The second lock lets one of several commands start it.
    users, starting, _ = locks(store)
    try:
        make_private(users.parent)
        held = open_private(users, "a")
    except ModeRefusedError as error:
        raise ConfigError(
            f"--store: {error.strerror}; or name a server in PREFECT_API_URL."
        ) from None
    except PermissionError as error:
        place, owner = owner_of(Path(error.filename or users.parent))
        if owner == os.geteuid():
            raise ConfigError(
                f"--store: {error.filename} must be yours to write, got {error.strerror}: "
                f"`chmod -R u+rwX {users.parent}`, or name a server in PREFECT_API_URL."
            ) from None
        raise ConfigError(
            f"{place} is another user's, and a store's server runs for one user alone: name "
            f"a server in PREFECT_API_URL, or use a store of your own."
        ) from None
    with held:
        lock_file(held, fcntl.LOCK_SH)  # Waits while a server that found no users ends.
        with open_private(starting, "a") as alone:
            lock_file(alone, fcntl.LOCK_EX)
            note = running(store)
            if note is not None:
                _check_server_options(note, host, port, auth)
            else:
                auth = auth or os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
                note = _start_store_server(
                    store, host, port or 0, auth or _read_or_draw_auth(store), sidecar, meanwhile
                )
                threading.Thread(
                    target=_keep_running, args=(store, host, note, held, sidecar), daemon=True
                ).start()
        before = {name: os.environ.get(name) for name in _CLIENT_VARIABLES}
        _set_prefect_environment(note)
        try:
            yield note
        finally:  # Else the next run in this process would take it for the user's.
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def serving_alone(store: Path, note: ServerNote) -> Iterator[None]:
    """Is the one command that starts the runs of a store's server, until it is left.

    Args:
      store: the store's folder.
      note: the store's server.

    Raises:
      ConfigError: if there is one: its forms, and the folders that it reads, would be replaced.
    """
    with open_private(store / "prefect" / "serve.lock", "a") as held:
        try:
            lock_file(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"a `parcel serve` of this store runs already, {note.pages.address}: use that one, "
                f"or end it with Ctrl-C first."
            ) from None
        yield


@contextlib.contextmanager
def reporting(
    store: Path, sidecar: Sidecar | None = None, meanwhile: Callable[[], None] | None = None
) -> Iterator[tuple[UI, bool]]:
    """Yields the UI with a command's runs, and whether it outlives the command.

    Runs report to the server that the user named in `PREFECT_API_URL`, else to the store's.

    Args:
      store: the store's folder.
      sidecar: as in `server_of`.
      meanwhile: as in `server_of`.

    Raises:
      ConfigError: if the server that the user named does not answer.
    """
    named = os.environ.get("PREFECT_API_URL")
    if named:
        if not is_healthy(named, _ANSWER_TIMEOUT):
            raise ConfigError(
                f"PREFECT_API_URL must be the API of a Prefect server that runs, such as "
                f"http://HOST:4200/api; {named} did not answer within {_ANSWER_TIMEOUT:.0f} s. "
                f"Without it, a run has a server of its own."
            )
        note = _use_if_named(store)
        yield (note.ui if note else UI(ui_of(named))), True
        return
    stays = running(store) is not None
    with server_of(store, sidecar=sidecar, meanwhile=meanwhile) as note:
        yield note.ui, stays


def connect(store: Path) -> bool:
    """Makes Prefect's client, which is imported later, use a server that is running already.

    It is the one that the user named in `PREFECT_API_URL`, else the store's.

    Returns:
      Whether there is one.
    """
    if os.environ.get("PREFECT_API_URL"):
        _use_if_named(store)
        return True
    note = running(store)
    if note is not None:
        _set_prefect_environment(note)
    return note is not None


def ui_of(api: str) -> str:
    """Returns the address of a server's UI, for a browser, from the address of its API [URI]."""
    return f"{api.rstrip('/').removesuffix('/api')}/v2"


def _check_server_options(note: ServerNote, host: str, port: int | None, auth: str | None) -> None:
    wanted = port is not None and not note.api.endswith(f":{port}/api")
    if not note.auth:
        raise ConfigError(
            f"the store's server, {note.ui.address}, was started by an earlier version and lets in "
            f"everybody on this machine: end what started it."
        )
    # Without an auth string the command uses the server's: only its owner can read the note.
    if wanted or (auth is not None and auth != note.auth) or not is_loopback(host):
        raise ConfigError(
            f"the store has a server already, {note.ui.address}, started with other options: use "
            f"it as it is, without --host, --port and --auth, or end what started it."
        )


def is_loopback(host: str) -> bool:
    """Returns whether a host name means this machine only."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _set_prefect_environment(note: ServerNote) -> None:
    os.environ["PREFECT_API_URL"] = note.api
    os.environ["PREFECT_API_AUTH_STRING"] = note.auth
    import_prefect()


def _use_if_named(store: Path) -> ServerNote | None:
    """Returns the store's server if `PREFECT_API_URL` names it; the client then knows its auth."""
    named = os.environ["PREFECT_API_URL"].rstrip("/").replace("//localhost:", "//127.0.0.1:")
    note = _read_note(store)
    # On another machine, too, or in a container beside it: the address is the user's word.
    if note is None or note.process.has_ended or note.api != named:
        note = None
    else:
        os.environ.setdefault("PREFECT_API_AUTH_STRING", note.auth)
    import_prefect()
    return note


def _read_or_draw_auth(store: Path) -> str:
    """Returns the auth string of a store's server, drawn when it is first needed."""
    path = auth_file(store)
    try:
        if found := path.read_text().strip():
            return found
    except FileNotFoundError:
        pass
    auth = f"parcel:{secrets.token_hex(16)}"
    with open_private(path, "w") as file:
        file.write(f"{auth}\n")
    return auth


class _EndedBySignalError(RuntimeError):
    """A signal ended the server before it was ready, such as that of the kernel out of memory."""


def _start_store_server(
    store: Path,
    host: str,
    port: int,
    auth: str,
    sidecar: Sidecar | None,
    meanwhile: Callable[[], None] | None = None,
) -> ServerNote:
    for _ in range(_MAX_STARTS - 1):
        with contextlib.suppress(_EndedBySignalError):
            return _start_once(store, host, port, auth, sidecar, meanwhile)
    return _start_once(store, host, port, auth, sidecar, meanwhile)


def _check_place(host: str, port: int) -> None:
    """Raises a `ConfigError` if no server can listen there."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        cures = {
            errno.EADDRINUSE: "end the program that listens there, or name another --port",
            errno.EACCES: "ports below 1024 are root's: name another --port",
        }
        cure = cures.get(error.errno or 0, "name an address of this machine, such as 127.0.0.1")
        # Python adds the address to the system's words.
        why = str(error.strerror or error).partition(" (while")[0]
        raise ConfigError(f"--host {host} --port {port}: {why}; {cure}.") from None


def _server_environment(store: Path, auth: str) -> dict[str, str]:
    """Returns the environment of a store's server, in which Prefect's variables are ours alone.

    The user's are for a server of their own, or for commands: ours would take their database for
    the store's, say, fire no schedule, or answer elsewhere than its note says.
    """
    others = {
        name: value
        for name, value in os.environ.items()
        # Without the family's mark: another command may use the server and end later than this one.
        if name != MARK and not name.upper().startswith("PREFECT_")
    }
    return {
        **others,
        **SETTINGS,
        "PREFECT_HOME": str((store / "prefect").absolute()),
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        VARIABLE: read_or_draw_key(),
        "PYTHONPATH": python_path(),
    }


def _start_once(
    store: Path,
    host: str,
    port: int,
    auth: str,
    sidecar: Sidecar | None,
    meanwhile: Callable[[], None] | None,
) -> ServerNote:
    _check_place(host, port)
    if put_aside := put_damaged_database_aside(store):
        print(f"parcel: {put_aside}", file=sys.stderr)
    drop_unusable_proxies()
    log = log_file(store)
    with open_log(store) as words:
        server = subprocess.Popen(
            module_command("infra.prefect.app", str(store), host, str(port), *(sidecar or ())),
            env=_server_environment(store, auth),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
    if meanwhile is not None:
        meanwhile()
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        if server.poll() is not None:
            text = log.read_text(encoding="utf-8", errors="replace").strip()
            if "database is locked" in text:
                raise RuntimeError(
                    f"{store / 'prefect' / 'prefect.db'} is locked by another process: end that "
                    f"one, which `fuser` names, and give the command again."
                )
            lines = text.splitlines() or ["no output"]
            kind = _EndedBySignalError if server.returncode < 0 else RuntimeError
            raise kind(f"the Prefect server ended with code {server.returncode}: {lines[-1]}")
        note = running(store)
        if note is not None and note.process.pid == server.pid and is_healthy(note.api, 2.0):
            return note
        time.sleep(0.1)
    server.kill()
    raise RuntimeError(
        f"the Prefect server was not ready in {_START_TIMEOUT:.0f} s; its log is {log}."
    )


def _keep_running(
    store: Path, host: str, note: ServerNote, held: IO[str], sidecar: Sidecar | None
) -> None:
    """Restarts the server at the same address when it dies, while the command runs."""
    port = int(note.api.removesuffix("/api").rpartition(":")[2])
    for _ in range(_MAX_RESTARTS):
        while not note.process.has_ended:
            time.sleep(_LOOK_EVERY)
        if held.closed or is_stopping():
            return
        try:
            note = _start_store_server(store, host, port, note.auth, sidecar)
        except (RuntimeError, OSError, ConfigError) as error:
            # Often it passes: another program's connection had the port for some seconds, say.
            print(
                f"parcel: the store's server died, its next start failed: {error}", file=sys.stderr
            )
            time.sleep(_RESTART_AFTER)
