"""`parcel doctor`: what is wrong is told with its cure, and is the exit code."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.machine.engines import ENGINES
from tests.flows.conftest import Done


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def test_all_is_well(parcel: Callable[..., Done], tmp_path: Path):
    done = parcel("doctor", "--engine", "video", "--store", tmp_path / "store")
    assert done.code == 0, done.out
    found = {line.split()[1]: line for line in done.out.splitlines() if line[:3] in ("ok ", "not")}
    assert set(found) == {"python", "packages", "store", "disk", "prefect", "video"}
    decoders = "PyAV and decord find" if importlib.util.find_spec("decord") else "PyAV finds"
    assert f"{decoders} the frames asked for" in found["video"]
    assert not [*(tmp_path / "store" / "scratch").glob("*")]


def test_a_bucket_is_tried_as_a_folder_is(
    parcel: Callable[..., Done], server, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = parcel("doctor", "--engine", "none", "--store", f"{server.uri}/doctor")
    assert done.code == 0, done.out
    assert f"{server.uri}/doctor can be read and written" in done.out
    absent = f"{server.scheme}://no-such-bucket"
    missing = parcel("doctor", "--engine", "none", "--store", f"{absent}/x")
    assert missing.code == 1
    assert re.search(f"BAD  store .*bucket {absent};", missing.out)
    cure = "log in with `gcloud auth" if server.scheme == "gs" else "set AWS_ACCESS_KEY_ID, AWS_"
    assert f"→ {cure}" in missing.out


def test_a_bucket_that_takes_no_notice_of_conditions_is_bad(
    parcel: Callable[..., Done], s3, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    s3.api.knows_conditions = False
    done = parcel("doctor", "--engine", "none", "--store", "s3://testing/doctor")
    assert done.code == 1
    assert "BAD  store      s3://testing/doctor replaces" in done.out


def test_each_thing_that_is_wrong_has_a_cure(
    parcel: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    study = tmp_path / "mine.yaml"
    study.write_text("base: demo\ncompute: {ray_address: 'http://127.0.0.1:9'}\n")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    done = parcel("doctor", study, "--engine", "none", "--store", tmp_path / "file")
    assert done.code == 1
    bad = [line.split()[1] for line in done.out.splitlines() if line.startswith("BAD")]
    assert bad == ["store", "prefect", "cluster"]
    assert done.out.count("→") == 3


def test_a_tracker_that_is_not_installed_is_bad_before_the_work_begins(
    parcel: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mlflow.py").write_text("raise SystemExit('is not imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "wandb" else real(n))
    study = tmp_path / "mine.yaml"
    study.write_text("base: demo\ntrack: [mlflow, wandb]\n")
    done = parcel("doctor", study, "--engine", "none", "--store", tmp_path / "store")
    assert done.code == 1
    assert "ok   track      mlflow is installed\n" in done.out
    assert "BAD  track      wandb is not installed\n" in done.out
    assert "→ pip install 'parcel-pipeline[wandb]'\n" in done.out
    run = parcel("run", study, "--store", tmp_path / "store")
    assert run.code == 2
    assert "track must name trackers that are installed, got wandb;" in run.err
    assert not [*(tmp_path / "store" / "runs").glob("*")]


def test_an_engine_that_does_not_work_says_why(tmp_path: Path):
    broken = tmp_path / "decord.py"
    broken.write_text("raise ImportError('no wheel for this machine')\n")
    tried = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
            "from flows.machine.engines import try_video\ntry_video()",
        ],
        capture_output=True,
        text=True,
    )
    assert tried.stderr.strip().splitlines()[-1] == (
        "pipelines.video.decoders.DecordError: no wheel for this machine"
    )


def test_an_unknown_engine_is_refused(parcel: Callable[..., Done]):
    done = parcel("doctor", "--engine", "torch")
    assert done.code == 2
    assert re.search("--engine .*jax, beam, ray, video, tf .*'torch'", done.err)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "beam", "ray"])
def test_engines_are_really_tried(name: str):
    assert ENGINES[name]()
