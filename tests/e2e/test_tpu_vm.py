"""A study whose Stage 1 is trained on two hosts that ssh reaches, with a bucket between them."""

import json
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import PARCEL, SMALLEST, environment
from tests.gcs.server import GCS
from tests.infra.ssh.sshd import HOSTS, gcloud, node, sshd
from tests.nodes.test_nodes import Stored
from tests.processes import command_line

pytestmark = [pytest.mark.e2e, pytest.mark.night]

STUDY = ["intermediary=null", "hygiene=null", "stage1.total_steps=60", "stage1.save_steps=5"]


def member(rank: int) -> psutil.Process | None:
    """The process of a rank, which is no child of the run's."""
    for process in psutil.process_iter():
        try:
            is_member = "-m flows.steps.member gs://testing/" in command_line(process)
            if is_member and process.environ().get("PMI_RANK") == str(rank):
                return process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return None


def test_a_stage_on_the_hosts_of_a_tpu_vm_outlives_a_member(tmp_path: Path):
    own = {"PARCEL_STORE": "gs://testing/studies", "PARCEL_STATE": str(tmp_path / "state")}
    log = tmp_path / "log"
    with GCS() as gcs, log.open("w") as out:
        stored = Stored(gcs.bucket("testing"))
        there = {**gcs.environment, "PARCEL_STATE": str(tmp_path / "hosts")}
        here = environment(tmp_path) | gcs.environment | own
        with sshd(tmp_path / "sshd", there) as launcher:
            compute = {
                "num_cpus": 1, "cpus_per_stage": 1, "gpus_per_stage": 0,
                "processes_per_stage": 2, "launcher": launcher,
            }  # fmt: skip
            path = gcloud(tmp_path / "bin", {**node(*HOSTS), **internal()})["PATH"]
            run = subprocess.Popen(
                [PARCEL, "train", SMALLEST, *STUDY, f"compute={json.dumps(compute)}"],
                env={**here, "PATH": path},
                stdout=out,
                stderr=out,
            )
            try:
                deadline = time.monotonic() + 400
                while not any(name.endswith("/1.json") for name in stored.names("scratch/")):
                    assert run.poll() is None, log.read_text()[-4000:]
                    assert time.monotonic() < deadline, log.read_text()[-4000:]
                    time.sleep(0.1)
                victim = member(1)
                assert victim is not None
                victim.kill()
                assert run.wait(600) == 0, log.read_text()[-4000:]
            finally:
                run.terminate()
                run.wait(60)
        assert member(0) is None
        assert "all members are restarted" in log.read_text()
        (made,) = stored.manifests("checkpoint").values()
        launched = made["environment"]["launcher"]
        assert launched.startswith("tpu-vm --cpus 1 --gpus 0 --wait 900 --name pod")
        assert made["environment"]["processes"] == 2
        # The same training by two processes of this machine.
        again = subprocess.run(
            [PARCEL, "lineage", "replay", made["key"]],
            env=here,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    assert "the same contents" in again.stdout


def internal() -> dict[str, object]:
    """Hosts whose internal addresses are also those at which sshd listens."""
    return {"networkEndpoints": [{"ipAddress": address} for address in HOSTS]}
