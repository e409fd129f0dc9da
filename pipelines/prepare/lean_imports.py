"""Imports of a library without its optional dependencies, as if these were not installed."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextlib.contextmanager
def imports_without(*names: str) -> Iterator[None]:
    """Makes imports of these modules fail inside the block; modules already loaded stay.

    For libraries that import a large module only to support its users. Other threads import what
    they like meanwhile.
    """
    finder = _AbsentModules(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _AbsentModules(MetaPathFinder):
    """Finds no module of some names, in the thread that made it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._thread = names, threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises the error of a module that is not installed; None leaves the search to others."""
        del path, target
        if fullname in self._names and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None
