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
from infra.store.variables import recorded_variables

RECORDED_PACKAGES = (
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
_DISTRIBUTION = "parcel-pipeline"


def execution_environment(accelerator: str = "") -> dict[str, Any]:
    """Returns commit and version of the code, package versions and hardware of this process.

    Of environment variables, `XLA_FLAGS`, `NPROC` (XLA's number of threads) and those that may
    decide bytes are noted (`infra.store.variables`); others may hold credentials.

    Args:
      accelerator: kind of device that the step computed on; "" asks this process's JAX.
    """
    return {
        "git": git_state(),
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
            "variables": redact(recorded_variables(os.environ)),
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
def git_state(root: Path = _ROOT) -> dict[str, str | None]:
    """Returns the commit of the product's code, the digest of what was edited since, its version.

    The commit is None where the code lies in no repository of its own: a wheel has its version
    alone. "refused" is there if Git has a repository and does not open it.

    Args:
      root: folder of the product's packages.
    """
    # Git looks upwards, and through its variables: a virtual environment within somebody's project,
    # or a home folder kept in Git, has a commit that knows nothing of this code. So does the
    # repository of a hook that starts a run.
    elsewhere = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE")
    own = {name: value for name, value in os.environ.items() if name not in elsewhere}

    def run_git(*arguments: str) -> tuple[str | None, str]:
        try:
            process = subprocess.run(
                ["git", "-C", str(root), *arguments],
                capture_output=True,
                text=True,
                timeout=20,
                env={**own, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None, ""
        return (process.stdout if process.returncode == 0 else None), process.stderr

    version = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version(_DISTRIBUTION)
    this_file = Path(__file__).relative_to(_ROOT)
    tracked, complaint = run_git("ls-files", "--error-unmatch", this_file.as_posix())
    if tracked is None:
        # A repository of another user, such as one that is mounted into a container.
        is_refused = "dubious ownership" in complaint
        refused = {"refused": " ".join(complaint.split())[:200]} if is_refused else {}
        return {"commit": None, "dirty": None, "version": version, **refused}
    commit, _ = run_git("rev-parse", "HEAD")
    # Of Python files only: a note or a figure that was edited is no other code.
    diff, _ = run_git("diff", "HEAD", "--", "*.py")
    dirty = hashlib.sha256(diff.encode()).hexdigest() if diff else None
    return {"commit": commit and commit.strip(), "dirty": dirty, "version": version}


@functools.cache
def package_versions() -> dict[str, str]:
    """Returns the versions of those of `RECORDED_PACKAGES` that are installed."""
    versions = {}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
