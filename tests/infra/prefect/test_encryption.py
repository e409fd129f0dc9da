"""The key of alerts' addresses: outside the store, its owner's alone, and the only one."""

import errno
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from infra.errors import ConfigError
from infra.prefect.encryption import (
    VARIABLE,
    check_key_stays_apart,
    key_file,
    read_or_draw_key,
)
from infra.prefect.server import running

SECRET = "https://hooks.slack.com/services/T000/B000/verysecret"

CLIENT = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from infra.errors import ConfigError
from infra.prefect.server import server_of
with server_of(Path(sys.argv[1])):
    from infra.prefect.alerts import Alerts, register_alerts
    from infra.prefect.api import named_server
    from prefect.blocks.notifications import SlackWebhook
    try:
        if len(sys.argv) > 2:
            with named_server() as client:
                register_alerts(client, "study/lab", "lab", Alerts(addresses=sys.argv[2:]))
        print(SlackWebhook.load("parcel-alert-lab-0").url.get_secret_value())
    except ConfigError as error:
        print(error)
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("PARCEL_KEY", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "settings"


def test_without_a_home_it_is_beside_the_database_and_alerts_want_another(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    check_key_stays_apart()
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setattr(os, "access", lambda *_: False)  # Root may write anywhere.
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    key = read_or_draw_key()
    assert key_file() == tmp_path / "prefect" / "key"
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    told = capsys.readouterr().err
    assert re.search(rf"{re.escape(str(key_file()))}.* PARCEL_KEY\b", told)
    assert read_or_draw_key() == key
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="--alert needs PARCEL_KEY"):
        check_key_stays_apart()
    monkeypatch.setenv("PARCEL_KEY", str(tmp_path / "mine"))
    check_key_stays_apart()


def test_of_servers_that_draw_at_once_one_key_stays_without_links(
    settings: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with ThreadPoolExecutor(8) as pool:
        keys = {future.result() for future in [pool.submit(read_or_draw_key) for _ in range(8)]}
    assert keys == {key_file().read_text().strip()}


def test_it_is_drawn_once_in_a_file_of_its_owner(
    settings: Path, capsys: pytest.CaptureFixture[str]
):
    before = os.umask(0o002)
    try:
        key = read_or_draw_key()
    finally:
        os.umask(before)
    assert key_file() == settings / "parcel" / "key"
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file().parent.stat().st_mode) == 0o700
    assert [*key_file().parent.iterdir()] == [key_file()]
    assert read_or_draw_key() == key
    assert capsys.readouterr().err == ""
    key_file().chmod(0o644)
    assert read_or_draw_key() == key
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    told = capsys.readouterr().err
    assert re.match(rf"parcel: {re.escape(str(key_file()))} .*\bmode 644\b", told)


def test_a_key_that_the_user_gives_a_server_counts(settings: Path, monkeypatch: pytest.MonkeyPatch):
    given = Fernet.generate_key().decode()
    monkeypatch.setenv(VARIABLE, given)
    assert read_or_draw_key() == given
    assert not settings.exists()


@pytest.mark.parametrize("content", [None, "", "short", "a" * 44])
def test_a_file_that_holds_no_key_is_named_and_stays(
    settings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
):
    path = tmp_path / "mine"
    monkeypatch.setenv("PARCEL_KEY", str(path))
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=f"PARCEL_KEY must be .*{path}") as refused:
        read_or_draw_key()
    assert content in (None, "") or content not in str(refused.value).replace(str(path), "")
    assert content is None or path.read_text() == content


def test_all_who_draw_it_at_once_have_the_same(settings: Path):
    code = "from infra.prefect.encryption import read_or_draw_key as f; print(f())"
    drawing = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert len({one.communicate(timeout=120)[0] for one in drawing}) == 1


def client(store: Path, *words: str) -> str:
    """Returns the address of the alert of a deployment `lab`, read from a server of its own.

    Args:
      store: the store.
      *words: an address to register first.
    """
    unset = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(store), *words],
        env={**unset, "PREFECT_HOME": str(store / "prefect")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # The server outlives its last user by half a second: the next one would be a guest of a server
    # that was started with another key.
    deadline = time.monotonic() + 60
    while running(store):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return done.stdout.strip()


def rows(store: Path, query: str) -> list[tuple[str, ...]]:
    with sqlite3.connect(store / "prefect" / "prefect.db") as database:
        found = database.execute(query).fetchall()
    database.close()
    return found


@pytest.mark.deep
@pytest.mark.usefixtures("settings")
def test_a_copy_of_the_store_gives_no_address_and_an_earlier_versions_key_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = tmp_path / "store"
    assert client(store, SECRET) == SECRET
    ((stored,),) = rows(store, "SELECT data FROM block_document WHERE name LIKE 'parcel-alert-%'")
    cipher = json.loads(stored)
    assert SECRET in Fernet(key_file().read_text().strip().encode()).decrypt(cipher).decode()
    assert rows(store, "SELECT key FROM configuration WHERE key LIKE '%KEY%'") == []
    # As an earlier version left it: the key in the database, and the block encrypted with it.
    old = Fernet.generate_key().decode()
    data = Fernet(old.encode()).encrypt(Fernet(read_or_draw_key().encode()).decrypt(cipher))
    with sqlite3.connect(store / "prefect" / "prefect.db") as database:
        database.execute("UPDATE block_document SET data = ?", [json.dumps(data.decode())])
        database.execute(
            "INSERT INTO configuration (id, key, value) VALUES (?, 'ENCRYPTION_KEY', ?)",
            ["0" * 32, json.dumps({"fernet_key": old})],
        )
    database.close()
    assert old.encode() in content(store)
    assert client(store) == SECRET
    assert rows(store, "SELECT key FROM configuration WHERE key LIKE '%KEY%'") == []
    held = content(store)
    for secret in (old, read_or_draw_key(), "verysecret"):
        assert secret.encode() not in held
    # Elsewhere the server starts, says which blocks it cannot read, and leaves them as they are.
    monkeypatch.setenv("PARCEL_KEY", str(tmp_path / "elsewhere"))
    assert re.match("--alert .*parcel-alert-lab-0 ", client(store, SECRET))
    assert "another key" in (store / "prefect" / "server.log").read_text()
    monkeypatch.delenv("PARCEL_KEY")
    assert client(store) == SECRET


def content(store: Path) -> bytes:
    """Returns the bytes of all files in a store."""
    return b"\n".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
