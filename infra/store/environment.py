"""The environment in which a step ran: commit, packages, hardware."""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from infra.store.redact import redact

PACKAGES = (
    "apache-beam",
    "av",
    "decord",
    "flax",
    "grain",
    "jax",
    "jaxlib",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "pillow",
    "prefect",
    "ray",
    "sentencepiece",
)
"""Distributions whose versions every manifest records."""

_ROOT = Path(__file__).parents[2]


def execution_environment(accelerator: str = "") -> dict[str, Any]:
    """Returns git commit and dirty-diff digest, package versions and hardware of this process.

    The only environment variables noted are `XLA_FLAGS` and `NPROC` (XLA's number of threads),
    since others may hold credentials.

    Args:
      accelerator: kind of device that the step computed on; "" asks this process's JAX.
    """
    return {
        "git": _git_state(),
        "packages": package_versions(),
        "hardware": {
            "machine": platform.machine(),
            "cpu": _cpu_model(),
            "cpus": os.cpu_count(),
            "accelerator": accelerator or _accelerator_kind(),
            "python": platform.python_version(),
            "system": platform.system(),
            "xla_flags": redact(os.environ.get("XLA_FLAGS", "")),
            "threads": redact(os.environ.get("NPROC", str(os.cpu_count()))),
        },
    }


@functools.cache
def _cpu_model() -> str:
    """Returns the processor's model; "" if the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()


def _accelerator_kind() -> str:
    """Returns the kind of device that JAX computes on here, such as "cpu"; "" if it has not yet.

    Asks only if JAX has its devices already: the first question takes them from other processes.
    """
    return sys.modules["jax"].devices()[0].device_kind if jax_has_devices() else ""


def jax_has_devices() -> bool:
    """Returns whether JAX of this process has its devices already."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def device_count() -> int:
    """Returns the number of devices that JAX of this process computes on; 1 if it has none yet.

    Where several processes compute together, the devices of all count. On CPUs a process is one
    device, into however many JAX divides it.
    """
    if not jax_has_devices():
        return 1
    jax = sys.modules["jax"]
    return jax.process_count() if jax.default_backend() == "cpu" else jax.device_count()


@functools.cache
def _git_state() -> dict[str, str | None]:
    def run_git(*arguments: str) -> str | None:
        try:
            process = subprocess.run(
                ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return process.stdout if process.returncode == 0 else None

    commit = run_git("rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    # Of Python files only: a note or a figure that was edited is no other code.
    diff = run_git("diff", "HEAD", "--", "*.py")
    dirty = hashlib.sha256(diff.encode()).hexdigest() if diff else None
    return {"commit": commit.strip(), "dirty": dirty}


@functools.cache
def package_versions() -> dict[str, str]:
    """Returns the versions of those of `PACKAGES` that are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
