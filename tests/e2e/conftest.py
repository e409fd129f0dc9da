"""A small study, run once through the real command, and what tests need to poke at it."""

import base64
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from infra.prefect.server import PAGES, running, server_of, token_of
from tests.commands import run_commands

PARCEL = str(Path(sys.executable).with_name("parcel"))
_ROOT = Path(__file__).parents[2]
CONFIG = str(Path(__file__).with_name("tiny.yaml"))
SMALLEST = str(Path(__file__).with_name("smallest.yaml"))
ENDLESS = "stage1.total_steps=100000"
"""A change to a config that has its run still train when a test ends it."""

# A shrunken run is nearly all compilation; its few steps may as well run slowly.
_FAST_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    + os.environ.get("XLA_FLAGS", "")  # Of tests/conftest.py.
)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A study that ran: its store, and what the command printed."""

    store: Path
    output: str


_SHARED_SERVER: dict[str, str] = {}
"""Variables that name the server of `one_server`, while its module's tests run."""


def environment(store: Path) -> dict[str, str]:
    """The user's environment, without what would lead a test to the user's own server or store."""
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "PARCEL_")) or name == "PARCEL_TORCH_PYTHON"
    }
    return {
        **others,
        **_SHARED_SERVER,
        "PARCEL_STORE": str(store),
        "JAX_PLATFORMS": "cpu",
        "COLUMNS": "160",
        "XLA_FLAGS": _FAST_COMPILE,
    }


def parcel(
    store: Path, *words: str, timeout: float = 600, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PARCEL, *words],
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
    )


