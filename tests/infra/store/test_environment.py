"""Tests of the hardware that a manifest records."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from infra.store import environment
from infra.store.environment import device_count, execution_environment, git_state


def test_the_accelerator_is_the_one_that_jax_computes_on():
    kind = jax.devices()[0].device_kind
    assert execution_environment()["hardware"]["accelerator"] == kind


_ON_CPU = """
import jax
from infra.store.environment import device_count

assert device_count() == 1  # JAX has no devices yet.
assert jax.device_count() == 4
print(device_count())
"""


def test_a_process_on_cpus_is_one_device_into_however_many_jax_divides_it():
    variables = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    child = subprocess.run(
        [sys.executable, "-c", _ON_CPU], env={**os.environ, **variables}, capture_output=True
    )
    assert child.stdout.strip() == b"1", child.stderr


def test_a_process_without_jax_has_none_and_takes_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "jax._src.xla_bridge")
    hardware = execution_environment()["hardware"]
    assert hardware["accelerator"] == ""
    assert device_count() == 1
    assert hardware["cpu"] or sys.platform != "linux"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.email=a@b", "-c", "user.name=a"]
    done = subprocess.run(
        ["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of somebody's, in whose virtual environment the product is installed."""
    folder = tmp_path / "project"
    installed = folder / "venv" / "site-packages" / "infra" / "store"
    installed.mkdir(parents=True)
    shutil.copy(environment.__file__, installed)
    (folder / "mine.py").write_text("1\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "mine.py")
    git(folder, "commit", "--quiet", "--message", "somebody's project")
    return folder


def test_the_commit_of_a_project_around_a_wheel_is_not_the_product_s(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    installed = project / "venv" / "site-packages"
    (project / "mine.py").write_text("2\n")
    recorded = git_state(installed)
    assert (recorded["commit"], recorded["dirty"]) == (None, None)
    assert recorded["version"]
    # A hook of Git's has its repository in variables.
    monkeypatch.setenv("GIT_DIR", str(project / ".git"))
    assert git_state.__wrapped__(installed)["commit"] is None


def test_the_commit_is_that_of_the_repository_that_has_the_code(project: Path):
    installed = project / "venv" / "site-packages"
    git(project, "add", "--force", "venv")
    git(project, "commit", "--quiet", "--message", "the product")
    recorded = git_state.__wrapped__(installed)
    assert (recorded["commit"], recorded["dirty"]) == (git(project, "rev-parse", "HEAD"), None)
    with (installed / "infra" / "store" / "environment.py").open("a") as code:
        code.write("\n")
    assert git_state.__wrapped__(installed)["dirty"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, as root can")
def test_a_repository_that_git_refuses_is_said(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    git(project, "add", "--force", "venv")
    git(project, "commit", "--quiet", "--message", "the product")
    os.chown(project, 1234, 1234)
    recorded = git_state.__wrapped__(project / "venv" / "site-packages")
    assert recorded["commit"] is None
    assert "dubious ownership" in (recorded["refused"] or "")
