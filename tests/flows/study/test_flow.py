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
from flows.config.load import load
from flows.study.explain import explain_study
from flows.study.flow import run_passes
from flows.study.retry_policy import GIVEN_UP
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

    return run_passes(passes(why), store, hold_rule=hold)

for why in (GIVEN_UP, "outside 20:00-08:00 UTC"):
    assert sweep(why, return_state=True).is_completed()
print(json.dumps([*drawn.values()]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("served_store")
def test_what_was_given_up_ends_no_sweep_and_what_was_put_off_does(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[1, 2, 3], [1]]