def run_all(
    commands: Sequence[Sequence[str]], store: Path, folder: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Runs commands on a store in one process; a command of its own is mostly imports."""
    return run_commands(commands, env=environment(store), cwd=folder)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The small study, with every method and two seeds, for tests that look at it."""
    return _finished_once(CONFIG, tmp_path_factory)


@pytest.fixture(scope="session")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The smallest study, for tests that compare another way of running it."""
    return _finished_once(SMALLEST, tmp_path_factory)


def _finished_once(config: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Runs a study unless the code as it is has done so; copies it for this process of tests."""
    name = Path(config).stem
    cached = _CACHE / f"{name}-{_code_sha256()[:16]}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            for other in _CACHE.glob(f"{name}-*"):  # Of other code.
                shutil.rmtree(other)
            with _own_server():  # Whose database has the run, for those that look at it.
                study = finish(tmp_path_factory.mktemp("study") / "store", config)
            partial = _CACHE / f"partial-{name}"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(study.store, partial / "store")
            (partial / "output").write_text(study.output, encoding="utf-8")
            partial.rename(cached)
    store = tmp_path_factory.mktemp("copy") / "store"
    shutil.copytree(cached / "store", store)
    return Finished(store, (cached / "output").read_text(encoding="utf-8"))


_CACHE = _ROOT / ".pytest_cache" / "finished"


def _code_sha256() -> str:
    """Returns a digest of all that the small study could depend on."""
    rooms = ("flows", "infra", "model", "parcel", "pipelines")
    files = [_ROOT / "constraints.txt", _ROOT / "pyproject.toml", Path(__file__)]
    files += Path(__file__).parent.glob("*.yaml")
    files += [path for room in rooms for path in (_ROOT / room).rglob("*.*")]
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.suffix in (".py", ".yaml", ".toml", ".txt", ".html", ".css", ".js"):
            digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def finish(store: Path, config: str) -> Finished:
    """Runs a study to its end."""
    done = parcel(store, "run", config)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Finished(store, done.stdout)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One Prefect server for the tests of this process: the variables that name it."""
    with pytest.MonkeyPatch.context() as patch:
        # The server sets them; afterwards they are as before.
        patch.setenv("PREFECT_API_URL", "")
        patch.setenv("PREFECT_API_AUTH_STRING", "")
        with server_of(tmp_path_factory.mktemp("server")) as server:
            patch.undo()
            yield {"PREFECT_API_URL": server.api, "PREFECT_API_AUTH_STRING": server.auth}


@pytest.fixture(scope="module")
def one_server(shared_server: dict[str, str]) -> Iterator[None]:
    """Has a module's commands report to one server, since each start of one takes seconds.

    For tests of studies; those of servers and of how commands end do without.
    """
    _SHARED_SERVER.update(shared_server)
    yield
    _SHARED_SERVER.clear()


@contextlib.contextmanager
def _own_server() -> Iterator[None]:
    before = dict(_SHARED_SERVER)
    _SHARED_SERVER.clear()
    yield
    _SHARED_SERVER.update(before)


@dataclasses.dataclass(frozen=True)
class Served:
    """A running `parcel serve`."""

    url: str
    store: Path

    @property
    def login(self) -> dict[str, str]:
        """The header that the server of a store asks for; none for a server that is not ours."""
        note = running(self.store)
        if note is None:
            return {}
        return {"Authorization": f"Basic {base64.b64encode(note.auth.encode()).decode()}"}

    def browse(
        self,
        path: str,
        profile: Path,
        *,
        screenshot: Path | None = None,
        size: tuple[int, int] = (1500, 1300),
        dark: bool = False,
    ) -> str:
        """Opens one of its pages, by a link that logs in; see `browse`."""
        note = running(self.store)
        assert note is not None
        joint = "&" if "?" in path else "?"
        address = f"{self.url}{path}{joint}token={token_of(note.auth)}"
        return browse(address, profile, screenshot=screenshot, size=size, dark=dark)

    def ask(self, path: str, body: bytes = b"{}", method: str = "POST") -> Any:
        headers = {"content-type": "application/json"}
        if method != "GET":
            token = self._send("/csrf-token?client=tests", None, {}, "GET")["token"]
            headers |= {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
        return self._send(path, body if method != "GET" else None, headers, method)

    def start(self, deployment: str, **parameters: Any) -> str:
        """Starts a run of "FLOW/DEPLOYMENT" as its form does, and returns the run's id.

        Args:
          deployment: the flow's and the deployment's name.
          **parameters: values of the form that are not the deployment's own.
        """
        form = self.ask(f"/deployments/name/{deployment}", method="GET")
        body = json.dumps({"parameters": parameters}).encode()
        return self.ask(f"/deployments/{form['id']}/create_flow_run", body)["id"]

    def _send(self, path: str, body: bytes | None, headers: dict[str, str], method: str) -> Any:
        url = f"{self.url}/api{path}"
        headers = headers | self.login
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        for again in range(10):  # 503 asks for that: the database was locked.
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if error.code != 503 or again == 9:
                    raise
                time.sleep(1)


@pytest.fixture(scope="session")
def served(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a copy of the small study, to which tests may add."""
    store = tmp_path_factory.mktemp("served") / "store"
    shutil.copytree(finished.store, store)
    with serving(store) as made:
        yield made


@contextlib.contextmanager
def serving(store: Path, own: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Runs `parcel serve` for a store, with `own` in its environment; ready when entered."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = store.parent / "serve.log"
    with path.open("w") as log:
        server = subprocess.Popen(
            [PARCEL, "serve", "--port", str(port), "--store", str(store)],
            env=environment(store) | dict(own or {}),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 180
        while "UI: " not in path.read_text():
            assert server.poll() is None, path.read_text()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.5)
        made = Served(f"http://127.0.0.1:{port}", store)
        # A copy of a served store has the deployments of the other one until they are made anew.
        here = os.path.realpath(store)
        while {d["parameters"].get("store") for d in made.ask("/deployments/filter")} != {here}:
            assert time.monotonic() < deadline, "the study was not registered"
            time.sleep(0.5)
        yield made
    finally:
        end_tree(server)


def end_tree(process: subprocess.Popen) -> None:
    """Ends a process and its descendants, politely first."""
    family = [*psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue


def browser() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no Chromium: install Debian's package `chromium` for the browser tests")
    return found


def browse(
    url: str,
    profile: Path,
    *,
    screenshot: Path | None = None,
    size: tuple[int, int] = (1500, 1300),
    dark: bool = False,
) -> str:
    """Opens a page in headless Chromium and returns its DOM, after its scripts have run.

    Args:
      url: address of the page.
      profile: folder of the browser's profile.
      screenshot: file for a picture of it.
      size: width and height of the window [pixels].
      dark: whether the reader prefers dark pages.
    """
    # Prefect's pages draw themselves by scripts that wait for answers. Ours wait for none, and the
    # start page loads itself anew every few seconds, so a budget beyond that never ends [ms].
    budget = 3000 if f"{PAGES}/" in url else 25000
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}",
        f"--virtual-time-budget={budget}", *(["--force-dark-mode"] if dark else []),
    ]  # fmt: skip
    if screenshot:
        options.append(f"--screenshot={screenshot}")
    page = subprocess.run(
        [browser(), *options, "--dump-dom", url],
        check=True,
        capture_output=True,
        text=True,
        timeout=180,
    )
    if screenshot:
        # The documents show it: 128 colours are enough for text, at a third of the bytes.
        with Image.open(screenshot) as picture:
            small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        small.save(screenshot, optimize=True)
    return page.stdout


def plain(dom: str) -> str:
    """The text of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", dom))
