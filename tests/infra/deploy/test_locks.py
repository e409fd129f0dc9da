"""What images are installed from: complete, of the pinned versions, by digests, of no address."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infra.deploy.files import ROOT
from tests.infra.deploy.pins import (
    MACHINES,
    PROJECT,
    SUPPORTED,
    applies,
    environment,
    locked,
    pinned,
)

NAMES = sorted(path.stem for path in (ROOT / "locks").glob("*.txt"))
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_makefile_makes_them_and_no_others():
    (extras,) = re.findall(r"^LOCKED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted([*extras.split(), "build", "parcel"]) == NAMES
    assert {*extras.split()} <= EXTRAS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_line_has_one_version_and_digests_and_none_an_address(name: str):
    assert "://" not in (ROOT / "locks" / f"{name}.txt").read_text()
    for requirement, digests in locked(name).values():
        (version,) = requirement.specifier
        assert version.operator == "==", requirement
        assert digests, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in digests), requirement


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize("name", NAMES)
def test_versions_are_those_of_constraints(name: str, python: str):
    pins = pinned(python)
    for library, (requirement, _) in locked(name).items():
        # What CUDA itself consists of is pinned here alone; and none of it is for other systems.
        of_cuda = library not in pins and library.startswith(("jax-cuda", "nvidia-"))
        if applies(requirement, environment(python)) and not of_cuda:
            assert requirement.specifier.contains(pins[library]), requirement


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_that_the_project_requires_is_missing(python: str, machine: str):
    """Libraries are followed as far as they are installed here."""
    where = environment(python, machine)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for name in NAMES:
        own = {"build": build, "parcel": PROJECT["dependencies"]}.get(name) or EXTRAS[name]
        known = {**locked(name), **(locked("parcel") if name != "build" else {})}
        missing, seen, open_ = [], set(), [(name, line) for line in own]
        while open_:
            source, line = open_.pop()
            requirement = Requirement(line)
            library = canonicalize_name(requirement.name)
            extras = ["", *sorted(requirement.extras)]
            if not any(applies(requirement, {**where, "extra": extra}) for extra in ("", "all")):
                continue
            lock, _ = known.get(library, (None, []))
            if lock is None or not (applies(lock, where) and fits(requirement, lock)):
                missing.append((source, line))
            for extra in extras:
                if (library, extra) not in seen:
                    seen.add((library, extra))
                    open_ += [
                        (library, more)
                        for more in requirements(library)
                        if applies(Requirement(more), {**where, "extra": extra})
                    ]
        assert missing == [], name


def fits(requirement: Requirement, lock: Requirement) -> bool:
    """Whether a requirement accepts the version of a lock's line."""
    (version,) = lock.specifier
    return requirement.specifier.contains(version.version, prereleases=True)


def requirements(library: str) -> list[str]:
    """Returns what an installed library requires; nothing of one that is not installed."""
    try:
        return requires(library) or []
    except PackageNotFoundError:
        return []
