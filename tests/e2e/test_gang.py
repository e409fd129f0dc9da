"""Studies whose trainings are made by two processes each: on a disk, and on a bucket."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from infra.store.store import Store
from model.checkpoint.folder import checked_digest
from tests.e2e.conftest import PARCEL, SMALLEST, environment
from tests.gcs.server import GCS
from tests.processes import command_line

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

WORDS = [
    "compute={num_cpus: 2, cpus_per_stage: 2, gpus_per_stage: 0, processes_per_stage: 2}",
    "intermediary=null",
    "hygiene=null",
]


@pytest.mark.night
def test_stage_1_is_trained_by_two_processes_and_outlives_one(tmp_path: Path):
    store = tmp_path / "store"
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(
            [PARCEL, "train", SMALLEST, *WORDS], env=environment(store), stdout=log, stderr=log
        )
        victim = None
        while victim is None and run.poll() is None:
            children = psutil.Process(run.pid).children(recursive=True)
            victim = next((p for p in children if "--rank 1" in command_line(p)), None)
            time.sleep(0.1)
        assert victim is not None, (tmp_path / "log").read_text()
        victim.kill()
        assert run.wait(timeout=600) == 0, (tmp_path / "log").read_text()
    (made,) = Store(store).artifacts("checkpoint")
    assert made.manifest.name == "stage1 vanilla"
    assert made.manifest.counts["steps"] == 4
    assert (
        "stage1 vanilla: rank 1 was lost (SIGKILL); all members" in (tmp_path / "log").read_text()
    )
    assert made.manifest.environment["processes"] == 2
    assert made.manifest.environment["hardware"]["accelerator"] == "cpu"
    assert len(made.manifest.attempts) == 1  # The worker never died.
    assert checked_digest(made.path) == made.manifest.content
    assert not list((store / "scratch").glob("*/*/gang"))


def test_a_topology_of_two_hosts_has_a_process_on_each_by_its_launcher(tmp_path: Path):
    mpirun = f"{sys.executable} {Path(__file__).parents[1] / 'infra/gang/launcher.py'}"
    words = [*WORDS[1:], "compute={num_cpus: 1, topology: 'v4:2x2x2', gpus_per_stage: 0}"]

    def train(*more: str, code: int) -> str:
        done = subprocess.run(
            [PARCEL, "train", SMALLEST, *words, *more],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    refused = train(code=2)
    assert "compute.launcher must be what starts a process on each of the 2 hosts" in refused
    assert refused.count("\n") == 1
    assert not [*Store(tmp_path).artifacts("checkpoint")]
    launched = f"compute.launcher={mpirun}"
    assert "2 for stage1, one on each host of v4:2x2x2" in train(launched, "--explain", code=0)
    train(launched, code=0)
    (made,) = Store(tmp_path).artifacts("checkpoint")
    assert made.manifest.environment["processes"] == 2
    assert made.manifest.environment["launcher"] == mpirun
    assert made.manifest.counts["steps"] == 4


@pytest.mark.night
def test_transfers_of_two_processes_on_a_bucket_are_made_again_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = [
        "compute={num_cpus: 2, cpus_per_stage: 1, cpus_per_cell: 2, gpus_per_cell: 0, "
        "processes_per_cell: 2}",
        "hygiene=null",
    ]
    with GCS() as gcs:
        gcs.bucket("testing")
        own = {"PARCEL_STORE": "gs://testing/gang", "PARCEL_STATE": str(tmp_path / "state")}
        for name, value in (environment(tmp_path) | gcs.environment | own).items():
            monkeypatch.setenv(name, value)

        def parcel(*words: str) -> str:
            done = subprocess.run(
                [PARCEL, *words], capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            return done.stdout

        parcel("run", SMALLEST, *words)
        made = {
            a.manifest.name: a.manifest for a in Store(own["PARCEL_STORE"]).artifacts("checkpoint")
        }
        stage1, (transfer,) = (
            made["stage1 vanilla"],
            [m for n, m in made.items() if "transfer" in n],
        )
        assert stage1.environment.get("processes", 1) == 1
        assert transfer.environment["processes"] == 2
        told = parcel("lineage", "replay", transfer.key)
        assert f"{transfer.name}" in told
        assert "the same contents" in told
