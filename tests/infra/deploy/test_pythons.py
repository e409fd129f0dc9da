"""Every supported Python on both kinds of machine: requirements, pins, and what files say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infra.deploy.files import ROOT
from tests.infra.deploy.pins import (
    MACHINES,
    PROJECT,
    SUPPORTED,
    applies,
    constraints,
    environment,
    pinned,
)

EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
UNPINNED = {"parcel-pipeline"}
"""Requirements without a pin: extras of the project itself."""


def required(python: str, machine: str, *extras: str) -> list[Requirement]:
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    where = environment(python, machine)
    return [one for one in map(Requirement, lines) if applies(one, where)]


def test_supported_are_three_pythons_and_every_file_says_so():
    assert SUPPORTED == ["3.11", "3.12", "3.13"]
    classified = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert classified == SUPPORTED
    makefile = (ROOT / "Makefile").read_text()
    (names,) = re.findall(r"(python3[\w. ]*); do", makefile)
    assert names.split() == [*(f"python{one}" for one in reversed(SUPPORTED)), "python3"]
    range_ = re.findall(r"\((3), (\d+)\)", makefile)
    assert [".".join(one) for one in range_] == [SUPPORTED[0], SUPPORTED[-1]]
    for name in ("README.md", "docs/index.md"):
        assert f"Python {SUPPORTED[0]} to {SUPPORTED[-1]}, and make" in (ROOT / name).read_text()


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_requirement_has_one_pin_that_it_accepts(python: str, machine: str):
    pins = pinned(python, machine)
    for one in required(python, machine, "dev", "docs", "tf", "docker", "kubernetes", "dataflow"):
        if one.name not in UNPINNED:
            assert one.specifier.contains(pins[canonicalize_name(one.name)]), one


def test_constraints_have_no_addresses_and_are_sorted():
    names = [canonicalize_name(line.name) for line in constraints()]
    assert names == sorted(names)
    assert not [line.name for line in constraints() if line.url or line.extras]


def test_libraries_without_a_wheel_for_arm_are_not_required_there():
    def names(machine: str, *extras: str) -> set[str]:
        return {one.name for one in required(SUPPORTED[-1], machine, *extras)}

    assert names("x86_64") - names("aarch64") == {"decord"}
    assert names("x86_64", "tf") - names("x86_64") == {"tensorflow-cpu"}
    assert names("aarch64", "tf") - names("aarch64") == {"tensorflow"}


def test_only_tf_data_and_its_check_import_tensorflow():
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("flows", "infra", "model", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*(import|from) tensorflow\b", path.read_text(), re.MULTILINE)
    ]
    assert {*found} == {"pipelines/records/tf_data.py", "pipelines/records/tf_check.py"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, and `bin` with what it needs, for the whole of PATH."""
    (tmp_path / "bin").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("sh", "test", "rm"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    return tmp_path


def put(folder: Path, name: str, body: str) -> None:
    """Puts an executable on the PATH of `checkout`."""
    path = folder / "bin" / name
    path.write_text(f"#!{shutil.which('sh')}\n{body}\n")
    path.chmod(0o755)


RUNS = f'exec {sys.executable} "$@"'
SHIM = "echo 'pyenv: command not found' >&2; exit 127"


def setup(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    where = {"PATH": f"{folder}/bin", "MAKEFLAGS": ""}
    command = [make, "setup", *words]
    return subprocess.run(command, cwd=folder, env=where, capture_output=True, text=True)


def test_setup_takes_the_newest_python_that_runs(checkout: Path):
    put(checkout, "python3", RUNS)
    put(checkout, "python3.11", RUNS)
    assert "\npython3.11 -m venv .venv\n" in setup(checkout, "--dry-run").stdout
    put(checkout, "python3.13", SHIM)  # pyenv has such names for every Python it ever installed.
    put(checkout, "python3.12", RUNS)
    assert "\npython3.12 -m venv .venv\n" in setup(checkout, "--dry-run").stdout
    overridden = setup(checkout, "--dry-run", "PYTHON=python3").stdout
    assert "\npython3 -m venv .venv\n" in overridden


def test_setup_stays_with_the_python_of_its_environment(checkout: Path):
    put(checkout, "python3.13", RUNS)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert "\n.venv/bin/python -m venv .venv\n" in setup(checkout, "--dry-run").stdout


def test_setup_begins_afresh_for_another_python(checkout: Path):
    put(checkout, "python3.13", f'[ "$1" = -m ] && exit 9; {RUNS}')
    lib = checkout / ".venv" / "lib" / f"python3.{sys.version_info.minor}"
    lib.mkdir(parents=True)
    assert "Error 9" in setup(checkout).stderr
    assert lib.exists()
    lib.rename(lib.with_name("python3.10"))
    assert "Error 9" in setup(checkout).stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "and PATH has none"),
        (("PYTHON=python3.13",), "and python3.13 does not run or is another"),
        (("PYTHON=python3.99",), "and python3.99 does not run or is another"),
    ],
)
def test_setup_without_a_supported_python_says_so_in_one_line(
    checkout: Path, words: tuple[str, ...], reason: str
):
    put(checkout, "python3.13", SHIM)
    done = setup(checkout, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    line, failure = done.stderr.splitlines()
    assert line == (
        f"python: needs 3.11, 3.12 or 3.13, {reason}; "
        "name one: make setup PYTHON=/path/to/python3.13"
    )
    assert failure.startswith("make: ***")
