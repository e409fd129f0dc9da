"""A study in Slurm's queue, whose Stage 1 two nodes train: the bytes of two processes of one."""

import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.store.store import Artifact, Store
from model.checkpoint.folder import checked_digest
from tests.e2e.conftest import PARCEL, SMALLEST, environment
from tests.processes import command_line
from tests.slurm import cluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.deep,
    pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing()),
]

ROOT = Path(__file__).parents[2]
BATCH = str(ROOT / "infra/deploy/slurm/study.sbatch")
WORDS = ["intermediary=null", "hygiene=null"]


def members(run: subprocess.Popen[bytes]) -> dict[str, psutil.Process]:
    """Rank -> its process, of those that Slurm started."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                line = command_line(process)
                if "flows.steps.member" in line and "python" in Path(process.exe()).name:
                    found[process.environ().get("SLURM_PROCID", "")] = process
    return found


def stage1(store: Path) -> Artifact:
    (found,) = [a for a in Store(store).artifacts("checkpoint") if "stage1" in a.manifest.name]
    return found


@pytest.fixture
def slurm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def told_by(slurm: Path, log: Path) -> str:
    """Returns the end of a job's log or, if the job did not start, of Slurm's logs."""
    logs = [log] if log.exists() else sorted(slurm.glob("slurm*.log"))
    return "\n".join(f"{log.name}: {log.read_text()[-4000:]}" for log in logs)


def test_a_study_on_two_nodes_of_slurm_outlives_a_member(tmp_path: Path, slurm: Path):
    own = "compute={num_cpus: 2, cpus_per_stage: 2, gpus_per_stage: 0, processes_per_stage: 2}"
    alone = subprocess.run(
        [PARCEL, "train", SMALLEST, own, *WORDS],
        env=environment(tmp_path / "alone"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert alone.returncode == 0, alone.stdout + alone.stderr
    log, size = tmp_path / "log", ["--nodes=2", "--cpus-per-task=1", "--gpus-per-node=0"]
    batch = ["sbatch", "--wait", *size, f"--output={log}", BATCH, SMALLEST, *WORDS]
    here = {"PARCEL_CHECKOUT": str(ROOT), "PATH": f"{Path(PARCEL).parent}:/usr/bin:/bin:/usr/sbin"}
    run = subprocess.Popen(
        cluster.within(slurm, batch), env=environment(tmp_path / "store") | here, cwd=ROOT
    )
    try:
        nodes: set[str] = set()
        deadline = time.monotonic() + 400
        while run.poll() is None and not nodes and time.monotonic() < deadline:
            there = members(run)
            if {"0", "1"} <= there.keys():
                nodes = {there[rank].environ()["SLURMD_NODENAME"] for rank in ("0", "1")}
                time.sleep(3)  # Somewhere in its start: each member imports for longer.
                there["1"].kill()
            time.sleep(0.1)
        assert nodes == {"node-a", "node-b"}, told_by(slurm, log)
        assert run.wait(timeout=600) == 0, told_by(slurm, log)
    finally:
        run.kill()  # All that is in its namespaces ends with it.
        run.wait()
    told = log.read_text()
    # Of SIGKILL to one and SIGTERM to the other, after it, `srun` tells the larger; where they had
    # begun to train, the other may say first that it was left alone.
    by_launcher = r"a process of the launcher was lost \(exit code 1[34].*srun: error: node-"
    left_alone = r"rank 0 was lost \(exit code 17: "
    assert re.search(rf"stage1 vanilla: ({by_launcher}|{left_alone})", told, re.DOTALL), told
    assert "all members are restarted" in told
    made, same = stage1(tmp_path / "store"), stage1(tmp_path / "alone")
    assert made.manifest.environment["launcher"].startswith("srun --overlap")
    assert made.manifest.content == same.manifest.content
    assert checked_digest(made.path) == made.manifest.content
    assert Store(tmp_path / "store").artifacts("results")
