"""A study from a notebook: `import parcel`, in a process whose event loop runs already."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import CONFIG, Finished, environment, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

CELLS = """
import asyncio, json, sys
import parcel

async def cells():
    study = parcel.load(sys.argv[1])
    table = parcel.run(study)
    frame = table.to_pandas()
    swept = parcel.sweep(sys.argv[1], seeds=study.num_seeds)
    first = frame.iloc[0]
    print(json.dumps({
        "rows": len(frame),
        "columns": list(frame.columns),
        "score": first.score,
        "same": swept.text() == table.text(),
        "trace": parcel.trace(first.predictions),
        "key": first.predictions,
    }))

asyncio.run(cells())
"""


def test_a_notebook_runs_looks_and_traces(finished: Finished, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", CELLS, CONFIG],
        env=environment(finished.store),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 made, everything re-used" in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    text = parcel(finished.store, "results", "tiny", "--format", "cells").stdout
    head, first, *others = text.splitlines()
    assert found["columns"] == head.split(",")
    assert found["rows"] == 1 + len(others)
    assert float(first.split(",")[found["columns"].index("score")]) == found["score"]
    assert found["same"]
    assert found["key"] in found["trace"].splitlines()[0]
