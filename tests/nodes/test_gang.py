"""A training by processes of several nodes that share nothing, one of which is lost."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.store.store import Store
from tests.e2e.conftest import environment
from tests.nodes.machines import CHECKOUT, Machine, Machines, skip_without_namespaces
from tests.nodes.test_nodes import PARCEL, Stored, wait_for
from tests.processes import command_line

pytestmark = [pytest.mark.e2e, pytest.mark.night]

CONFIG = str(CHECKOUT / "tests/e2e/smallest.yaml")
STUDY = ("intermediary=null", "hygiene=null", "stage1.total_steps=60", "stage1.save_steps=5")
TOGETHER = (
    "compute={cpus_per_stage: 1, gpus_per_stage: 0, processes_per_stage: 2, launcher: ray, "
    "ray_address: auto}"
)
ALONE = "compute={num_cpus: 2, cpus_per_stage: 2, gpus_per_stage: 0, processes_per_stage: 2}"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    skip_without_namespaces()
    with Machines(3, tmp_path, cores=2) as made:
        yield made


def members(machine: Machine) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in machine.init.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                line = command_line(process)
                if "flows.steps.member" in line and "infra.ray.gang" not in line:
                    found.append(process)
    return found


EXACT = ("stage1.exact_shards=2",)
LARGE = TOGETHER.replace("cpus_per_stage: 1", "cpus_per_stage: 2, node_wait: 10")
"""A member fills a node, and the step has a core of another, so two of three nodes are needed."""


@pytest.mark.parametrize(
    ("study", "compute", "note"),
    [
        pytest.param(STUDY, TOGETHER, "all members are restarted", id="as many again"),
        pytest.param(STUDY + EXACT, LARGE, "1 of 2 processes", id="the one that is left"),
    ],
)
def test_a_gang_of_several_nodes_outlives_one(
    machines: Machines, tmp_path: Path, study: tuple[str, ...], compute: str, note: str
):
    stored = Stored(machines.gcs.store.bucket("testing"))
    log = tmp_path / "run.log"
    with log.open("w") as out:
        command = ["env", f"PYTHONPATH={CHECKOUT}", PARCEL, "train", CONFIG, *study, compute]
        run = machines.popen(*command, on=machines.head, out=out)

    def victim() -> str:
        """A node with a member, that is not its supervisor's, once there is a point to go on."""
        whole = [name for name in stored.names("scratch/") if name.endswith("/1.json")]
        holders = set(stored.leases().values())
        if not whole:
            return ""
        return next((n for n, m in machines.nodes.items() if n not in holders and members(m)), "")

    lost = wait_for(victim, run, log)
    others = [name for name, machine in machines.nodes.items() if members(machine)]
    machines.nodes[lost].kill()
    began = time.monotonic()
    assert run.wait(timeout=300) == 0, log.read_text()[-3000:]
    print(f"{others} trained, {lost} was killed; done {time.monotonic() - began:.0f} s later")
    assert len(others) == 2
    told = log.read_text()
    assert note in told
    (made,) = stored.manifests("checkpoint").values()
    assert made["environment"]["launcher"].startswith("ray --cpus ")
    assert made["environment"]["processes"] == 2
    assert made["environment"]["hardware"]["accelerator"] == "cpu"
    assert not [name for name in stored.names("scratch/") if made["key"] in name]
    # The same training on one machine, with a disk.
    here = tmp_path / "here"
    alone = subprocess.run(
        [PARCEL, "train", CONFIG, *study, ALONE],
        env=environment(here) | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stdout[-3000:] + alone.stderr[-3000:]
    (same,) = Store(here).artifacts("checkpoint")
    assert same.manifest.content == made["content"]
    there = stored.files(made)
    own = {p.name: p.read_bytes() for p in same.path.iterdir() if p.name.startswith("params")}
    assert own == {name: there[name] for name in own}
    events = [name for name in there if name.startswith("events/")]
    assert len(events) == 1
    assert len(there[events[0]]) > 1000
