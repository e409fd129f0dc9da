"""Variables of the environment that decide numbers: the same bytes with and without them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.effects.product import PARCEL, SMALLEST, environment

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

ODD = {
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_RANDOM_SEED_OFFSET": "7",
    "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
}
"""Settings of JAX, as somebody's `.bashrc` has them."""

RECORDED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def train(store: Path, own: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Trains the stages of the smallest study."""
    done = subprocess.run(
        [PARCEL, "train", SMALLEST],
        env=environment(store, own),
        cwd=store.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def checkpoints(store: Path) -> dict[str, Any]:
    """Key of each checkpoint -> its manifest."""
    return {
        path.stem: json.loads(path.read_text())
        for path in (store / "manifests" / "checkpoint").glob("*.json")
    }


def test_a_variable_of_jax_changes_no_byte_and_others_are_recorded(tmp_path: Path):
    clean, odd = tmp_path / "clean", tmp_path / "odd"
    train(clean, {})
    # The data are the same: only what JAX computes is made again, in a store of its own.
    shutil.copytree(clean, odd, symlinks=True, ignore=shutil.ignore_patterns("prefect"))
    shutil.rmtree(odd / "manifests" / "checkpoint")
    done = train(odd, {**ODD, **RECORDED})
    (line,) = [line for line in done.stderr.splitlines() if "left out of the environment" in line]
    assert all(f"{name}={value}" in line for name, value in ODD.items())
    was, now = checkpoints(clean), checkpoints(odd)
    assert len(was) == 2
    assert {key: one["content"] for key, one in was.items()} == {
        key: one["content"] for key, one in now.items()
    }
    for key in was:
        before, after = (m[key]["environment"]["hardware"]["variables"] for m in (was, now))
        assert after == {**before, **RECORDED}
