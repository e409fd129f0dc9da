"""Imports of a library without its optional dependencies, as if these were not installed."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def imports_without(*names: str) -> Iterator[None]:
    """Makes imports of these modules fail inside the block; modules already loaded stay.

    For libraries that import a large module only to support its users.
    """
    absent = [name for name in names if name not in sys.modules]
    # None in `sys.modules` makes an import raise ModuleNotFoundError.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
