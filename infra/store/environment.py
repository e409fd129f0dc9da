"""The environment of a step: commit, packages, hardware."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from infra.store.redact import redact

PACKAGES = (
    "apache-beam", "av", "decord", "flax", "grain", "jax", "jaxlib", "numpy",
    "optax", "orbax-checkpoint", "pillow", "prefect", "ray", "sentencepiece",
)  # fmt: skip
"""Distributions whose versions every manifest records."""

_ROOT = Path(__file__).parents[2]


@functools.cache
def environment() -> dict[str, Any]:
    """Returns git commit and dirty-diff digest, package versions and hardware of this process.

    Of the environment's variables only `XLA_FLAGS` and `NPROC`, XLA's number of threads, are noted:
    others may hold credentials.
    """
    return {
        "git": _git(),
        "packages": _packages(),
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.system(),
            "xla_flags": redact(os.environ.get("XLA_FLAGS", "")),
            "threads": redact(os.environ.get("NPROC", str(os.cpu_count()))),
        },
    }


def _git() -> dict[str, str | None]:
    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(_ROOT), *words], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    diff = ask("diff", "HEAD", "--", "*.py")
    dirty = hashlib.sha256(diff.encode()).hexdigest() if diff else None
    return {"commit": commit.strip(), "dirty": dirty}


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
