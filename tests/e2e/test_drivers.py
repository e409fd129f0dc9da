"""Several drivers of one study on one store: they share its work, and none of it is done twice."""

import re
import subprocess
from pathlib import Path

import pytest

from infra.store.history import list_attempts
from infra.store.store import Store
from tests.e2e.conftest import PARCEL, SMALLEST, environment

pytestmark = [pytest.mark.e2e, pytest.mark.deep]


def test_drivers_of_one_study_share_its_steps_and_make_none_twice(tmp_path: Path):
    folder = tmp_path / "store"
    words = [PARCEL, "run", SMALLEST, "num_seeds=4", "--store", str(folder)]
    drivers = [
        subprocess.Popen(
            words,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [driver.communicate(timeout=600)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outputs
    # Each artifact has one attempt, by one of them.
    store = Store(folder)
    artifacts = [a for kind in ("checkpoint", "predictions") for a in store.artifacts(kind)]
    assert [len(list_attempts(store.files, a.key)) for a in artifacts] == [1] * len(artifacts)
    # Each made some of the transfers, and both print the same table.
    made = [
        set(re.findall(r" made .*(transfer vanilla chartqa seed=\d+)", output))
        for output in outputs
    ]
    assert len(made[0] | made[1]) == 4
    assert all(made), outputs
    tables = [output[output.index("| ") : output.rindex("|")] for output in outputs]
    assert tables[0] == tables[1]
