"""Runs of one config at the same time, on machines of their own: one set of artifacts.

Each takes a core or two and a gigabyte.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.certificate.places import artifacts_of, in_bucket
from tests.e2e.conftest import PARCEL, SMALLEST, environment

pytestmark = [pytest.mark.e2e, pytest.mark.night]

RETRIES = "compute.retries=8"
"""Each starts Ray, which gives itself 30 s: of many on a small machine, some need another try."""


@pytest.mark.timeout(1200)
def test_runs_at_once_make_every_step_once(shared_server: dict[str, str], tmp_path: Path):
    number = 4  # Two at once are among the trials of tests/certificate.
    with in_bucket(tmp_path) as place:
        runs = []
        for i in range(number):
            env = environment(tmp_path / f"{i}") | place.environment | shared_server
            env |= {"PARCEL_STATE": str(tmp_path / f"{i}")}
            with (tmp_path / f"{i}.log").open("w") as out:
                runs.append(
                    subprocess.Popen(
                        [PARCEL, "run", SMALLEST, RETRIES],
                        env=env,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )
        try:
            codes = [run.wait() for run in runs]
        finally:
            for run in runs:
                run.kill()
        said = [(tmp_path / f"{i}.log").read_text() for i in range(number)]
        assert codes == [0] * number, said[codes.index(max(codes))][-3000:]
        tables = {text[text.index("\n## ") : text.index("\nScores are mean")] for text in said}
        assert len(tables) == 1
        files = place.files()
        keys = artifacts_of(files)
        begun = Counter(name.split("/")[1] for name in files if "/history/" in name)
        assert begun == dict.fromkeys(keys, 1)  # One attempt each: nothing was made twice.
        assert len([name for name in files if name.startswith("manifests/results/")]) == 1
        assert not [name for name in files if name.startswith("aside/")]
        sums = [re.search(r"(\d+) steps in \d+ s: (\d+) made", text) for text in said]
        # A transfer is one step to people; two runs may make its training and its answers.
    made = sum(int(found[2]) for found in sums if found)
    assert int(sums[0][1]) <= made <= len(keys), sums
