"""Functions that a config refers to by name, in one of three forms.

my_package.scores:f1       a function of a module that Python finds
path/to/my_metric.py:f1    a function of one file
soft_f1                    an entry point that an installed distribution declares
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Mapping
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from infra.errors import did_you_mean, raised_at

_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


def file_reference(reference: str) -> tuple[Path, str] | None:
    """Returns the file and the name in it; None if the reference is of another form."""
    match = _FILE.fullmatch(reference)
    return (Path(match[1]), match[2]) if match else None


def module_reference(reference: str) -> tuple[str, str] | None:
    """Returns the module and the name in it; None if the reference is of another form."""
    match = _REFERENCE.fullmatch(reference)
    return (match[1], match[2]) if match and not reference.endswith(".py") else None


@functools.cache
def entry_points(group: str) -> dict[str, str]:
    """Returns the entry points of a group, from all distributions: name -> "module:name"."""
    points = importlib.metadata.entry_points(group=group)
    return {point.name: point.value for point in sorted(points, key=lambda p: (p.name, p.value))}


def load_reference(reference: str) -> Any:
    """Returns the object that "module:name" refers to.

    Raises:
      ValueError: if the module cannot be imported, or lacks the name; the message is one line.
    """
    parts = module_reference(reference)
    if parts is None:
        raise ValueError(f"a function must be named as module:function, got {reference!r}.")
    module, name = parts
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # The module's own code may raise anything.
        message = " ".join(str(error).split())
        # Only if the module itself is missing: if it is there and one of its own imports fails,
        # another place to look is no cure.
        is_missing = (
            isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        )
        cure = "; install it, put its folder on PYTHONPATH, or name its file" if is_missing else ""
        # An error in the module's own code is the user's to find, so it says where it was raised.
        place = raised_at(error, _source_file(module))
        where = f" ({place})" if place else ""
        raise ValueError(
            f"{module} cannot be imported: {type(error).__name__}: {message}{where}{cure}"
        ) from error
    if not hasattr(imported, name):
        source_file = getattr(imported, "__file__", None) or module
        hint = did_you_mean(name, (other for other in vars(imported) if not other.startswith("_")))
        raise ValueError(f"{module} has no {name!r}; {source_file} must define it{hint or '.'}")
    return getattr(imported, name)


def _source_file(module: str) -> str:
    """Returns the path of a module's source; "" if it has none or is not found."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        return (spec and spec.origin) or ""
    return ""


def load_module(name: str) -> ModuleType:
    """Returns the module of a dotted name, imported if need be."""
    return importlib.import_module(name)


def add_sources(files: Mapping[str, bytes]) -> None:
    """Makes modules importable in this process from their sources; imported ones stay as they are.

    Args:
      files: path relative to a folder of Python's path, such as "my_package/scores.py" -> source.
    """
    if files and not any(
        isinstance(finder, _SourceFinder) and finder.files == files for finder in sys.meta_path
    ):
        # Before the finders of files, so that the code that was sent is the code that runs,
        # although this machine may have a module of that name.
        sys.meta_path.insert(0, _SourceFinder(files))


class _SourceFinder(MetaPathFinder, InspectLoader):
    """Imports modules from source files that another process sent."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        #   "my_package/__init__.py"  ->  my_package
        #   "my_package/scores.py"    ->  my_package.scores
        self._paths = {
            path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
            for path in files
        }

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in self._paths:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=self._paths[fullname])

    def is_package(self, fullname: str) -> bool:
        return self._paths[fullname].endswith("__init__.py")

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self.files[self._paths[fullname]])

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), self._paths[fullname], "exec", dont_inherit=True)
