"""A run started from the UI keeps to the served store, and to this machine's Beam."""

import dataclasses
import os
from pathlib import Path

import pytest

from flows.config.load import load
from flows.config.server_limits import check_served, limit_variables
from flows.study.serve import parse_auth
from infra.errors import ConfigError
from pipelines.prepare.config import PrepareConfig


@pytest.fixture
def _own(monkeypatch: pytest.MonkeyPatch):
    for name in ("PARCEL_SERVED_STORE", "PARCEL_SERVED_RUNNER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    for name in ("PARCEL_SERVED_STORE", "PARCEL_SERVED_RUNNER"):
        os.environ.pop(name, None)


@pytest.mark.usefixtures("_own")
def test_another_store_is_refused_unless_any_is_allowed(tmp_path: Path):
    config = load()
    check_served(config, "/anywhere")  # Not served: the terminal's user may.
    os.environ |= limit_variables(str(tmp_path / "here"), any_store=False, any_runner=False)
    check_served(config, str(tmp_path / "here"))
    check_served(config, str(tmp_path / "there" / ".." / "here"))
    with pytest.raises(ConfigError, match=r"store must be the one served, .*--any-store"):
        check_served(config, str(tmp_path / "there"))
    os.environ |= limit_variables(str(tmp_path / "here"), any_store=True, any_runner=False)
    check_served(config, str(tmp_path / "there"))


@pytest.mark.usefixtures("_own")
@pytest.mark.parametrize(
    "prepare",
    [PrepareConfig(runner="DataflowRunner"), PrepareConfig(runner_options=("--project=p",))],
)
def test_beams_runner_is_refused_wherever_it_hides(tmp_path: Path, prepare: PrepareConfig):
    plain = load()
    name = next(iter(plain.transfers))
    hidden = [
        dataclasses.replace(plain, prepare=prepare),
        dataclasses.replace(
            plain, sources=(dataclasses.replace(plain.sources[0], prepare=prepare),)
        ),
        dataclasses.replace(
            plain,
            transfers=plain.transfers
            | {name: dataclasses.replace(plain.transfers[name], prepare=prepare)},
        ),
    ]
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=False)
    check_served(plain, str(tmp_path))
    for config in hidden:
        with pytest.raises(ConfigError, match=r"runner.*--any-runner"):
            check_served(config, str(tmp_path))
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=True)
    for config in hidden:
        check_served(config, str(tmp_path))


@pytest.mark.usefixtures("_own")
def test_a_launchers_command_is_refused_but_for_ray(tmp_path: Path):
    config = load(None, ["compute.processes_per_stage=2", "compute.launcher=bash -c id --"])
    rays = load(
        None,
        ["compute.processes_per_stage=2", "compute.launcher=ray", "compute.ray_address=auto"],
    )
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=False)
    check_served(rays, str(tmp_path))
    with pytest.raises(ConfigError, match=r"compute.launcher must be ray .*bash.*--any-runner"):
        check_served(config, str(tmp_path))
    os.environ |= limit_variables(str(tmp_path), any_store=False, any_runner=True)
    check_served(config, str(tmp_path))


def test_an_auth_string_has_a_name_and_a_password_and_is_never_shown(tmp_path: Path):
    file = tmp_path / "auth"
    file.write_text("me:secret\n")
    assert parse_auth(f"@{file}") == parse_auth("me:secret") == "me:secret"
    assert parse_auth(None) is None
    with pytest.raises(ConfigError, match="name:password") as refused:
        parse_auth("secret")
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="No such file"):
        parse_auth("@/no/such/file")
