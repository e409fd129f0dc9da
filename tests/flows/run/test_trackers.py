"""A tracker that fails, hangs or is not there costs a run one line, and none of its time."""

import sys
import time
from pathlib import Path

import pytest

from flows.graph.explain import Explanation
from flows.graph.graph import graph_of
from flows.run import trackers
from flows.run.trackers import Trackers
from flows.study.load import load
from infra.errors import ConfigError
from infra.store.digest import identity_json
from infra.store.store import Artifact, Store
from tests.flows.run.test_tracked_run import commit

FAULTS = {
    "raise ValueError('a key of https://me:s3cr3tword@host')": "of https://[redacted]@host); the",
    "import threading; threading.Event().wait()": "no answer within 2 s",
    "import os; os._exit(3)": "its process ended with code 3",
}
"""What a tracker's library does when it is imported -> what the line says."""


@pytest.fixture
def trained(tmp_path: Path) -> Artifact:
    return commit(tmp_path, '{"step": 1, "loss": 2.5}', {})


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_tracker_does_costs_one_line(
    fault: str, trained: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    library = tmp_path / "path"
    library.mkdir()
    (library / "mlflow.py").write_text(f"{fault}\n")
    monkeypatch.syspath_prepend(library)
    # The library that hangs is waited for; the others answer, on whatever machine.
    hangs = "wait" in fault
    monkeypatch.setattr(trackers, "_PATIENCE", 2.0 if hangs else 300.0)
    with Trackers(["mlflow", "mlflow"], Store(tmp_path / "store"), "") as told:
        began = time.monotonic()
        for _ in range(2000):  # More than a pipe holds.
            told.put(trained)
        assert time.monotonic() - began < 2.0
        (process,) = [link._process for link in told._links]
        told.put_study("absent-0123")
    assert process.poll() is not None
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("parcel: mlflow could not be written to (")
    assert FAULTS[fault] in line
    assert line.endswith("the next run of the study writes what is missing.")


def test_a_tracker_that_is_not_installed_is_refused_before_work_begins(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()  # W&B's folder of runs is no W&B.
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    graph = graph_of(load(overrides=["track=[wandb]", "methods=[vanilla]", "budgets=[256]"]))
    explanation = Explanation(Store(tmp_path / "store"), graph)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    message = (
        r"track must name trackers that are installed, got wandb; install it with "
        r"pip install 'parcel-pipeline\[wandb\]', or leave it out\."
    )
    with pytest.raises(ConfigError, match=message):
        explanation.check(1.0, ())


@pytest.mark.parametrize("value", ["[tensorboard]", "mlflow"])
def test_another_word_is_refused(value: str):
    with pytest.raises(ConfigError, match=r"track.*(mlflow|list)"):
        load(overrides=[f"track={value}"])


def test_track_is_no_part_of_any_step():
    plain, tracked = (
        [(step.name, identity_json(step.config)) for step in graph_of(load(overrides=words)).steps]
        for words in ([], ["track=[mlflow, wandb]"])
    )
    assert tracked == plain
