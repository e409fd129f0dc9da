"""Sorting of lines on disk, for lists of inputs that do not fit in memory."""

import contextlib
import heapq
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO


def sorted_lines(
    lines: Iterable[str],
    key: Callable[[str], Any],
    folder: str,
    *,
    run_size: int = 2 << 20,
    max_runs: int = 64,
) -> Iterator[str]:
    """Yields the lines in the order of `key`; lines with equal keys keep their order.

    Args:
      lines: the lines, each with its newline.
      key: function from a line to its sort key.
      folder: folder for temporary files [path].
      run_size: size of a run, the lines sorted in memory at a time [characters]; the default is
        some 4,000 captions, and 7 MB with their keys.
      max_runs: sorted runs merged into a longer one, so that few files are open however long the
        list is.
    """
    with contextlib.ExitStack() as stack:
        # A run of level n + 1 is a merge of `max_runs` runs of level n.
        levels: list[list[TextIO]] = [[]]

        def spill(run: Iterable[str], level: int = 0) -> None:
            if level == len(levels):
                levels.append([])
            # 64 runs of 2 MB are merged into one of level 1, 64 of these into one of level 2, and
            # so on, like carries to the base 64: no more than 64 files of a level are open.
            if len(levels[level]) == max_runs:
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

        for run, is_last in _split_into_runs(lines, run_size):
            run.sort(key=key)
            if is_last and not levels[0]:  # All lines fit in memory, as for most lists.
                yield from run
                return
            spill(run)
        # `heapq.merge` prefers earlier files among equal keys; higher levels hold earlier lines.
        earlier_first = (file for level in reversed(levels) for file in level)
        yield from heapq.merge(*earlier_first, key=key)


def _split_into_runs(lines: Iterable[str], run_size: int) -> Iterator[tuple[list[str], bool]]:
    """Yields runs of lines small enough to sort in memory, and whether a run is the last."""
    run, size = [], 0
    for line in lines:
        run.append(line)
        size += len(line)
        if size >= run_size:
            yield run, False
            run, size = [], 0
    yield run, True
