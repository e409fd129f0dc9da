"""Runs several `parcel` commands in one process, since most of each alone is imports.

Reads a JSON list of word lists; writes a JSON list of [exit code, what was printed].
"""

import contextlib
import io
import json
import sys

from parcel.cli.main import main


def run(words: list[str]) -> tuple[int, str]:
    """Returns the exit code of a command, and what it printed to both streams."""
    sys.argv = ["parcel", *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


if __name__ == "__main__":
    results = [run(words) for words in json.load(sys.stdin)]
    json.dump(results, sys.stdout)
