"""The Python that releases are loaded with: torch is no dependency of the project."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@functools.cache
def torch_python() -> str:
    """Returns an interpreter that has torch and transformers, or skips the test."""
    if named := os.environ.get("PARCEL_TORCH_PYTHON"):
        return named
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return sys.executable
    pytest.skip("no torch: PARCEL_TORCH_PYTHON must name a Python with torch and transformers")


def run_torch(folder: Path, *words: str) -> str:
    """Runs that interpreter in a folder, without a network, and returns what it printed."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    settings = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [torch_python(), *words], cwd=folder, env=kept | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
