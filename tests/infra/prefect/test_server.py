"""One server per store, for as long as somebody uses it, and for those who may."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from infra.prefect.server import ServerConflict, locks, running, server_of

pytestmark = pytest.mark.slow

USER = """
import sys, time
from pathlib import Path
from infra.prefect.server import server_of
with server_of(Path(sys.argv[1])) as note:
    print(note.process.pid, note.api, flush=True)
    sys.stdin.read()
"""


def user_of(store: Path) -> tuple[subprocess.Popen[str], int, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
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


def test_a_server_that_dies_is_started_again_where_it_was(tmp_path: Path):
    user, pid, api = user_of(tmp_path)
    psutil.Process(pid).kill()
    deadline = time.monotonic() + 120
    while (note := running(tmp_path)) is None or note.process.pid == pid:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert note.api == api
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
    settings = get(f"{url}/ui-settings", {})
    assert (settings["csrf_enabled"], settings["auth"]) == (True, "BASIC")


def test_other_options_than_the_running_servers_are_refused(served_store: Path):
    for options in ({"port": 1}, {"auth": "you:other"}, {"host": "0.0.0.0", "auth": "me:secret"}):
        with (
            pytest.raises(ServerConflict, match="has a server already"),
            server_of(served_store, **options),
        ):
            pass
    with server_of(served_store) as note:
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
