"""Commands that run a module of ours in a process of its own.

The packages have names that other projects have too: `model`, `flows`, `infra`. Python's `-m` puts
the folder in which it is started first on the path, and a `model.py` there would be imported in
place of ours; so would one of a folder in PYTHONPATH.
"""

import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("flows", "infra", "model", "parcel", "pipelines")
"""The top-level packages of this project."""

_ROOT = Path(__file__).parents[2]
_ONE_AT_A_TIME = threading.Lock()


def module_command(
    module: str, *words: str, python: Sequence[str] = (sys.executable,)
) -> list[str]:
    """Returns the command that runs a module, wherever it is started.

    Args:
      module: dotted name of a module of ours.
      *words: its arguments.
      python: the interpreter, and its own options.
    """
    return [*python, "-P", "-m", module, *words]


def python_path() -> str:
    """Returns a PYTHONPATH with which other processes find the code that this one runs."""
    # "" stands for the folder in which this process runs.
    path = [os.path.abspath(entry) for entry in sys.path]
    # First where something before it is in the way, and only there: it may be site-packages, in
    # which a library can have the name of one of Python's own modules.
    return os.pathsep.join([str(_ROOT), *path] if any(hiding_files(PACKAGES, path)) else path)


def hiding_files(packages: Sequence[str], path: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields package, and the file that is imported in its place if it is looked for on a path.

    Args:
      packages: top-level packages.
      path: folders that come before all others, such as those of PYTHONPATH.
    """
    see_new_files()
    for package in packages:
        found, own = PathFinder.find_spec(package, path), _installed_file(package)
        # A folder without `__init__.py` hides nothing: it has no file of its own.
        if found and found.origin and own and not os.path.samefile(found.origin, own):
            yield package, found.origin


def see_new_files() -> None:
    """Has imports look at folders again, in which there may be files that were not there before."""
    # Python deletes entries of its cache one by one, and fails (KeyError) where another thread has
    # deleted the same one meanwhile.
    with _ONE_AT_A_TIME:
        importlib.invalidate_caches()


def stated_path() -> list[str]:
    """Returns the folders that PYTHONPATH names."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _installed_file(package: str) -> str | None:
    """Returns the file of a package where it is installed, whatever PYTHONPATH has before it."""
    if package in PACKAGES:
        own = _ROOT / package / "__init__.py"
        return str(own) if own.exists() else None  # Of a step's kept sources, some may be left out.
    stated = {os.path.realpath(entry) for entry in stated_path()}
    others = [entry for entry in sys.path if os.path.realpath(entry) not in stated]
    found = PathFinder.find_spec(package, others)
    return found.origin if found else None
