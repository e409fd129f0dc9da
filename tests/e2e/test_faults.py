"""A sample of the trials of faults.py: a study in a bucket that misbehaves, or killed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.e2e.conftest import Finished
from tests.e2e.faults import Trials

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

SEED = 1
SAMPLE = (1, 22), (26, 62, 66, 84, 87, 178)
"""Of two phases only, one with a worker and one without: whatever else is drawn, it is cheap."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "numbers", [SAMPLE[0], pytest.param(SAMPLE[1], marks=pytest.mark.night)], ids=["few", "others"]
)
def test_trials_are_survived_and_the_artifacts_are_byte_identical(
    finished: Finished, shared_server: dict[str, str], tmp_path: Path, numbers: tuple[int, ...]
):
    checkpoints = Store(finished.store).artifacts("checkpoint")
    start = next(a.path for a in checkpoints if a.manifest.name.startswith("stage1"))
    trials = Trials(tmp_path, start, shared_server)
    drawn = [trials.draw(number, SEED) for number in numbers]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(trials.run, drawn))
    told = [f"{trial}: {came.wrong}" for trial, came in zip(drawn, outcomes, strict=True)]
    assert not any(came.wrong for came in outcomes), "\n".join(told)
    assert all(came.fired for came in outcomes), "\n".join(map(str, outcomes))
