"""Many small requests to a store at a time: each takes milliseconds, nearly all of them waiting."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

_MAX_READS = 96
"""Files read at a time."""


def map_reads(read: Callable[[_T], _R], names: Iterable[_T]) -> list[_R]:
    """Returns the results of a function that reads from a store, in the order of its arguments."""
    with ThreadPoolExecutor(_MAX_READS, thread_name_prefix="read") as pool:
        return list(pool.map(read, names))
