"""The versions that pyproject.toml, constraints.txt and locks/ state, per Python and machine."""

import re
import tomllib
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.infra.deploy.files import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUPPORTED = [
    f"3.{minor}"
    for minor in range(100)
    if SpecifierSet(PROJECT["requires-python"]).contains(f"3.{minor}")
]
"""The Pythons that the project supports, from the oldest to the newest."""
MACHINES = ("x86_64", "aarch64")


def environment(python: str = SUPPORTED[-1], machine: str = "x86_64") -> dict[str, str]:
    """Returns the variables of markers for a Python on a Linux machine."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "extra": "",
    }


def applies(requirement: Requirement, where: dict[str, str]) -> bool:
    """Whether a requirement's marker holds in an environment."""
    return requirement.marker is None or requirement.marker.evaluate(where)


def constraints() -> list[Requirement]:
    """Returns the lines of constraints.txt."""
    return [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]


def pinned(python: str = SUPPORTED[-1], machine: str = "x86_64") -> dict[str, str]:
    """Returns library -> its one version under a Python on a machine."""
    where = environment(python, machine)
    found: dict[str, str] = {}
    for line in constraints():
        if applies(line, where):
            (version,) = line.specifier
            name = canonicalize_name(line.name)
            assert version.operator == "==", line
            assert name not in found, f"{name} has two versions for Python {python} on {machine}"
            found[name] = version.version
    return found


def locked(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Returns library -> (its requirement, the digests of its files) of a file of locks/."""
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    found: dict[str, tuple[Requirement, list[str]]] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        line, *digests = re.split(r" +--hash=", entry.strip())
        requirement = Requirement(line)
        assert canonicalize_name(requirement.name) not in found, entry
        found[canonicalize_name(requirement.name)] = requirement, digests
    return found
