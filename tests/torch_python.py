"""The Python that releases are loaded with: torch is no dependency of the project."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@functools.cache
def torch_python(*modules: str) -> str:
    """Returns an interpreter that has torch, transformers and `modules`, or skips the test."""
    python = os.environ.get("PARCEL_TORCH_PYTHON")
    if not python and all(map(importlib.util.find_spec, ("torch", "transformers"))):
        python = sys.executable
    if not python:
        pytest.skip("no torch: PARCEL_TORCH_PYTHON must name a Python with torch and transformers")
    look = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    if modules and subprocess.run([python, "-c", look, *modules], capture_output=True).returncode:
        pytest.skip(f"the Python with torch must have {', '.join(modules)}")
    return python


def run_torch(folder: Path, *words: str) -> str:
    """Runs that interpreter in a folder, without a network, and returns what it printed."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    settings = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [torch_python(), *words], cwd=folder, env=kept | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
