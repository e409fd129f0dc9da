"""Lines of JSON, sorted on the disk: lists of inputs may be longer than the memory."""

import contextlib
import heapq
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_RUN_BYTES = 16 << 20
"""Lines that are sorted at a time [characters]: some 25,000 captions."""


def sorted_lines(
    paths: Iterable[str | os.PathLike[str]], key: Callable[[dict[str, Any]], Any], folder: str
) -> Iterator[str]:
    """Yields the lines of all files in the order of `key`; equal ones stay as they are.

    Args:
      paths: files of a JSON object a line.
      key: of such an object.
      folder: for what is sorted so far [path].
    """

    def key_of(line: str) -> Any:
        return key(json.loads(line))

    with contextlib.ExitStack() as stack:
        runs = []
        for run in _runs(paths):
            run.sort(key=key_of)
            file = stack.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder)
            )
            file.writelines(run)
            file.seek(0)
            runs.append(file)
        yield from heapq.merge(*runs, key=key_of)


def _runs(paths: Iterable[str | os.PathLike[str]]) -> Iterator[list[str]]:
    """Yields the lines of all files, so many at a time as are sorted in memory."""
    run, size = [], 0
    for path in paths:
        with open(path, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                run.append(line)
                size += len(line)
                if size >= _RUN_BYTES:
                    yield run
                    run, size = [], 0
    yield run
