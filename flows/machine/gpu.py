"""Compares a machine's NVIDIA GPUs and driver with the plugin of JAX that is installed."""

import importlib.util
import os
import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

from flows.config.card_configs import config_for_card
from infra.ray.devices import CUDA_PLUGINS

_OLDEST_DRIVER = {"13": 580, "12": 525}
"""Version of CUDA -> first driver that runs its programs. Source: JAX's installation page."""

_ANSWER_TIMEOUT = 10.0
"""Longest wait for nvidia-smi, which is slow where nothing keeps the driver loaded [s]."""


class GpuFinding(NamedTuple):
    """What is wrong or right with the GPUs: state, what was found, and the cure; see `doctor`."""

    state: Literal["ok", "note", "bad"]
    detail: str
    cure: str = ""


def examine_gpus(
    root: Path = Path("/"), plugins: Collection[str] | None = None
) -> GpuFinding | None:
    """Returns what was found; None where there is neither a GPU nor a plugin, or JAX must use none.

    Args:
      root: root of the file system, where the driver's files lie.
      plugins: versions of CUDA that a plugin of JAX is installed for; None looks them up.
    """
    if not {"cuda", "gpu"} & set(os.environ.get("JAX_PLATFORMS", "cuda").split(",")):
        return None
    if plugins is None:
        installed = CUDA_PLUGINS.items()
        plugins = [cuda for cuda, name in installed if importlib.util.find_spec(name)]
    gpus = [path.name for path in root.glob("dev/nvidia*") if path.name[6:].isdigit()]
    driver = _driver_version(root / "proc/driver/nvidia/version")
    if not gpus and driver is None:
        if not plugins:
            return None
        versions = _join_plugin_versions(plugins)
        detail = f"JAX's plugin for CUDA {versions} is installed, and no NVIDIA driver is"
        cure = "none is needed without a GPU; with one, install its driver or run in its container"
        return GpuFinding("note", detail, cure)
    machine = f"driver {driver}" if driver else "GPUs without a driver's version"
    machine = f"{len(gpus)} NVIDIA devices, {machine}" if gpus else f"NVIDIA {machine}"
    # Newest first, so that the cure is the newest CUDA that the driver runs.
    runs = [
        cuda
        for cuda, oldest in _OLDEST_DRIVER.items()
        if driver is None or int(driver.partition(".")[0]) >= oldest
    ]
    needed = ", ".join(f"{oldest} for CUDA {cuda}" for cuda, oldest in _OLDEST_DRIVER.items())
    cure = f"make setup EXTRAS=cuda{runs[0]}" if runs else f"update the driver: {needed}"
    if not plugins:
        return GpuFinding("bad", f"{machine}; JAX has no plugin and computes on the CPU", cure)
    if not set(plugins) & set(runs):
        versions = _join_plugin_versions(plugins)
        detail = f"{machine} is older than JAX's plugin for CUDA {versions} needs: {needed}"
        return GpuFinding("bad", detail, f"{cure}, in a new .venv" if runs else cure)
    detail = f"{machine}; JAX's plugin for CUDA {_join_plugin_versions(plugins)}"
    return GpuFinding("ok", detail + _describe_smallest_card())


def _describe_smallest_card() -> str:
    """Returns the words on the card with the least memory, and the shipped study for it; or ""."""
    command = ["nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    #   23034, NVIDIA L4        MiB, of which CUDA has 98 %
    cards = [line.partition(", ") for line in told.stdout.splitlines()]
    sizes = [(int(mib), name) for mib, _, name in cards if mib.isdecimal()]
    if told.returncode or not sizes:
        return ""
    mib, name = min(sizes)
    study = config_for_card(mib * 2**20)
    return f"; {study} fits {name}, {mib / 1024:.1f} GiB" if study else ""


def _driver_version(file: Path) -> str | None:
    """Returns the version of the NVIDIA driver that is loaded; None if none is."""
    #   NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  …
    #   NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  …
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", file.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _join_plugin_versions(versions: Collection[str]) -> str:
    return " and ".join(sorted(versions))
