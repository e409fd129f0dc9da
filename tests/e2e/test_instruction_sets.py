"""The demo says the same with every instruction set of x86: three whole runs."""

import platform
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import PARCEL, environment
from tests.e2e.margins import (
    apart,
    difference_of_methods,
    means,
    out_of_range,
    too_close_to_chance,
)

ISAS = ("AVX512", "AVX2", "SSE4_2")
"""The last has no fused multiply-add, and vectors of a quarter of the first one's length."""


@pytest.mark.e2e
@pytest.mark.night
@pytest.mark.timeout(3 * 3600)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86")
def test_the_demo_says_the_same_with_every_instruction_set(tmp_path: Path):
    tables = [_results(tmp_path / isa, f"--xla_cpu_max_isa={isa}") for isa in ISAS]
    for results in tables:
        assert len(means(results)) == 2 * (1 + 3 * 3)
        assert too_close_to_chance(results) == []
        assert out_of_range(results) == []
        assert difference_of_methods(results, 16) > 6
    assert apart(tables) == []


def _results(folder: Path, flags: str) -> str:
    """Returns the JSON of the demo's results table, from a run in a store of its own."""
    folder.mkdir()
    env = {**environment(folder / "store"), "XLA_FLAGS": flags}

    def parcel(*words: str) -> str:
        done = subprocess.run(
            [PARCEL, *words], env=env, cwd=folder, capture_output=True, text=True, timeout=3500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    parcel("run")
    return parcel("results", "demo", "--format", "json")
