"""One server per store, for as long as somebody uses it, and for those who may."""

import base64
import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import psutil
import pytest
from prefect.settings import Settings

from infra.errors import ConfigError
from infra.prefect import server
from infra.prefect.encryption import VARIABLE
from infra.prefect.server import (
    auth_file,
    locks,
    reporting,
    running,
    server_of,
    token_of,
)
from infra.processes.identity import ProcessIdentity
from tests.infra.deploy.test_commands import environment_names

pytestmark = pytest.mark.slow

USER = """
import os, sys, time
os.umask(0o022)
from pathlib import Path
from infra.prefect.server import server_of
with server_of(Path(sys.argv[1])) as note:
    print(note.process.pid, note.api, flush=True)
    sys.stdin.read()
"""


def user_of(store: Path, **own: str) -> tuple[subprocess.Popen[str], int, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")} | own
    user = subprocess.Popen(
        [sys.executable, "-c", USER, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "PREFECT_HOME": str(store / "prefect")},
    )
    assert user.stdout is not None
    pid, api = user.stdout.readline().split()
    return user, int(pid), api


def gone(pid: int, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.deep
def test_two_commands_share_it_and_it_ends_with_the_last_killed_or_not(tmp_path: Path):
    first, pid, api = user_of(tmp_path)
    second, same, _ = user_of(tmp_path)
    assert (pid, running(tmp_path).process.pid) == (same, pid)  # type: ignore[union-attr]
    copy = tmp_path / "copy"
    shutil.copy(locks(tmp_path)[2], locks(copy)[2])
    assert running(copy) is None  # A run there would be told of here.
    first.kill()
    first.wait()
    assert not gone(pid, 3), "the second still uses it"
    with urllib.request.urlopen(f"{api}/health", timeout=10) as answer:
        assert answer.status == 200
    second.kill()
    second.wait()
    # The one who started it is gone: nobody waits for it but init.
    assert gone(pid, 10)
    assert running(tmp_path) is None


@pytest.mark.deep
def test_a_server_that_a_signal_ends_before_it_is_ready_is_started_again(tmp_path: Path):
    killed: list[psutil.Process] = []

    def kill_the_first() -> None:
        while not killed:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "infra.prefect.app" in child.cmdline() and str(tmp_path) in child.cmdline():
                        child.terminate()
                        killed.append(child)
                        return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_the_first, daemon=True)
    killer.start()
    user, pid, _ = user_of(tmp_path)
    killer.join(10)
    assert [child.pid for child in killed] not in ([], [pid])
    user.communicate("")
    assert gone(pid, 10)


@pytest.mark.deep
def test_a_server_that_dies_is_started_again_where_it_was(tmp_path: Path):
    user, pid, api = user_of(tmp_path)
    port = int(api.removesuffix("/api").rpartition(":")[2])
    with socket.socket() as other:
        # A connection of another program may get the port, which is one of those drawn for them.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        psutil.Process(pid).kill()
        assert gone(pid, 10)
        other.bind(("127.0.0.1", port))
        time.sleep(2)  # The user looks each second.
    deadline = time.monotonic() + 240
    while (note := running(tmp_path)) is None or note.process.pid == pid:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert note.api == api
    assert note.auth == auth_file(tmp_path).read_text().strip()  # Browsers stay logged in.
    user.communicate("")
    assert gone(note.process.pid, 10)


def test_it_takes_only_those_it_should(served_store: Path):
    note = running(served_store)
    assert note is not None
    assert locks(served_store)[2].stat().st_mode & 0o077 == 0
    command = " ".join(psutil.Process(note.process.pid).cmdline())
    assert "secret" not in command
    assert "secret" not in (served_store / "prefect" / "server.log").read_text()
    url = note.api.removesuffix("/api")
    right = {"Authorization": f"Basic {base64.b64encode(b'me:secret').decode()}"}
    token = get(f"{url}/api/csrf-token?client=tests", right)["token"]
    known = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
    asked = [
        (known, 401),
        ({**known, "Authorization": f"Basic {base64.b64encode(b'me:guess').decode()}"}, 401),
        (right, 403),  # No CSRF token.
        ({**right, "Host": "evil.example"}, 403),
        ({**right, "Origin": "http://evil.example"}, 403),
    ]
    for headers, expected in asked:
        assert post(f"{url}/api/flows/filter", headers) == expected, headers
    mine = {**right, **known}
    assert post(f"{url}/api/flows/filter", mine) == 200
    assert post(f"{url}/api/flows/filter", {**mine, "Origin": url}) == 200
    assert post(f"{url}/api/flows/filter", {**mine, "Origin": "http://evil.example"}) == 403
    foreign = {**right, "Host": "evil.example"}
    pages = [({}, 401), (known, 401), (foreign, 403), (right, 200)]
    for headers, expected in pages:
        assert status(urllib.request.Request(f"{url}/parcel/", headers=headers)) == expected
    assert get(f"{url}/parcel/store.json", right) == {"store": str(served_store)}
    settings = get(f"{url}/ui-settings", right)
    # Who sees the UI has given the string, so its own form need not ask for it.
    assert (settings["csrf_enabled"], settings["auth"]) == (True, None)


def test_without_the_auth_string_nothing_of_it_answers_but_that_it_is_there(served_store: Path):
    note = running(served_store)
    assert note is not None
    url = note.api.removesuffix("/api")
    right = {"Authorization": f"Basic {base64.b64encode(note.auth.encode()).decode()}"}
    known = get(f"{url}/api/openapi.json", right)["paths"]
    methods = {"get", "post", "put", "patch", "delete"}
    asked = [
        (method.upper(), note.api + re.sub("{[^}]*}", "x", path))
        for path, answers in known.items()
        for method in methods & answers.keys()
    ]
    assert len(asked) > 150
    pages = ("/", "/v2", "/v2/dashboard", "/parcel", "/parcel/", "/parcel/store.json")
    asked += [("GET", url + path) for path in (*pages, "/ui-settings", "/openapi.json", "/docs")]
    is_open = ("GET", f"{note.api}/health")
    assert is_open in asked
    for method, address in asked:
        code = status(urllib.request.Request(address, method=method))
        assert code == (200 if (method, address) == is_open else 401), (method, address)


CLIENT = """
import os, sys
from pathlib import Path
os.umask(0o022)
from infra.prefect.server import Sidecar, server_of
from infra.prefect.settings import apply
store = Path(sys.argv[1])
apply(store)
with server_of(store, sidecar=Sidecar("flows.pages.app:store_pages", str(store))):
    from prefect import flow
    from prefect.blocks.system import Secret
    Secret(value="hidden").save("one")
    flow(lambda: "done", name="one")()
    assert Secret.load("one").get() == "hidden"
    open_to_others = [
        (str(path.relative_to(store)), oct(path.stat().st_mode))
        for path in [store / "prefect", *(store / "prefect").rglob("*")]
        if path.stat().st_mode & 0o077
    ]
    print(len([*(store / "prefect").rglob("*")]), *open_to_others, sep="\\n", flush=True)
"""


def test_its_state_is_its_owners_alone_whatever_the_umask_and_what_was_there(tmp_path: Path):
    (tmp_path / "prefect" / "storage").mkdir(parents=True, mode=0o755)
    for name in ("prefect.db", "users.lock", "storage/result", "server.log"):
        path = tmp_path / "prefect" / name
        path.touch()
        path.chmod(0o664)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    command = [sys.executable, "-c", CLIENT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    count, *open_to_others = done.stdout.splitlines()
    assert int(count) > 8
    assert open_to_others == []
    assert {"prefect.db", "server.log", "auth"} < set(os.listdir(tmp_path / "prefect"))


def test_a_folder_of_another_user_is_refused_with_what_to_do():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = (
        "import os, sys, pathlib\n"
        "from infra.errors import ConfigError\n"
        "from infra.prefect.server import locks, server_of\n"
        "store = pathlib.Path(sys.argv[1])\n"
        "locks(store)[0].parent.chmod(int(sys.argv[2], 8))\n"
        "os.seteuid(12345)\n"
        "try: server_of(store).__enter__()\n"
        "except ConfigError as error: print(error)\n"
    )
    for mode in ("700", "755"):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            command = [sys.executable, "-c", code, folder, mode]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "is another user's" in done.stdout


def test_an_auth_string_of_the_user_is_the_servers(tmp_path: Path):
    user, _, api = user_of(tmp_path, PREFECT_SERVER_API_AUTH_STRING="ours:secret")
    note = running(tmp_path)
    assert note is not None
    assert note.auth == "ours:secret"
    assert not auth_file(tmp_path).exists()
    header = f"Basic {base64.b64encode(b'ours:secret').decode()}"
    assert status(urllib.request.Request(f"{api}/admin/version")) == 401
    given = urllib.request.Request(f"{api}/admin/version", headers={"Authorization": header})
    assert status(given) == 200
    user.communicate("")


def test_who_names_the_stores_own_server_need_not_give_its_auth_string(
    served_store: Path, monkeypatch: pytest.MonkeyPatch
):
    note = running(served_store)
    assert note is not None
    for named in (note.api, note.api.replace("127.0.0.1", "localhost") + "/"):
        monkeypatch.setenv("PREFECT_API_URL", named)
        monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
        with reporting(served_store) as (ui, stays):
            assert (ui.auth, stays) == ("me:secret", True)
            assert os.environ["PREFECT_API_AUTH_STRING"] == "me:secret"
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.lab:4200/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "lab:theirs")
    monkeypatch.setattr("infra.prefect.server.is_healthy", lambda *_: True)
    with reporting(served_store) as (ui, _):
        assert ui.link("/runs") == "http://prefect.lab:4200/v2/runs"
        assert os.environ["PREFECT_API_AUTH_STRING"] == "lab:theirs"


def test_links_log_in_on_a_terminal_and_are_plain_in_a_log():
    code = (
        "from infra.prefect.server import UI\n"
        "print(UI('http://h/v2', 'me:secret').link('/runs'), UI('http://h/v2').link('/runs'))"
    )
    command = [sys.executable, "-c", code]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert plain.split() == ["http://h/v2/runs"] * 2
    ours, theirs = os.openpty()
    subprocess.run(command, stdout=theirs, check=True)
    link, other = os.read(ours, 1000).decode().split()
    assert link == f"http://h/v2/runs?token={token_of('me:secret')}"
    assert other == "http://h/v2/runs"


def test_other_options_than_the_running_servers_are_refused(served_store: Path):
    for options in ({"port": 1}, {"auth": "you:other"}, {"host": "0.0.0.0", "auth": "me:secret"}):
        with (
            pytest.raises(ConfigError, match="has a server already"),
            server_of(served_store, **options),
        ):
            pass
    with server_of(served_store, meanwhile=lambda: pytest.fail("it runs already")) as note:
        assert note.auth == "me:secret"


def post(url: str, headers: dict[str, str]) -> int:
    headers = {"content-type": "application/json", **headers}
    return status(urllib.request.Request(url, data=b"{}", headers=headers, method="POST"))


def status(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def get(url: str, headers: dict[str, str]):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return json.loads(answer.read())


def test_sockets_that_have_not_said_the_auth_string_fill_no_memory(served_store: Path):
    """As another user: a hundred sockets, and on each a large part of a larger message."""
    note = running(served_store)
    assert note is not None
    address = urllib.parse.urlsplit(note.api)
    server, part = psutil.Process(note.process.pid), b"x" * 2**20
    before = server.memory_info().rss
    handshake = (
        f"GET /api/events/in HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: prefect\r\n\r\n"
    ).encode()
    answers: list[bytes] = []
    with contextlib.ExitStack() as sockets:
        for size in [15, 1] * 50:  # MiB; a masked text, of which one byte never comes.
            socket_ = socket.create_connection((address.hostname, address.port), timeout=60)
            sockets.enter_context(socket_)
            socket_.sendall(handshake)
            answers.append(socket_.recv(1000)[:12])
            with contextlib.suppress(ConnectionError):
                socket_.sendall(b"\x81\xff" + struct.pack(">Q", size * 2**20 + 1) + bytes(4))
                for _ in range(size):
                    socket_.sendall(part)
        assert get(f"{note.api}/health", {}) is True
        assert server.memory_info().rss - before < 150 * 2**20
    assert {*answers} == {b"HTTP/1.1 101", b"HTTP/1.1 403"}


SETTINGS = """
import json, sys
from pathlib import Path
from infra.prefect.settings import apply
from infra.prefect.server import server_of
store = Path(sys.argv[1])
apply(store)
called = []
with server_of(store, meanwhile=lambda: called.append("prefect" in sys.modules)) as note:
    assert called == [False]
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings
    with get_client(sync_client=True) as client:
        runs = len(client.read_flow_runs())
    settings = get_current_settings()
    home = str(settings.home.resolve())
    print(json.dumps([runs, settings.api.url == note.api, home, settings.api.key]))
"""


def test_profiles_and_settings_of_other_projects_do_not_reach_the_stores_server(tmp_path: Path):
    cloud = 'active = "cloud"\n[profiles.cloud]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
    home, project, store = (tmp_path / name for name in ("home", "project", "store"))
    for folder in (home, project, store):
        folder.mkdir()
    (home / "profiles.toml").write_text(f'{cloud}PREFECT_API_KEY = "pnu_of_the_cloud"\n')
    (project / "prefect.toml").write_text("broken = [")
    (project / "pyproject.toml").write_text('[tool.prefect.api]\nrequest_timeout = "never"\n')
    database = tmp_path / "theirs.db"
    (project / ".env").write_text(
        f"PREFECT_API_URL=http://127.0.0.1:9/api\nPREFECT_SERVER_API_BASE_PATH=/theirs\n"
        f"PREFECT_SERVER_DATABASE_CONNECTION_URL=sqlite+aiosqlite:///{database}\n"
    )
    own = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    own |= {"PREFECT_HOME": str(home), "PREFECT_PROFILE": "cloud", "PYTHONPATH": os.getcwd()}
    own["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{database}"
    own["PREFECT_SERVER_API_BASE_PATH"] = "/theirs"
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS, "../store"],
        cwd=project,
        env=own,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [0, True, str(store / "prefect"), None]
    assert (store / "prefect" / "prefect.db").exists()
    assert not database.exists()
    assert [path.name for path in home.iterdir()] == ["profiles.toml"]


def test_no_variable_of_the_users_own_prefect_reaches_the_stores_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in [each for each in os.environ if each.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    before = server._server_environment(tmp_path, "ours:secret")
    names = {*environment_names(Settings), "PREFECT_A_SETTING_OF_TOMORROW"}
    assert len(names) > 300
    for name in names:
        monkeypatch.setenv(name, "theirs")
    assert server._server_environment(tmp_path, "ours:secret") == before
    assert before["PREFECT_SERVER_API_AUTH_STRING"] == "ours:secret"
    # The one that counts; it is drawn if the user names none.
    monkeypatch.setenv(VARIABLE, "theirs")
    with pytest.raises(ConfigError, match=VARIABLE):
        server._server_environment(tmp_path, "ours:secret")


@pytest.mark.deep
def test_a_database_that_another_process_has_locked_is_named(tmp_path: Path):
    database = tmp_path / "prefect" / "prefect.db"
    database.parent.mkdir()
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN IMMEDIATE")
        message = r"prefect\.db is locked by another process"
        with pytest.raises(RuntimeError, match=message), server_of(tmp_path):
            pass


@pytest.mark.parametrize("field", [None, "api", "auth", "process"])
@pytest.mark.parametrize("broken", ["[]", "null", "5", '"text"', "{", "{}"])
def test_a_note_that_is_none_counts_as_no_server(tmp_path: Path, field: str | None, broken: str):
    note = locks(tmp_path)[2]
    note.parent.mkdir(parents=True, exist_ok=True)
    text = broken
    if field is not None:
        this = dataclasses.asdict(ProcessIdentity.of_this_process())
        values = {"api": "http://127.0.0.1:9/api", "auth": "a:b", "process": this}
        note.write_text(json.dumps(values))
        assert running(tmp_path) is not None
        text = json.dumps(values | {field: [broken]})
    note.write_text(text)
    assert running(tmp_path) is None
