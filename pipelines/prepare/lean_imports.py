"""Imports without what is optional to them, as if it were not installed."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Lets imports of these modules fail meanwhile; those that are loaded already stay.

    For libraries that import a large one only to be of use to those who have it.
    """
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
