"""The flow of several passes: which outcome of one lets the next be drawn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: threads of a flow take the server that Prefect was imported with.
PROGRAM = """
import json, sys
from prefect import flow
from flows.study.load import load
from flows.graph.explain import explain_study
from flows.run.request import RunRequest
from flows.run.run import Run
from flows.run.retry_policy import GIVEN_UP
from infra.store.store import Store

drawn, store = {}, Store(sys.argv[1])

def passes(why):
    for num_seeds in (1, 2, 3):
        drawn.setdefault(why, []).append(num_seeds)
        config = load(overrides=[f"num_seeds={num_seeds}"])
        yield explain_study(config, store, "prepare")

@flow
def sweep(why):
    def hold(explanation):
        return dict.fromkeys(explanation.graph.nodes, why)

    return Run(RunRequest(config=load()), store, passes=passes(why), hold_rule=hold).execute()

for why in (GIVEN_UP, "outside 20:00-08:00 UTC"):
    assert sweep(why, return_state=True).is_completed()
print(json.dumps([*drawn.values()]))
"""


@pytest.mark.deep
@pytest.mark.usefixtures("served_store")
def test_what_was_given_up_ends_no_sweep_and_what_was_put_off_does(tmp_path: Path):
    assert json.loads(last_line(PROGRAM, tmp_path)) == [[1, 2, 3], [1]]


REUSED = """
import sys
from flows.study.load import load
from flows.graph.explain import explain_study
from prefect import flow
from flows.run.request import RunRequest
from flows.run.run import Run
from flows.graph.graph import graph_of
from infra.store.disk import Disk
from infra.store.store import Store
from tests.flows.graph.test_explain import fill

listings, list_all = [], Disk.snapshot
Disk.snapshot = lambda files: listings.append(files.uri) or list_all(files)
config = load(overrides=["methods=[parcel]", "budgets=[256]", "num_seeds=1"])
store = Store(sys.argv[1])
fill(store, graph_of(config, "evaluate"))
explanation = explain_study(config, store, "evaluate")
run = Run(RunRequest(config=config, until="evaluate"), store, explanation=explanation)
assert flow(name="study")(lambda: run.execute())(return_state=True).is_completed()
assert run.result.made == 0 and run.result.reused > 0
assert "checkpoint" in run.result.disk_use
print(len(listings))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("served_store")
def test_a_run_that_reuses_everything_lists_its_store_once(tmp_path: Path):
    assert last_line(REUSED, tmp_path) == "1"


def last_line(program: str, folder: Path) -> str:
    """Runs a program on a store in a process of its own, and returns the last line it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "store")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
