"""Lines sorted on the disk: lists of inputs may be longer than the memory."""

import contextlib
import heapq
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

_RUN_BYTES = 2 << 20
"""Lines that are sorted at a time [characters]: some 4,000 captions, and 7 MB with their keys."""

_MERGED = 64
"""Sorted runs that become a longer one, so that few files are open whatever is sorted."""


def sorted_lines(lines: Iterable[str], key: Callable[[str], Any], folder: str) -> Iterator[str]:
    """Yields the lines in the order of `key`; equal ones stay as they are.

    Args:
      lines: each with its newline.
      key: of a line.
      folder: for what is sorted so far [path].
    """
    with contextlib.ExitStack() as stack:
        levels: list[list[TextIO]] = [[]]  # Runs of runs of runs; those of a level are as long.

        def spill(run: Iterable[str], level: int = 0) -> None:
            if level == len(levels):
                levels.append([])
            if len(levels[level]) == _MERGED:
                files, levels[level] = levels[level], []
                spill(heapq.merge(*files, key=key), level + 1)
                for file in files:
                    file.close()
            file = stack.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder)
            )
            file.writelines(run)
            file.seek(0)
            levels[level].append(file)

        for run, is_last in _runs(lines):
            run.sort(key=key)
            if is_last and not levels[0]:  # All of them, as of most lists.
                yield from run
                return
            spill(run)
        earlier_first = (file for level in reversed(levels) for file in level)
        yield from heapq.merge(*earlier_first, key=key)


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
