"""GPUs, their driver and JAX's plugin: what is missing is told in one line, with its cure."""

import re
from collections.abc import Collection
from pathlib import Path

import pytest

from flows.machine.gpu import GpuFinding, examine_gpus

VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\nGCC 12.2.0\n"


@pytest.fixture(autouse=True)
def _only_gpus_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("PATH", "")  # A program of this machine's own driver is not asked.


def machine(
    root: Path, plugins: Collection[str], *, driver: str = "", devices: int = 0
) -> GpuFinding | None:
    """What is found on a machine with these files, where these plugins are installed."""
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(devices))):
        if devices:
            (root / "dev" / name).touch()
    if driver:
        folder = root / "proc/driver/nvidia"
        folder.mkdir(parents=True)
        (folder / "version").write_text(VERSION.format(driver))
    return examine_gpus(root, plugins)


def test_without_gpu_and_plugin_there_is_nothing_to_say(tmp_path: Path):
    assert machine(tmp_path, []) is None


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("570.86.10", "cuda12")])
def test_a_gpu_without_a_plugin_needs_the_one_that_its_driver_runs(tmp_path, driver, extra):
    found = machine(tmp_path, [], driver=driver, devices=2)
    detail = f"2 NVIDIA devices, driver {driver}; JAX has no plugin and computes on the CPU"
    assert found == GpuFinding("bad", detail, f"make setup EXTRAS={extra}")


def test_a_driver_that_is_too_old_is_told_with_what_it_runs(tmp_path: Path):
    found = machine(tmp_path, ["13"], driver="550.54.14", devices=1)
    needed = "580 for CUDA 13, 525 for CUDA 12"
    detail = "1 NVIDIA devices, driver 550.54.14 is older than JAX's plugin for CUDA 13 needs: "
    cure = "make setup EXTRAS=cuda12, in a new .venv"
    assert found == GpuFinding("bad", detail + needed, cure)


def test_a_driver_that_runs_no_plugin_must_be_updated(tmp_path: Path):
    found = machine(tmp_path, ["12"], driver="470.82.01", devices=1)
    assert found is not None
    assert found.state == "bad"
    assert found.cure == "update the driver: 580 for CUDA 13, 525 for CUDA 12"


def test_a_plugin_without_a_driver_is_a_note(tmp_path: Path):
    found = machine(tmp_path, ["12", "13"])
    assert found is not None
    assert found.state == "note"
    assert re.search("CUDA 12 and 13 .*no NVIDIA driver", found.detail)
    assert found.cure


def test_a_machine_that_fits_is_ok(tmp_path: Path):
    found = machine(tmp_path, ["12"], driver="580.65.06", devices=8)
    detail = "8 NVIDIA devices, driver 580.65.06; JAX's plugin for CUDA 12"
    assert found == GpuFinding("ok", detail)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("23034, NVIDIA L4", "; configs/pali3b_24gb.yaml fits NVIDIA L4, 22.5 GiB"),
        ("23028, NVIDIA A10", "; configs/pali3b_24gb.yaml fits NVIDIA A10, 22.5 GiB"),
        (
            "24564, NVIDIA GeForce RTX 4090",
            "; configs/pali3b_24gb.yaml fits NVIDIA GeForce RTX 4090, 24.0 GiB",
        ),
        (
            "81559, NVIDIA H100 80GB HBM3",
            "; configs/pali3b_1gpu.yaml fits NVIDIA H100 80GB HBM3, 79.6 GiB",
        ),
        # Of several cards, a study must fit the smallest.
        (
            "81559, NVIDIA H100 80GB HBM3\n23034, NVIDIA L4",
            "; configs/pali3b_24gb.yaml fits NVIDIA L4, 22.5 GiB",
        ),
        ("16376, NVIDIA GeForce RTX 4080", ""),
        ("[N/A], NVIDIA GB10", ""),
        ("No devices were found", ""),
    ],
)
def test_the_shipped_study_is_that_for_the_memory_of_the_card(
    answer: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # A driver's program of another machine: what it prints there is all that differs here.
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    found = machine(tmp_path, ["13"], driver="580.65.06", devices=1)
    detail = "1 NVIDIA devices, driver 580.65.06; JAX's plugin for CUDA 13"
    assert found == GpuFinding("ok", detail + told)


def test_a_machine_that_must_use_its_cores_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert machine(tmp_path, [], driver="580.65.06", devices=1) is None
