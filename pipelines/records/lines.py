"""Lines sorted on the disk: lists of inputs may be longer than the memory."""

import contextlib
import heapq
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_RUN_BYTES = 8 << 20
"""Lines that are sorted at a time [characters]: some 12,000 captions, and 25 MB with their keys."""


def sorted_lines(lines: Iterable[str], key: Callable[[str], Any], folder: str) -> Iterator[str]:
    """Yields the lines in the order of `key`; equal ones stay as they are.

    Args:
      lines: each with its newline.
      key: of a line.
      folder: for what is sorted so far [path].
    """
    with contextlib.ExitStack() as stack:
        runs: list[Iterable[str]] = []
        for run, is_last in _runs(lines):
            run.sort(key=key)
            if is_last and not runs:  # All of them, as of most shards.
                yield from run
                return
            file = stack.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder)
            )
            file.writelines(run)
            file.seek(0)
            runs.append(file)
        yield from heapq.merge(*runs, key=key)


def _runs(lines: Iterable[str]) -> Iterator[tuple[list[str], bool]]:
    """Yields so many of the lines at a time as are sorted in memory, and whether these end them."""
    run, size = [], 0
    for line in lines:
        run.append(line)
        size += len(line)
        if size >= _RUN_BYTES:
            yield run, False
            run, size = [], 0
    yield run, True
