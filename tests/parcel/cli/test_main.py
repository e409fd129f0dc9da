"""The command line: instant help, one example each, errors in one line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

PARCEL = str(Path(sys.executable).with_name("parcel"))
COMMANDS = [
    ["run"], ["prepare"], ["train"], ["transfer"], ["evaluate"], ["report"], ["serve"],
    ["results"], ["lineage", "show"], ["lineage", "trace"], ["lineage", "verify"],
    ["lineage", "rebuild"], ["lineage", "diff"], ["lineage", "replay"], ["lineage", "export"],
    ["convert"], ["data", "check"], ["data", "show"], ["flops"],
    ["predict"], ["score"], ["spectral"], ["gc"], ["deploy"], ["watch"],
    ["schedule", "list"], ["schedule", "stop"], ["schedule", "change"],
]  # fmt: skip


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PARCEL, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(words: list[str]):
    done = call(*words, "--help")
    assert done.returncode == 0
    assert f"Example: parcel {' '.join(words)}" in " ".join(done.stdout.split())


def test_help_imports_nothing_heavy():
    heavy = ("jax", "numpy", "prefect", "ray")
    code = f"import parcel.cli.main, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
    began = time.monotonic()
    call("--help")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("words", [["fly"], ["results", "--colour"], ["serve", "--port", "x"]])
def test_unknown_words_are_the_callers_mistake(words: list[str]):
    done = call(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("parcel: ")
    assert done.stderr.count("\n") == 1
