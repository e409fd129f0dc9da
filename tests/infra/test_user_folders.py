"""Where a user's settings and state are, with and without a home."""

import os
import pwd
from pathlib import Path

import pytest

from infra.user_folders import temporary_folder, user_folder


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def state() -> Path | None:
    return user_folder("XDG_STATE_HOME", ".local/state")


def test_a_home_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state() == tmp_path / ".local" / "state" / "parcel"
    monkeypatch.setenv("XDG_STATE_HOME", "/scratch/me")
    assert state() == Path("/scratch/me/parcel")


def test_a_home_that_may_not_be_written_to_is_none_unless_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)  # Root may write anywhere.
    assert state() is None
    (tmp_path / ".local" / "state" / "parcel").mkdir(parents=True)
    assert state() == tmp_path / ".local" / "state" / "parcel"


def test_nobody_has_no_home(monkeypatch: pytest.MonkeyPatch):
    def unknown(uid: int):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert state() is None


def test_a_temporary_folder_is_found_again_and_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prefix = f"parcel-state-{os.getuid()}-"
    # What others may have made of this name: open to them, a link, a file.
    (tmp_path / f"{prefix}0open").mkdir(mode=0o777)
    (tmp_path / f"{prefix}0open").chmod(0o777)
    (tmp_path / f"{prefix}1link").symlink_to("/")
    (tmp_path / f"{prefix}2file").touch()
    found = temporary_folder("state")
    assert found.stat().st_mode & 0o777 == 0o700
    assert temporary_folder("state") == found
