"""A whole study on nodes that share nothing, while one is killed and another one stops."""

import dataclasses
import datetime
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.store.store import Store
from tests.e2e.conftest import SMALLEST, environment
from tests.gcs.objects import Bucket
from tests.nodes.machines import CHECKOUT, VENV, Machines, skip_without_namespaces

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

PARCEL = str(VENV / "bin" / "parcel")
PREFIX = "studies/"
EVERY = 9
"""Updates between two lines of a training's log."""
STUDY = (
    "hygiene=null",
    # Long enough to be hit in the middle, on a machine of any speed.
    "stage1.total_steps=40",
    "stage1.save_steps=10",
    f"stage1.log_steps={EVERY}",
    "intermediary.total_steps=24",
    "intermediary.save_steps=6",
    f"intermediary.log_steps={EVERY}",
)
KILL_WITHIN, STOP_WITHIN = 15.0, 30.0
"""From the loss of a node to the next try of what it held, on another one [s]."""


@dataclasses.dataclass(frozen=True)
class Lost:
    """A node that was lost.

    Attributes:
      node: its name.
      at: when [s since 1970].
      keys: of the steps that it held.
      resumable: those that had a checkpoint in the store.
      within: time until they are at work elsewhere [s].
    """

    node: str
    at: float
    keys: set[str]
    resumable: set[str]
    within: float


@dataclasses.dataclass(frozen=True)
class Stored:
    """The study's store, looked at where the bucket keeps it."""

    bucket: Bucket

    def names(self, prefix: str) -> list[str]:
        """The names below a prefix, without the store's own."""
        found = [name.removeprefix(PREFIX) for name in list(self.bucket.names)]
        return [name for name in found if name.startswith(prefix)]

    def json(self, name: str) -> Any:
        return json.loads(self.bucket.objects[PREFIX + name].data)

    def leases(self) -> dict[str, str]:
        """Key of a step under way -> the machine that holds it."""
        found = {}
        for name in self.names("leases/"):
            try:
                found[Path(name).stem] = self.json(name)["holder"]["host"]
            except KeyError:
                continue  # Given back meanwhile.
        return found

    def copied(self) -> set[str]:
        """Keys of steps with a resumable checkpoint in the store."""
        return {n.split("/")[1] for n in self.names("scratch/") if n.endswith("/0.json")}

    def files(self, manifest: dict[str, Any]) -> dict[str, bytes]:
        folder = f"{PREFIX}artifacts/{manifest['key']}/{manifest['folder']}"
        return {name: self.bucket.objects[f"{folder}/{name}"].data for name in manifest["files"]}

    def manifests(self, kind: str = "") -> dict[str, dict[str, Any]]:
        names = self.names(f"manifests/{kind}")
        return {Path(name).stem: self.json(name) for name in names}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    skip_without_namespaces()
    with Machines(3, tmp_path) as made:
        yield made


def wait_for(what: Callable[[], Any], run: subprocess.Popen[str], log: Path) -> Any:
    deadline = time.monotonic() + 300
    while not (found := what()):
        assert run.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    return found


def test_a_study_survives_a_killed_and_a_stopped_node(machines: Machines, tmp_path: Path):
    stored = Stored(machines.gcs.store.bucket("testing"))
    for node in machines.nodes.values():
        told = machines.call(str(VENV / "bin" / "python"), "-c", "import flows", on=node)
        assert "No module named 'flows'" in told
    log = tmp_path / "run.log"
    words = ["run", SMALLEST, "compute.ray_address=auto", *STUDY]
    with log.open("w") as out:
        command = ["env", f"PYTHONPATH={CHECKOUT}", PARCEL, *words]
        run = machines.popen(*command, on=machines.head, out=out)
    gone: list[Lost] = []

    def busy() -> str:
        """A node in the middle of a training that has a checkpoint in the store."""
        before = {key for lost in gone for key in lost.keys}
        for key, node in stored.leases().items():
            new = key in stored.copied() and key not in before
            if new and node in machines.nodes and node not in [lost.node for lost in gone]:
                return node
        return ""

    for act, within in (("kill", KILL_WITHIN), ("freeze", STOP_WITHIN)):
        node = wait_for(busy, run, log)
        resumable = stored.copied()
        getattr(machines.nodes[node], act)()
        held = {key for key, holder in stored.leases().items() if holder == node}
        gone.append(Lost(node, time.time(), held, held & resumable, within))
    assert run.wait(timeout=300) == 0, log.read_text()[-3000:]

    for lost in gone:
        assert lost.resumable
        for key in lost.keys:
            tries = [stored.json(name) for name in stored.names(f"artifacts/{key}/history/")]
            after = [one for one in tries if started(one) >= lost.at - 1]
            first = min(after, key=started)
            print(f"{lost.node}: {key} again after {started(first) - lost.at:.1f} s")
            assert first["holder"]["host"] != lost.node
            assert started(first) - lost.at <= lost.within
    made = stored.manifests()
    for key in gone[0].resumable | gone[1].resumable:
        assert went_on(stored, made[key]) > 0, "a training began again from its first step"
    # The same study on a disk of this machine.
    here = tmp_path / "here"
    alone = subprocess.run(
        [PARCEL, "run", SMALLEST, *STUDY],
        env=environment(here) | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stdout[-3000:] + alone.stderr[-3000:]
    store = Store(here)
    (table,) = stored.manifests("results").values()
    own = store.get(table["key"]).path
    told = {path.name: path.read_bytes() for path in own.iterdir()}
    for files in (told, there := stored.files(table)):
        del files["latency.png"], files["latency.csv"]  # Measured, and other each time.
    assert there == told
    assert {key: manifest["content"] for key, manifest in made.items()} == {
        artifact.key: artifact.manifest.content for artifact in store.artifacts()
    }


def started(attempt: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(attempt["started"]).timestamp()


def went_on(stored: Stored, manifest: dict[str, Any]) -> int:
    """The step that a training went on from; 0 if it began at its first.

    A process logs its first update, whatever its number.
    """
    rows = [json.loads(line) for line in stored.files(manifest)["metrics.jsonl"].splitlines()]
    odd = [row["step"] for row in rows[:-1] if row["step"] % EVERY]
    return odd[-1] - 1
