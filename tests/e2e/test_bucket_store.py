"""A whole study on a bucket: the same table, through faults, a kill, and from another machine."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from infra.store.store import Artifact, Store
from tests.e2e.conftest import PARCEL, SMALLEST, Finished, environment
from tests.gcs.faults import Rule
from tests.gcs.server import GCS
from tests.s3.others import azurite_server

pytestmark = [pytest.mark.e2e, pytest.mark.night]

FAULTS = [
    Rule(action="answer", status=503, probability=0.005, seed=1, times=None),
    Rule(action="answer", status=429, probability=0.003, seed=2, times=None),
    Rule(action="lose", verb="upload", probability=0.01, seed=3, times=None),
    Rule(action="lose", verb="delete", probability=0.02, seed=4, times=None),
    Rule(action="reset", probability=0.003, seed=5, times=None),
    Rule(action="corrupt", verb="media", probability=0.02, seed=6, times=None),
    Rule(action="tear", verb="chunk", probability=0.3, seed=7, times=None),
]


def machine(server: GCS, state: Path) -> dict[str, str]:
    """The environment of a machine with a disk of its own."""
    own = {"PARCEL_STORE": f"{server.uri}/studies", "PARCEL_STATE": str(state)}
    return environment(state) | server.environment | own


def files_of(artifact: Artifact) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(artifact.path.iterdir())}


def assert_same_as_on_disk(
    env: dict[str, str], smallest: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store that variables name has the keys, contents and table of the store on a disk."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    there, here = Store(env["PARCEL_STORE"]), Store(smallest.store)
    (table,) = there.artifacts("results")
    assert files_of(table) == files_of(here.get(table.key))
    made = {artifact.key: artifact.manifest.content for artifact in there.artifacts()}
    assert made == {key: here.get(key).manifest.content for key in made}
    assert len(made) >= 14


def test_a_study_on_a_bucket_is_the_study_on_a_disk(
    smallest: Finished, server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server.fail(*FAULTS)
    log = tmp_path / "log"
    with log.open("w") as out:
        first = subprocess.Popen(
            [PARCEL, "run", SMALLEST],
            env=machine(server, tmp_path / "a"),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while not re.search(r"made .*intermediary", log.read_text()):
            assert first.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    # The next run is another machine's: it has nothing but the bucket.
    env = machine(server, tmp_path / "b")
    again = subprocess.run(
        [PARCEL, "run", SMALLEST], env=env, capture_output=True, text=True, timeout=900
    )
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    assert sum(server.faults.fired()) > 10, server.faults.fired()
    server.clear()
    assert_same_as_on_disk(machine(server, tmp_path / "c"), smallest, monkeypatch)
    # A third machine finds everything made, in few requests.
    third = subprocess.run(
        [PARCEL, "run", SMALLEST],
        env=machine(server, tmp_path / "d"),
        capture_output=True,
        text=True,
    )
    assert third.returncode == 0, third.stderr
    assert "0 made, everything reused" in third.stdout
    asked = sum(count["requests"] for count in server.requests().values())
    assert asked < 400


def test_a_study_on_azure_is_the_study_on_a_disk(
    smallest: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with azurite_server(tmp_path) as server:
        for name, end in (("a", "made"), ("b", "0 made, everything reused")):
            # Two machines with nothing in common but the container.
            own = {"PARCEL_STORE": "az://testing/studies", "PARCEL_STATE": str(tmp_path / name)}
            env = environment(tmp_path / name) | server | own
            run = subprocess.run(
                [PARCEL, "run", SMALLEST], env=env, capture_output=True, text=True, timeout=900
            )
            assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
            assert end in run.stdout
        reader = {**env, "PARCEL_STATE": str(tmp_path / "c")}
        assert_same_as_on_disk(reader, smallest, monkeypatch)
