"""Runs several `parcel` commands in one process, since most of each alone is imports.

Its input is a JSON list of word lists, its output a list of [exit code, output, error output].
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from parcel.cli.main import main

_ROOT = Path(__file__).parents[1]


def run(words: list[str]) -> tuple[int, str, str]:
    """Returns the exit code of a command, and what it printed to each stream."""
    sys.argv = ["parcel", *words]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def run_commands(
    commands: Sequence[Sequence[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 600,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs commands in one process of their own, one after another; returns how each ended."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.commands"],
        input=json.dumps([*map(list, commands)]),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**(os.environ if env is None else env), "PYTHONPATH": str(_ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)
    return [
        subprocess.CompletedProcess([*words], *result)
        for words, result in zip(commands, results, strict=True)
    ]


if __name__ == "__main__":
    results = [run(words) for words in json.load(sys.stdin)]
    json.dump(results, sys.stdout)
