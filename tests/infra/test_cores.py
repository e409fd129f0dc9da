"""A container's limit counts as the machine's cores do."""

import pytest

from infra import cores


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: set(range(7)), raising=False)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max 100000", 7), ("250000 100000", 3), ("50000 100000", 1), ("900000 100000", 7)],
)
def test_a_quota_of_version_2(tmp_path, limit, expected):
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert cores.machine_cores(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 7), ("400000", 4), ("410000", 5)])
def test_a_quota_of_version_1(tmp_path, quota, expected):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cores.machine_cores(tmp_path) == expected


def test_a_launcher_says_how_many(monkeypatch):
    assert cores.num_cores() == cores.machine_cores()
    monkeypatch.setenv("NPROC", "5")
    assert cores.num_cores() == 5
