"""What is private is closed to others, or an error says truly why it is not."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from infra.errors import ConfigError
from infra.prefect import encryption
from infra.prefect.private import ModeRefusedError, make_private, open_private
from infra.prefect.server import locks, server_of


@pytest.fixture(params=[errno.EPERM, errno.ENOTSUP])
def _without_modes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """A file system like vfat: it shows all that is there as open, and refuses to change it."""

    def refuse(path: object, mode: int) -> None:
        raise OSError(request.param, os.strerror(request.param), path)

    monkeypatch.setattr(os, "chmod", refuse)


@pytest.fixture
def _as_a_user():
    """Another user than root, whom no mode stops."""
    if os.geteuid() == 0:
        os.seteuid(12345)
    yield
    if os.getuid() == 0:
        os.seteuid(0)


def test_what_is_there_is_closed_to_others(tmp_path: Path):
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a" / "b").write_text("")
    (tmp_path / "a" / "b").chmod(0o664)
    make_private(tmp_path / "a")
    with open_private(tmp_path / "c", "w"):
        pass
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "c")]
    assert modes == [0o700, 0o600, 0o600]


@pytest.mark.usefixtures("_without_modes")
def test_a_file_system_without_modes_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = locks(tmp_path)[0].parent
    folder.rmdir()
    folder.mkdir(mode=0o755)
    with (
        pytest.raises(ConfigError, match=r"--store: .*/prefect is open") as e,
        server_of(tmp_path),
    ):
        pass
    assert "umask=077" in str(e.value)
    assert "another user's" not in str(e.value)
    key = tmp_path / "key"
    key.write_text("x")
    monkeypatch.setenv("PARCEL_KEY", str(key))
    monkeypatch.delenv(encryption.VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"PARCEL_KEY .* file system"):
        encryption.read_or_draw_key()
    with pytest.raises(ModeRefusedError), open_private(key, "a"):
        pass


@pytest.mark.usefixtures("_without_modes")
def test_one_that_shows_all_as_private_is_private(tmp_path: Path):
    (tmp_path / "a").mkdir(mode=0o700)
    make_private(tmp_path / "a")
    with open_private(tmp_path / "a" / "b", "w") as file:
        file.write("kept")
    assert (tmp_path / "a" / "b").read_text() == "kept"


@pytest.mark.usefixtures("_as_a_user")
def test_a_folder_of_ones_own_that_may_not_be_written_is_not_told_as_anothers():
    with tempfile.TemporaryDirectory() as store:
        folder = locks(Path(store))[0].parent
        folder.chmod(0o500)
        with (
            pytest.raises(ConfigError, match=r"users\.lock .*got Permission"),
            server_of(Path(store)),
        ):
            pass
        folder.chmod(0o700)
